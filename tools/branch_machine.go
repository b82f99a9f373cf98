package tools

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"

	"smol-mcp/fleet"
	"smol-mcp/store"
)

type branchIn struct {
	Name       string   `json:"name"`
	ChildName  string   `json:"childName"`
	ChildNames []string `json:"childNames"`
	Wait       *bool    `json:"wait"`
	StopSource bool     `json:"stopSource"`
}

type branchOut struct {
	Machine  machine `json:"machine"`
	Ready    bool    `json:"ready"`
	Children []child `json:"children"`
	Note     string  `json:"note,omitempty"`
}

type child struct {
	Name  string `json:"name"`
	Ready bool   `json:"ready"`
	Error string `json:"error,omitempty"`
}

func branchMachine(l Limits) tool {
	names := atMost(100, "Names of several, in place of childName.", text(""))
	names.UniqueItems = true
	return define(tool{
		name:  "branch-machine",
		title: "Branch machine",
		description: "Makes running copies of a running machine: disk, memory and processes as at that moment. Use it to try several ways from one prepared state; for an empty machine use create-machine. " +
			"The source must have been created branchable; older engines leave it standing still, and it cannot be deleted before its branches. " +
			"Names are as for create-machine: with the ephemeral prefix (" + l.MachinePrefix + ") they go with the session. A branch that fails is deleted again and told in children; the call fails only when all do.",
		hints: hints{openWorld: true},
		in: arguments(nameArgument(),
			optional("childName", text("Name, as for create-machine. Default: a new ephemeral one.")),
			optional("childNames", names),
			optional("wait", standard(flag("false does not wait until they answer."), true)),
			optional("stopSource", standard(flag("Leave the source standing still."), false))),
		out: object(
			required("machine", machineSchema()),
			required("ready", flag("It has answered a command.")),
			required("children", list("In the order asked for: name, ready, error if any.", plainObject(""))),
			optional("note", text("")),
		),
	}, (*call).branch)
}

// branchWidth is how many branches are made at once: each stops the source for a moment.
const branchWidth = 4

func (c *call) branch(ctx context.Context, in branchIn) (branchOut, error) {
	names, err := c.childNames(ctx, in)
	if err != nil {
		return branchOut{}, err
	}
	info, err := c.fleet.Info(ctx)
	if err != nil {
		return branchOut{}, err
	}
	if !info.Can.Branch {
		return branchOut{}, &fleet.Error{Code: fleet.CodeUnsupported, Op: "branch " + in.Name, Why: info.Engine + " " + info.Version + " has no branches here", Next: "create-machine another one and repeat the set-up"}
	}
	made := make([]fleet.Machine, len(names))
	failed := make([]error, len(names))
	wait := in.Wait == nil || *in.Wait
	var group sync.WaitGroup
	slots := make(chan struct{}, branchWidth)
	for i, name := range names {
		slots <- struct{}{}
		group.Go(func() {
			defer func() { <-slots }()
			failed[i] = c.guard(func() (err error) {
				made[i], err = c.branchOne(ctx, in, name, wait)
				return err
			})
		})
	}
	group.Wait()
	if ctx.Err() != nil {
		c.dropBranches(ctx, names, failed)
	}
	return c.branches(ctx, in.Name, names, made, failed, wait)
}

// dropBranches deletes what a cancelled call has finished: nobody would be told of it.
func (c *call) dropBranches(ctx context.Context, names []string, failed []error) {
	for i, name := range names {
		if failed[i] != nil {
			continue
		}
		c.background(ctx, rollbackTimeout, func(ctx context.Context) {
			if err := c.remove(ctx, store.Record{Target: c.fleet.Target(), Account: c.key("").Account, Name: name}, true); err != nil {
				c.opts.Log.Warn("a branch of a cancelled call stays", "machine", name, "err", err)
			}
			if c.lifeOf(name) == store.Persistent { // it has no record any more
				_, _ = c.drop(ctx, name)
			}
		})
	}
}

// branches makes the result of what became of each branch.
func (c *call) branches(ctx context.Context, source string, names []string, made []fleet.Machine, failed []error, wait bool) (branchOut, error) {
	out := branchOut{}
	first := -1
	for i, name := range names {
		one := child{Name: name, Ready: wait && failed[i] == nil}
		if failed[i] != nil {
			one.Error = string(explain(failed[i]).Code) + ": " + explain(failed[i]).Error()
		} else if first < 0 {
			first = i
		}
		out.Children = append(out.Children, one)
	}
	if first < 0 {
		return out, c.nearby(ctx, source, failed[0])
	}
	out.Machine, out.Ready = c.showOne(ctx, made[first]), wait
	var notes []string
	for i, m := range made {
		if failed[i] == nil {
			notes = append(notes, c.endNote(m))
		}
	}
	if c.lifeOf(source) != store.Persistent && slices.ContainsFunc(names, func(n string) bool { return c.lifeOf(n) == store.Persistent }) {
		notes = append(notes, source+" is ephemeral, but cannot be deleted as long as a branch of it exists: it goes when its branches are gone")
	}
	out.Note = strings.Join(nonEmpty(notes), "; ")
	return out, nil
}

// branchOne records one branch, makes it and waits for it. What fails is taken back.
func (c *call) branchOne(ctx context.Context, in branchIn, name string, wait bool) (fleet.Machine, error) {
	wish := store.Wish{Target: c.fleet.Target(), Account: c.key("").Account, Name: name, Kind: c.lifeOf(name), Image: c.made.of(in.Name).image, Chosen: in.ChildName != "" || len(in.ChildNames) > 0}
	if parent, found, err := c.opts.Store.Find(ctx, c.key(in.Name)); err == nil && found && !c.hidden {
		wish.Parent, wish.Image, wish.Network = parent.UID, parent.Image, parent.Network
	}
	rec, err := c.intend(ctx, wish)
	if err != nil {
		return fleet.Machine{}, err
	}
	c.stage("branching %s to %s", in.Name, name)
	m, err := c.fleet.Branch(ctx, in.Name, fleet.BranchSpec{Name: name, StopSource: in.StopSource})
	if err != nil {
		return m, c.takeBack(ctx, rec, c.overQuota(ctx, name, notBranchable(err)))
	}
	c.saw(m)
	c.made.change(name, func(origin) origin { return origin{image: wish.Image} })
	err = c.confirmed(ctx, rec, m, func() error {
		if !wait {
			return nil
		}
		return c.waitReady(ctx, name, c.opts.Limits.ReadyTimeout)
	})
	if err != nil {
		return m, c.takeBack(ctx, rec, madeIt(err))
	}
	return m, nil
}

// notBranchable says what a refused branch most often needs.
func notBranchable(err error) error {
	var e *fleet.Error
	if !errors.As(err, &e) || e.Code != fleet.CodeConflict || e.Next != "" {
		return err
	}
	hinted := *e
	hinted.Next = "only a running machine that create-machine made with branchable true can be branched"
	return &hinted
}

// childNames are the names of the branches to make, none of them taken.
func (c *call) childNames(ctx context.Context, in branchIn) ([]string, error) {
	if in.ChildName != "" && len(in.ChildNames) > 0 {
		return nil, invalid("branch "+in.Name, "childName and childNames exclude each other")
	}
	names := in.ChildNames
	switch {
	case in.ChildName != "":
		names = []string{in.ChildName}
	case len(names) == 0:
		names = []string{c.madeUpName("")}
	}
	var errs []error
	for _, name := range names {
		errs = append(errs, fleet.CheckName(name))
		if (in.ChildName != "" || len(in.ChildNames) > 0) && c.fleet.Target() == localTarget {
			errs = append(errs, c.checkFree(ctx, name))
		}
	}
	return names, errors.Join(errs...)
}
