package tools

import (
	"context"

	"smol-mcp/fleet"
)

type stopIn struct {
	Name       string `json:"name"`
	KeepMemory bool   `json:"keepMemory"`
}

func stopMachine() tool {
	return define(tool{
		name:  "stop-machine",
		title: "Stop machine",
		description: "Stops a machine: its processes end, and memory and /tmp are lost, but its disk stays, and start-machine brings it back. Use it to free CPU and memory of a machine that you still need; " +
			"to get rid of it use delete-machine. With keepMemory it is suspended instead, and processes go on at the next start; an engine that cannot do that refuses. " +
			"Harmless when it is stopped already; check the owner with get-machine unless you made it.",
		hints: hints{destructive: true, idempotent: true, openWorld: true},
		in: arguments(nameArgument(),
			optional("keepMemory", standard(flag("Suspend: keep memory and processes."), false))),
		out: machineSchema(),
	}, (*call).stopMachine)
}

func (c *call) stopMachine(ctx context.Context, in stopIn) (machine, error) {
	c.stage("stopping %s", in.Name)
	c.halting.change(in.Name, func(n int) int { return n + 1 })
	defer c.halting.change(in.Name, func(n int) int { return n - 1 })
	m, err := c.fleet.Stop(ctx, in.Name, fleet.StopOptions{KeepMemory: in.KeepMemory})
	if err != nil {
		return machine{}, c.nearby(ctx, in.Name, err)
	}
	return c.showOne(ctx, m), nil
}
