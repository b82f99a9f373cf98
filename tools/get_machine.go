package tools

import (
	"bytes"
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"smol-mcp/fleet"
)

type getIn struct {
	Name string `json:"name"`
}

// getOut is a machine with the commands that it knows.
type getOut struct {
	machine
	Commands     []listedCommand `json:"commands,omitempty"`
	CommandsNote string          `json:"commandsNote,omitempty"` // why they are not known
}

// A listedCommand is a command of a machine, in short.
type listedCommand struct {
	CommandID string `json:"commandId"`
	Command   string `json:"command"`
	State     string `json:"state"`
	StartedAt int64  `json:"startedAt"`
	ExitCode  *int   `json:"exitCode"`
}

func getMachine() tool {
	return define(tool{
		name:  "get-machine",
		title: "Get machine",
		description: "Shows one machine by name: state, size, egress, image, owner and expiry, and its newest commands. Use it before you rely on a machine, after an error, or to find a commandId again; " +
			"for all machines use list-machines, for console output machine-logs. Starts nothing. An unknown name is NOT_FOUND with the names that look like it.",
		hints: hints{readOnly: true, idempotent: true, openWorld: true},
		in:    arguments(nameArgument()),
		out: object(append(machineFields(),
			optional("commands", list("Those that run, then others, newest first; absent when none is known.",
				plainObject("commandId, command (its beginning), state (running, ended, or unknown: end not seen), startedAt, exitCode or null."))),
			optional("commandsNote", text("")))...),
	}, (*call).get)
}

func (c *call) get(ctx context.Context, in getIn) (getOut, error) {
	m, err := c.fleet.Get(ctx, in.Name)
	if err != nil {
		return getOut{}, c.nearby(ctx, in.Name, err)
	}
	out := getOut{machine: c.showOne(ctx, m)}
	if m.State == fleet.Running {
		out.Commands, out.CommandsNote = c.commands(ctx, in.Name)
	}
	return out, nil
}

// Bounds of the list of commands. A guest that does not answer must not hold up the
// answer that tells how its machine stands.
const (
	listTimeout = 3 * time.Second
	listedOver  = 20 // commands that do not run
)

// commands lists the commands of a machine that runs, or says why they are not known: none listed
// is no sign that nothing runs. A guest without a shell, or that is off by now, has none, and one that is being
// stopped is not asked.
func (c *call) commands(ctx context.Context, name string) (all []listedCommand, note string) {
	if c.contacts.of(name).noShell || c.halting.of(name) > 0 {
		return nil, ""
	}
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	res, err := c.fleet.Exec(ctx, name, fleet.Command{Argv: []string{"sh", "-c", scripts.list(), "sh"}, Timeout: listTimeout, Brief: true, NoStart: true})
	switch {
	case err != nil && (isNoShell(err.Error()) || fleet.CodeOf(err) == fleet.CodeNotReady), err == nil && isNoShell(string(res.Stderr)):
		return nil, ""
	case err != nil && ctx.Err() != nil:
		return nil, "not known: the guest did not answer within " + listTimeout.String() + "; some may run"
	case err != nil:
		return nil, "not known: " + fleet.Bound(explain(err).Error(), 300) + "; some may run"
	}
	all, whole := listed(res.Stdout)
	if !whole {
		note = "not known: the guest gave no list of them; some may run"
	}
	return all, note
}

// listed reads the answer of list.sh, if it is one.
func listed(answer []byte) (all []listedCommand, ok bool) {
	lines := bytes.Split(answer, []byte("\n"))
	if string(lines[0]) != "smol1 list" {
		return nil, false
	}
	for ; len(lines) > 2; lines = lines[2:] {
		words := strings.Fields(string(lines[1]))
		if len(words) < 6 {
			break
		}
		l := listedCommand{CommandID: words[0], Command: strings.ToValidUTF8(string(lines[2]), "?"), State: "unknown"}
		l.StartedAt, _ = strconv.ParseInt(words[5], 10, 64)
		switch words[1] {
		case "running":
			l.State = "running"
		case "exit":
			l.State = "ended"
			timedOut := len(words) > 7 && words[7] == "timeout" // then it has none, as its outcome says
			if code, err := strconv.Atoi(words[2]); err == nil && !timedOut {
				l.ExitCode = &code
			}
		}
		all = append(all, l)
	}
	slices.SortStableFunc(all, func(a, b listedCommand) int { return int(b.StartedAt - a.StartedAt) })
	runs := func(l listedCommand) bool { return l.State == "running" }
	shown := slices.DeleteFunc(slices.Clone(all), func(l listedCommand) bool { return !runs(l) })
	for _, l := range all {
		if !runs(l) && len(shown) < listedOver {
			shown = append(shown, l)
		}
	}
	return shown[:min(len(shown), 4*listedOver)], true
}
