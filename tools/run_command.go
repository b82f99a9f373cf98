package tools

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/google/jsonschema-go/jsonschema"

	"smol-mcp/fleet"
)

type runIn struct {
	Name        string            `json:"name"`
	Command     commandLine       `json:"command"`
	TimeoutSecs int               `json:"timeoutSecs"`
	WaitSecs    *int              `json:"waitSecs"`
	Background  bool              `json:"background"`
	Workdir     string            `json:"workdir"`
	Env         map[string]string `json:"env"`
	Stdin       string            `json:"stdin"`
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
		if strings.HasPrefix(line, "-") || strings.HasPrefix(line, "+") {
			line = " " + line // else the shell takes it for its own options
		}
		*c = commandLine{argv: []string{"/bin/sh", "-c", line}, shell: true}
		return nil
	}
	return json.Unmarshal(b, &c.argv)
}

// shownLength bounds in bytes what lists show of a command.
const shownLength = 200

// shown is the command in one line, as lists show it.
func (c commandLine) shown() string {
	words := c.argv
	if c.shell {
		words = words[2:]
	}
	line := strings.Join(strings.Fields(strings.Join(words, " ")), " ")
	return fleet.Bound(strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return '?'
		}
		return r
	}, line), shownLength)
}

// commandArguments are the arguments that say what to run. brief leaves to
// run-command what it says of them.
func commandArguments(l Limits, brief bool) []field {
	say := func(what string) string {
		if brief {
			return "As for run-command."
		}
		return what
	}
	command := &jsonschema.Schema{
		Description: say(`A line for the shell, as "ls | wc -l", or program and arguments as they are, as ["git", "status"].`),
		AnyOf: []*jsonschema.Schema{
			{Type: "string", MinLength: jsonschema.Ptr(1)},
			{Type: "array", Items: &jsonschema.Schema{Type: "string"}, MinItems: jsonschema.Ptr(1)},
		},
	}
	limits := fmt.Sprintf("at most %d. Default: %d.", l.MaxExecTimeout/time.Second, l.ExecTimeout/time.Second)
	if !brief {
		limits += fmt.Sprintf(" With background both are %d.", longestTimeout)
	}
	return []field{
		required("command", command),
		optional("timeoutSecs", between("Seconds until it is killed, "+limits, 1, longestTimeout)),
		optional("workdir", text(say("Absolute guest directory to run in. Default: the image's."))),
		optional("env", dict(say("Environment to add: name to value."))),
		optional("stdin", text(say("Standard input, up to 10 MiB. Default: empty; there is no terminal."))),
	}
}

func startedField() field {
	return required("startedMachine", flag("It had been off: processes and /tmp are new."))
}

func runCommand(l Limits) tool {
	in := append([]field{nameArgument()}, commandArguments(l, false)...)
	in = append(in,
		optional("waitSecs", between(fmt.Sprintf("Seconds to wait for its end. Default: %d; with background %d. Keep it under your client's limit.", l.Wait/time.Second, backgroundWait/time.Second), 0, 300)),
		optional("background", standard(flag("To run on by itself: for up to 24 h, and untouched when the call is cancelled."), false)))
	return define(tool{
		name:  "run-command",
		title: "Run command",
		description: "Runs a command in a machine and returns exit code, stdout and stderr. Use it for anything a shell does; read-file and write-file are exact for files, " +
			"run-once needs no machine. A failing command is a normal result, so check exitCode. One that outlasts waitSecs goes on until timeoutSecs, whatever becomes of the client: the result has running: true and what it printed so far; " +
			"read-command gives the rest, stop-command ends it. For servers and long runs use background. " +
			"Each call is a new process: cd and variables do not carry over. A stopped machine is started first. Many may run at once. Cancelling the call stops the command with all it started.",
		hints: hints{destructive: true, openWorld: true},
		in:    arguments(in...),
		out:   object(append(outcomeFields(), startedField())...),
	}, (*call).runNamed)
}

// backgroundWait is how long a command in the background is waited for by default:
// enough to see one that fails at once.
const backgroundWait = time.Second

func (c *call) runNamed(ctx context.Context, in runIn) (runOut, error) {
	timeout, err := c.timeout(in.TimeoutSecs, in.Background)
	if err != nil {
		return runOut{}, err
	}
	wait := c.opts.Limits.Wait
	if in.Background {
		wait = min(wait, backgroundWait)
	}
	if in.WaitSecs != nil {
		wait = time.Duration(*in.WaitSecs) * time.Second
	}
	out, err := c.run(ctx, in.Name, job{command: in.Command, env: in.Env, workdir: in.Workdir, stdin: in.Stdin, timeout: timeout, wait: wait, background: in.Background})
	return out, c.nearby(ctx, in.Name, err)
}

// longestTimeout bounds timeoutSecs in the schema, and is what commands in the background
// get: over the ceiling of the settings the answer is TIMEOUT_TOO_LONG, which says what
// to do instead.
const longestTimeout = 24 * 3600

// timeout is the time that a command gets.
func (c *call) timeout(secs int, background bool) (time.Duration, error) {
	switch {
	case secs == 0 && background:
		return longestTimeout * time.Second, nil
	case secs == 0:
		return c.opts.Limits.ExecTimeout, nil
	}
	d := time.Duration(secs) * time.Second
	if most := c.opts.Limits.MaxExecTimeout; d > most && !background {
		return 0, &fleet.Error{Code: fleet.CodeTimeoutTooLong, Op: "timeoutSecs " + d.String(), Why: "the ceiling is " + most.String() + " (SMOL_MCP_MAX_EXEC_TIMEOUT_SECS)",
			Next: "pass at most that, or use run-command with background true, which allows 24 hours"}
	}
	return d, nil
}
