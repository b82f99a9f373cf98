package tools

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"smol-mcp/fleet"
)

type logsIn struct {
	Name   string `json:"name"`
	Tail   int    `json:"tail"`
	Cursor string `json:"cursor"`
}

type logsOut struct {
	Lines     []string `json:"lines"`
	Cursor    string   `json:"cursor"`
	Truncated bool     `json:"truncated"`
}

func machineLogs(l Limits) tool {
	return define(tool{
		name:  "machine-logs",
		title: "Read console log",
		description: "Reads the newest lines of a machine's console: boot messages and the engine's own, not what commands print (read-command). Use it when a machine does not start, is not ready or is unreachable. " +
			"Oldest line first; for what came since, pass the cursor of the last answer. truncated: with a cursor the next call brings the lines that did not fit, else the log was rotated or the machine replaced. Starts nothing.",
		hints: hints{readOnly: true, idempotent: true, openWorld: true},
		in: arguments(nameArgument(),
			optional("tail", between(fmt.Sprintf("Lines from the end. Default: %d. With a cursor: when its place is lost.", l.LogsTail), 1, 10000)),
			optional("cursor", text("Of an earlier answer for this machine."))),
		out: object(
			required("lines", list("Oldest first.", text(""))),
			required("cursor", text("For the next call.")),
			required("truncated", flag("Lines are missing.")),
		),
	}, (*call).logs)
}

func (c *call) logs(ctx context.Context, in logsIn) (logsOut, error) {
	tail := in.Tail
	if tail == 0 {
		tail = c.opts.Limits.LogsTail
	}
	m, err := c.fleet.Get(ctx, in.Name)
	if err != nil {
		return logsOut{}, c.nearby(ctx, in.Name, err)
	}
	// A cursor carries when its machine was made, so that a machine which took
	// the place of another is noticed even when its console looks the same.
	made := strconv.FormatInt(m.CreatedAt.Unix(), 36)
	of, cursor, _ := strings.Cut(in.Cursor, ".")
	replaced := in.Cursor != "" && of != made
	if replaced {
		cursor = ""
	}
	page, err := c.fleet.Logs(ctx, in.Name, fleet.LogQuery{Cursor: cursor, Tail: tail, MaxBytes: min(c.opts.Limits.MaxOutputBytes, c.opts.Limits.payloadChars())})
	if err != nil {
		return logsOut{}, err
	}
	return logsOut{Lines: append([]string{}, page.Lines...), Cursor: made + "." + page.Cursor, Truncated: page.More || page.Gap || replaced}, nil
}
