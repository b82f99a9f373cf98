package tools

import (
	"context"

	"smol-mcp/fleet"
)

type startIn struct {
	Name string `json:"name"`
	Wait *bool  `json:"wait"`
}

type startOut struct {
	Machine machine `json:"machine"`
	Ready   bool    `json:"ready"`
}

func startMachine() tool {
	return define(tool{
		name:  "start-machine",
		title: "Start machine",
		description: "Starts a stopped or created machine, or resumes a suspended one with its memory, and waits until it answers commands. Use it after stop-machine or create-machine with start false, " +
			"or to wait for a machine that was NOT_READY; run-command and the file tools start one by themselves. Harmless when it runs already. " +
			"Takes seconds; minutes when its image is pulled. If it fails the machine is left as it is: machine-logs tells why.",
		hints: hints{idempotent: true, openWorld: true},
		in: arguments(nameArgument(),
			optional("wait", standard(flag("false returns once it boots."), true))),
		out: object(required("machine", machineSchema()), required("ready", flag("It has answered a command."))),
	}, (*call).start)
}

func (c *call) start(ctx context.Context, in startIn) (startOut, error) {
	c.stage("starting %s", in.Name)
	m, err := c.fleet.Start(ctx, in.Name, fleet.StartOptions{Branchable: c.made.of(in.Name).branchable})
	if err != nil {
		return startOut{}, c.nearby(ctx, in.Name, c.overQuota(ctx, in.Name, err))
	}
	c.contacts.take(in.Name) // what runs in it now is new
	wait := in.Wait == nil || *in.Wait
	if wait {
		c.stage("waiting until %s answers", in.Name)
		if err := c.waitReady(ctx, in.Name, c.opts.Limits.ReadyTimeout); err != nil {
			return startOut{}, err
		}
	}
	return startOut{Machine: c.showOne(ctx, m), Ready: wait}, nil
}
