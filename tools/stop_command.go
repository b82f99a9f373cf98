package tools

import (
	"context"
)

type stopCommandIn struct {
	Name      string `json:"name"`
	CommandID string `json:"commandId"`
	Signal    string `json:"signal"`
}

func stopCommand() tool {
	return define(tool{
		name:  "stop-command",
		title: "Stop command",
		description: "Stops a command of run-command with everything it started, and returns how it ended. Use it for one that runs on or hangs; " +
			"to stop a whole machine use stop-machine, only to look read-command, which also gives the output afterwards. TERM kills what is left after 5 seconds, KILL at once; INT is Ctrl-C and kills nothing, so it may go on. " +
			"Harmless for one that has ended; children that it left are stopped then. Starts no machine. An unknown id is NOT_FOUND.",
		hints: hints{destructive: true, idempotent: true, openWorld: true},
		in: arguments(nameArgument(), commandIDArgument(),
			optional("signal", standard(oneOf("What to send.", "TERM", "KILL", "INT"), "TERM"))),
		out: plainObject("As read-command gives it."),
	}, (*call).stopCommand)
}

func (c *call) stopCommand(ctx context.Context, in stopCommandIn) (readCommandOut, error) {
	if err := checkCommandID(in.CommandID); err != nil {
		return readCommandOut{}, err
	}
	signal, grace, why := in.Signal, longGrace, "stop"
	switch signal {
	case "":
		signal = "TERM"
	case "KILL":
		grace = 0
	case "INT":
		grace, why = stopGrace, stopAndWatch
	}
	c.stage("stopping command %s in %s", in.CommandID, in.Name)
	ended, err := c.stopJob(ctx, in.Name, in.CommandID, signal, grace, why)
	if err != nil {
		return readCommandOut{}, c.nearby(ctx, in.Name, err)
	}
	out, err := c.readCommand(ctx, readCommandIn{Name: in.Name, CommandID: in.CommandID})
	if err == nil && !ended && signal != "INT" && !out.Running {
		out.say("a process that it started is still there, although it was killed")
	}
	return out, err
}

// say adds to the note of a result.
func (out *readCommandOut) say(what string) {
	if out.Note != "" {
		out.Note += "; "
	}
	out.Note += what
}
