package tools

import (
	"strconv"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// runOut is how a command stands, in the tools about commands.
type runOut struct {
	Stdout         string            `json:"stdout"`
	Stderr         string            `json:"stderr"`
	ExitCode       *int              `json:"exitCode"`
	TimedOut       bool              `json:"timedOut"`
	Running        bool              `json:"running"`
	CommandID      *string           `json:"commandId"`
	Signal         string            `json:"signal,omitempty"`
	Truncated      bool              `json:"truncated"`
	Overflow       []overflow        `json:"overflow"`
	StdoutBytes    int64             `json:"stdoutBytes"`
	StderrBytes    int64             `json:"stderrBytes"`
	Encoding       map[string]string `json:"encoding,omitempty"`
	DurationMs     int64             `json:"durationMs"`
	StartedMachine bool              `json:"startedMachine"`
	Note           string            `json:"note,omitempty"`
}

type overflow struct {
	Stream string `json:"stream"`
	Path   string `json:"path"`
	Bytes  int64  `json:"bytes"`
}

// outcomeFields are the result fields that say how a command stands.
func outcomeFields() []field {
	return []field{
		required("stdout", text("When long: head, exact gap, tail.")),
		required("stderr", text("")),
		required("exitCode", orNull("Integer; null while it runs, after a time-out, or when its end was not seen.")),
		required("timedOut", flag("")),
		required("running", flag("")),
		required("commandId", orNull("For read-command and stop-command, for a day; null when nothing is kept.")),
		optional("signal", text("As KILL.")),
		required("truncated", flag("See overflow.")),
		required("overflow", list("Streams with more than is here: stream, bytes, path of the guest file with all of it; empty when gone.", plainObject(""))),
		required("stdoutBytes", integer("")),
		required("stderrBytes", integer("")),
		optional("encoding", plainObject("Of streams that are no UTF-8: base64.")),
		required("durationMs", integer("")),
		optional("note", text("")),
	}
}

// alsoOutcome is a result that has the fields of run-command's, and these.
func alsoOutcome(fields ...field) *jsonschema.Schema {
	s := object(fields...)
	s.Description = "And the fields of run-command's result."
	return s
}

// outcome brings the ending of a job into a result that keeps to the budgets,
// with a link for each stream that is not complete in it.
func (c *call) outcome(name string, e ending) runOut {
	out := runOut{
		ExitCode: e.code, TimedOut: e.timedOut, Running: e.running, StartedMachine: e.started, Note: e.note, Overflow: []overflow{},
		StdoutBytes: e.outputs[0].bytes(), StderrBytes: e.outputs[1].bytes(), DurationMs: e.took.Milliseconds(),
	}
	if e.kept {
		out.CommandID = &e.id
	}
	if out.Signal = e.signal; e.code != nil {
		out.Signal = signalOf(*e.code)
	}
	// Standard error is seldom long and often the more telling: what it leaves is for standard output.
	chars := c.opts.Limits.payloadChars()
	stderr := e.outputs[1].shape(c.opts.Limits.MaxOutputBytes, chars/3)
	stdout := e.outputs[0].shape(c.opts.Limits.MaxOutputBytes, chars-jsonLen([]byte(stderr.text)))
	out.Stdout, out.Stderr = stdout.text, stderr.text
	for i, s := range []shaped{stdout, stderr} {
		if s.base64 {
			out.encode(i)
		}
		if s.truncated || e.outputs[i].cut {
			out.Truncated = true
			c.overflows(&out, name, streamNames[i], e.outputs[i])
		}
	}
	return out
}

// streamNames name the two outputs of a command.
var streamNames = [2]string{"stdout", "stderr"}

// encode says that a stream is base64.
func (out *runOut) encode(stream int) {
	if out.Encoding == nil {
		out.Encoding = map[string]string{}
	}
	out.Encoding[streamNames[stream]] = "base64"
}

func (c *call) overflows(out *runOut, name, stream string, o output) {
	out.Overflow = append(out.Overflow, overflow{Stream: stream, Path: o.path, Bytes: o.bytes()})
	if o.path != "" {
		c.links = append(c.links, &mcp.ResourceLink{URI: fileURI(c.fleet.Target(), name, o.path), Name: o.path, MIMEType: "application/octet-stream", Size: pointer(o.bytes())})
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
