package tools

import (
	"strconv"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// outcome brings the ending of a job into a result that keeps to the budgets,
// with a link for each stream that is not complete in it.
func (c *call) outcome(name string, e ending) runOut {
	out := runOut{
		ExitCode: e.code, TimedOut: e.timedOut, Running: e.running, StartedMachine: e.started, Note: e.note, Overflow: []overflow{},
		StdoutBytes: e.outputs[0].total, StderrBytes: e.outputs[1].total, DurationMs: e.took.Milliseconds(),
	}
	if e.running {
		out.CommandID = &e.id
	}
	if e.code != nil {
		out.Signal = signalOf(*e.code)
	}
	// Standard error is seldom long and often the more telling: what it leaves is for standard output.
	chars := c.opts.Limits.payloadChars()
	stderr := e.outputs[1].shape(c.opts.Limits.MaxOutputBytes, chars/3)
	stdout := e.outputs[0].shape(c.opts.Limits.MaxOutputBytes, chars-jsonLen([]byte(stderr.text)))
	out.Stdout, out.Stderr = stdout.text, stderr.text
	for i, s := range []shaped{stdout, stderr} {
		stream := []string{"stdout", "stderr"}[i]
		if s.base64 {
			if out.Encoding == nil {
				out.Encoding = map[string]string{}
			}
			out.Encoding[stream] = "base64"
		}
		if s.truncated || e.running && e.outputs[i].path != "" {
			out.Truncated = out.Truncated || s.truncated
			c.overflows(&out, name, stream, e.outputs[i])
		}
	}
	return out
}

func (c *call) overflows(out *runOut, name, stream string, o output) {
	out.Overflow = append(out.Overflow, overflow{Stream: stream, Path: o.path, Bytes: o.total})
	if o.path != "" {
		c.links = append(c.links, &mcp.ResourceLink{URI: fileURI(c.fleet.Target(), name, o.path), Name: o.path, MIMEType: "application/octet-stream", Size: &o.total})
	}
}

// signalNames are the signals that end programs, by their number on Linux.
var signalNames = map[int]string{
	1: "HUP", 2: "INT", 3: "QUIT", 4: "ILL", 5: "TRAP", 6: "ABRT", 7: "BUS", 8: "FPE", 9: "KILL",
	10: "USR1", 11: "SEGV", 12: "USR2", 13: "PIPE", 14: "ALRM", 15: "TERM", 24: "XCPU", 25: "XFSZ", 31: "SYS",
}

// signalOf names the signal that a shell reports with an exit code over 128.
func signalOf(code int) string {
	if code <= 128 || code > 128+64 {
		return ""
	}
	if name, ok := signalNames[code-128]; ok {
		return name
	}
	return strconv.Itoa(code - 128)
}
