package tools

import (
	"context"
	"time"

	"smol-mcp/fleet"
	"smol-mcp/store"
)

type onceIn struct {
	Image       string            `json:"image"`
	Command     commandLine       `json:"command"`
	TimeoutSecs int               `json:"timeoutSecs"`
	Workdir     string            `json:"workdir"`
	Env         map[string]string `json:"env"`
	Stdin       string            `json:"stdin"`
	CPUs        int               `json:"cpus"`
	MemoryMB    int               `json:"memoryMb"`
	Network     string            `json:"network"`
	AllowHosts  []string          `json:"allowHosts"`
	AllowCIDRs  []string          `json:"allowCidrs"`
}

type onceOut struct {
	runOut
	Machine string `json:"machine"`
}

func runOnce(l Limits) tool {
	in := append([]field{required("image", text("As for create-machine."))}, commandArguments(l, true)...)
	in = append(in, resourceArguments(l)...)
	in = append(in, egressArguments(l.RunOnceOpen, true)...)
	return define(tool{
		name:  "run-once",
		title: "Run once in a fresh machine",
		description: "Creates a machine from an image, runs one command in it, and deletes it again, whatever happens: also on failure, time-out and cancel. Use it for one command that leaves nothing behind; " +
			"for files or several commands use create-machine and run-command. Waits for the start (seconds; minutes when the image is pulled) and for the command's end. " +
			"A failing command is a normal result: check exitCode. Output over the budget is only counted. If it cannot be deleted at once, the server goes on trying.",
		hints: hints{openWorld: true},
		in:    arguments(in...),
		out:   alsoOutcome(required("machine", text("Its name."))),
	}, (*call).once)
}

func (c *call) once(ctx context.Context, in onceIn) (out onceOut, err error) {
	timeout, err := c.timeout(in.TimeoutSecs, false)
	if err != nil {
		return out, err
	}
	network, err := c.egress(in.Network, in.AllowHosts, in.AllowCIDRs, c.opts.Limits.RunOnceOpen)
	if err != nil {
		return out, err
	}
	spec := fleet.Spec{
		Name:  c.madeUpName("once-"),
		Image: in.Image, CPUs: in.CPUs, MemoryMB: in.MemoryMB,
		Network: network,
	}
	out.Machine = spec.Name
	if _, err := c.make(ctx, spec, store.Once, true); err != nil {
		return out, err
	}
	out.runOut, err = c.run(ctx, spec.Name, job{command: in.Command, env: in.Env, workdir: in.Workdir, stdin: in.Stdin, timeout: timeout, wait: timeout, once: true})
	c.stage("deleting %s", spec.Name)
	left := c.undo(ctx, store.Record{Target: c.fleet.Target(), Account: c.key("").Account, Name: spec.Name}, true)
	if fleet.CodeOf(err) == fleet.CodeCancelled {
		what := "it was deleted with all that ran in it"
		if left != nil {
			what = "it is being deleted with all that ran in it"
		}
		return out, &fleet.Error{Code: fleet.CodeCancelled, Op: "run once in machine " + spec.Name, Why: calledOffWhy + "; " + what}
	}
	if err != nil {
		return out, err
	}
	if left != nil {
		out.Note = "the machine could not be deleted yet; the server goes on trying: " + fleet.Bound(left.Error(), 300)
	}
	return out, nil
}

// execMargin is how much longer than the command's own time the guest may take to answer.
const execMargin = 20 * time.Second
