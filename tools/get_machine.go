package tools

import "context"

type getIn struct {
	Name string `json:"name"`
}

func getMachine() tool {
	return define(tool{
		name:  "get-machine",
		title: "Get machine",
		description: "Shows one machine by name: state, size, egress, image, owner and expiry. Use it before you rely on a machine, or to see how it stands after an error; " +
			"for all machines use list-machines, for console output machine-logs. Starts nothing. An unknown name is NOT_FOUND with the names that look like it.",
		hints: hints{readOnly: true, idempotent: true, openWorld: true},
		in:    arguments(nameArgument()),
		out:   object(machineFields()...),
	}, (*call).get)
}

func (c *call) get(ctx context.Context, in getIn) (machine, error) {
	m, err := c.fleet.Get(ctx, in.Name)
	if err != nil {
		return machine{}, c.nearby(ctx, in.Name, err)
	}
	return c.showOne(ctx, m), nil
}
