package tools

import (
	"context"
	"fmt"
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
		description: "Reads the newest lines of a machine's console: boot messages and the engine's own, not the output of commands, which run-command returns. Use it when a machine does not start, is not ready or is unreachable. " +
			"One snapshot, oldest line first; to see only what came since, pass the cursor of the last answer. truncated: lines are missing, since not all fit or the log was rotated. Reads only and starts nothing.",
		hints: hints{readOnly: true, idempotent: true, openWorld: true},
		in: arguments(nameArgument(),
			optional("tail", between(fmt.Sprintf("How many lines from the end, 1 to 10000. Default: %d. With a cursor: how many when its place is lost.", l.LogsTail), 1, 10000)),
			optional("cursor", text("The cursor of an earlier answer for this machine."))),
		out: object(
			required("lines", list("Oldest first.", text(""))),
			required("cursor", text("Pass it to the next call.")),
			required("truncated", flag("Lines before or between these are missing.")),
		),
	}, (*call).logs)
}

func (c *call) logs(ctx context.Context, in logsIn) (logsOut, error) {
	tail := in.Tail
	if tail == 0 {
		tail = c.opts.Limits.LogsTail
	}
	page, err := c.fleet.Logs(ctx, in.Name, in.Cursor, tail)
	if err != nil {
		return logsOut{}, c.nearby(ctx, in.Name, err)
	}
	lines, cut := newest(page.Lines, c.opts.Limits.MaxOutputBytes)
	return logsOut{Lines: lines, Cursor: page.Cursor, Truncated: cut || page.Gap}, nil
}

// newest returns the last lines that fit into budget bytes, and whether any was
// left out or cut. A line that alone is larger is cut and marked, never dropped.
func newest(lines []string, budget int) (kept []string, cut bool) {
	first, left := len(lines), budget
	for first > 0 && len(lines[first-1])+1 <= left {
		first--
		left -= len(lines[first]) + 1
	}
	if first == len(lines) && first > 0 {
		line := lines[first-1]
		head := runeCut([]byte(line), max(0, budget-64))
		return []string{fmt.Sprintf("%s [%d more bytes of this line left out]", line[:head], len(line)-head)}, true
	}
	return append([]string{}, lines[first:]...), first > 0
}
