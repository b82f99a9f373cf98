package tools

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/jsonschema-go/jsonschema"

	"smol-mcp/fleet"
)

type runIn struct {
	Name        string            `json:"name"`
	Command     commandLine       `json:"command"`
	TimeoutSecs int               `json:"timeoutSecs"`
	WaitSecs    *int              `json:"waitSecs"`
	Workdir     string            `json:"workdir"`
	Env         map[string]string `json:"env"`
	Stdin       string            `json:"stdin"`
}

// runOut is how a command stands, in run-command and run-once.
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

// commandLine is a line for the shell, or a program with its arguments.
type commandLine struct {
	argv  []string
	shell bool
}

// UnmarshalJSON takes a string or a list of strings.
func (c *commandLine) UnmarshalJSON(b []byte) error {
	var line string
	if json.Unmarshal(b, &line) == nil {
		*c = commandLine{argv: []string{"/bin/sh", "-c", line}, shell: true}
		return nil
	}
	return json.Unmarshal(b, &c.argv)
}

// commandArguments are the arguments that say what to run.
func commandArguments(l Limits) []field {
	command := &jsonschema.Schema{
		Description: `A line for the shell, as "ls | wc -l", or program and arguments, passed as they are, as ["git", "status"].`,
		AnyOf: []*jsonschema.Schema{
			{Type: "string", MinLength: jsonschema.Ptr(1)},
			{Type: "array", Items: &jsonschema.Schema{Type: "string"}, MinItems: jsonschema.Ptr(1)},
		},
	}
	return []field{
		required("command", command),
		optional("timeoutSecs", between(fmt.Sprintf("Seconds after which it is killed, 1 to %d. Default: %d.", l.MaxExecTimeout/time.Second, l.ExecTimeout/time.Second), 1, longestTimeout)),
		optional("workdir", text("Absolute guest directory to run in. Default: the image's.")),
		optional("env", dict("Environment to add: name to value.")),
		optional("stdin", text("Standard input, up to 10 MiB. Default: empty; there is no terminal.")),
	}
}

// outcomeFields are the result fields that say how a command stands.
func outcomeFields() []field {
	return []field{
		required("stdout", text("When long: head, a line with the exact gap, tail.")),
		required("stderr", text("The same way.")),
		required("exitCode", orNull("Integer; null while it runs, after a time-out, or when its end was not seen.")),
		required("timedOut", flag("Killed after timeoutSecs.")),
		required("running", flag("")),
		required("commandId", orNull("Of a running command, else null.")),
		optional("signal", text("As KILL.")),
		required("truncated", flag("See overflow.")),
		required("overflow", list("Streams with more than is here.", object(
			required("stream", oneOf("", "stdout", "stderr")),
			required("path", text("Guest file with all of it; empty when gone.")),
			required("bytes", integer(""))))),
		required("stdoutBytes", integer("")),
		required("stderrBytes", integer("")),
		optional("encoding", plainObject("Streams that are no UTF-8, as {\"stdout\": \"base64\"}.")),
		required("durationMs", integer("")),
		optional("note", text("What else to know.")),
	}
}

func startedField() field {
	return required("startedMachine", flag("It had been off: processes and /tmp are new."))
}

func runCommand(l Limits) tool {
	in := append([]field{nameArgument()}, commandArguments(l)...)
	in = append(in, optional("waitSecs", between(fmt.Sprintf("Seconds to wait for its end, 0 to 300; then the call answers running: true. Default: %d. Keep it under your client's limit.", l.Wait/time.Second), 0, 300)))
	return define(tool{
		name:  "run-command",
		title: "Run command",
		description: "Runs a command in a machine and returns exit code, stdout and stderr. Use it for anything a shell does; read-file and write-file are exact for files, " +
			"run-once needs no machine. A failing command is a normal result, so check exitCode. One that is not over after waitSecs goes on until timeoutSecs kills it: the result has running: true, what it printed so far, and in overflow the files it goes on writing. To keep a server up: nohup CMD >FILE 2>&1 &. " +
			"Each call is a new process: cd and variables do not carry over. A stopped machine is started first. Several may run at once. Cancelling the call stops the command with all it started.",
		hints: hints{destructive: true, openWorld: true},
		in:    arguments(in...),
		out:   object(append(outcomeFields(), startedField())...),
	}, (*call).runNamed)
}

func (c *call) runNamed(ctx context.Context, in runIn) (runOut, error) {
	timeout, err := c.timeout(in.TimeoutSecs)
	if err != nil {
		return runOut{}, err
	}
	wait := c.opts.Limits.Wait
	if in.WaitSecs != nil {
		wait = time.Duration(*in.WaitSecs) * time.Second
	}
	out, err := c.run(ctx, in.Name, job{command: in.Command, env: in.Env, workdir: in.Workdir, stdin: in.Stdin, timeout: timeout, wait: wait})
	return out, c.nearby(ctx, in.Name, err)
}

// longestTimeout bounds timeoutSecs in the schema: over the ceiling of the settings
// the answer is TIMEOUT_TOO_LONG, which says what to do instead.
const longestTimeout = 24 * 3600

// timeout is the time that a command gets.
func (c *call) timeout(secs int) (time.Duration, error) {
	if secs == 0 {
		return c.opts.Limits.ExecTimeout, nil
	}
	d := time.Duration(secs) * time.Second
	if most := c.opts.Limits.MaxExecTimeout; d > most {
		return 0, &fleet.Error{Code: fleet.CodeTimeoutTooLong, Op: "timeoutSecs " + d.String(), Why: "the ceiling is " + most.String() + " (SMOL_MCP_MAX_EXEC_TIMEOUT_SECS)",
			Next: "pass at most that, or start the program in the background with nohup and look at its output later"}
	}
	return d, nil
}
