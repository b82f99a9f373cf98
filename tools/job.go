package tools

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"smol-mcp/fleet"
)

// A job is a command with all that it needs.
type job struct {
	command commandLine
	env     map[string]string
	workdir string
	stdin   string
	timeout time.Duration // the guest kills it after this
	wait    time.Duration // how long the call waits for its end
	once    bool          // its machine goes with the call
}

// An ending is how a job stands when its call stops waiting.
type ending struct {
	id       string // of its files in the guest
	code     *int   // nil: running, killed, or not seen
	timedOut bool
	running  bool
	started  bool // the machine was started by it
	took     time.Duration
	outputs  [2]output // stdout, stderr
	note     string
}

// run runs a job with one request to the fleet, and more only when its output is
// long or its end was not seen.
func (c *call) run(ctx context.Context, name string, j job) (runOut, error) {
	if err := j.check(); err != nil {
		return runOut{}, err
	}
	id := randomName("", 12)
	e, err := c.attempt(ctx, name, id, j)
	if err != nil {
		return runOut{}, err
	}
	if j.once {
		e.outputs[0].path, e.outputs[1].path = "", "" // they go with the machine
	}
	out := c.outcome(name, e)
	if e.code != nil && !out.Truncated {
		c.finished.change(name, func(ids []string) []string { return append(ids, id) })
	}
	return out, nil
}

// Bounds of a command in bytes: each word, which Linux does not take longer, and all together,
// with room for the environment.
const (
	maxArgument = 120 << 10
	maxCommand  = 512 << 10
)

// check refuses what would fail in the guest in a way that tells nothing.
func (j job) check() error {
	total := 0
	for _, word := range j.command.argv {
		if total += len(word) + 1; total > maxCommand {
			return &fleet.Error{Code: fleet.CodeInvalid, Op: "run the command", Why: fmt.Sprintf("its words together have over %d bytes", maxCommand),
				Next: "put them into a file with write-file, or pass data as stdin"}
		}
		if len(word) > maxArgument {
			return &fleet.Error{Code: fleet.CodeInvalid, Op: "run the command", Why: fmt.Sprintf("a word of it has %d bytes, and Linux takes at most %d", len(word), maxArgument),
				Next: "put it into a file with write-file, or pass data as stdin"}
		}
	}
	if j.workdir != "" && !path.IsAbs(j.workdir) {
		return invalid("workdir "+fleet.Quote(j.workdir), "it is not absolute")
	}
	for name, value := range j.env {
		if !isVariable(name) || strings.ContainsRune(value, 0) {
			return invalid("environment variable "+fleet.Quote(name), "a name has letters, digits and _, does not begin with a digit, and is none that shells fix, as UID; a value has no NUL")
		}
	}
	return nil
}

// fixedByShells are variables that bash does not let be set, also when it is /bin/sh.
const fixedByShells = " UID EUID PPID BASHOPTS SHELLOPTS BASH_VERSINFO "

func isVariable(name string) bool {
	if strings.Contains(fixedByShells, " "+name+" ") {
		return false
	}
	for i, r := range name {
		if r != '_' && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (i == 0 || r < '0' || r > '9') {
			return false
		}
	}
	return name != "" && len(name) <= 240
}

// attempt sends the job and makes sense of what comes back.
func (c *call) attempt(ctx context.Context, name, id string, j job) (e ending, err error) {
	e, file := ending{id: id}, ""
	if len(j.stdin) > fleet.MaxStdin && !c.contacts.of(name).noShell {
		// The upload starts a machine that is off, so this is the moment to look.
		var ran bool
		if ran, err = c.runs(ctx, name); err != nil {
			return e, err
		}
		e.started = !ran
		file = "/tmp/.smol-mcp-" + id + ".in"
		if err = c.upload(ctx, name, file, j.stdin); err != nil {
			return e, err
		}
		defer func() {
			if err != nil && !fleet.MaybeDone(err) {
				c.dropUpload(ctx, name, file)
			}
		}()
	}
	cmd, args := j.request(id, file, c.opts.Limits.MaxOutputBytes+1, c.toRemove(name))
	c.stage("running the command in %s", name)
	begin := time.Now()
	r, err := c.dispatch(ctx, name, j, cmd, args)
	e.started = e.started || r.started
	if err == nil && r.word(0) == "nostdin" {
		// The upload went below a workload that came up after it; it is up now.
		if err := c.upload(ctx, name, file, j.stdin); err != nil {
			return e, err
		}
		r, err = c.dispatch(ctx, name, j, cmd, args)
	}
	e.took = time.Since(begin)
	switch {
	case errors.Is(err, errNoShell):
		return c.runDirect(ctx, name, j)
	case err != nil && r.result.ExitCode == exitTimeout && e.took >= j.timeout:
		e.timedOut = true // what it printed went with its shell
		return c.collected(ctx, name, e)
	case err != nil:
		return c.unseen(ctx, name, j, e, err)
	}
	return c.settle(ctx, name, j, e, r)
}

// request is the command that carries j, and the arguments of run.sh.
func (j job) request(id, file string, limit int, done string) (fleet.Command, []string) {
	cmd := fleet.Command{Env: map[string]string{}, Timeout: j.timeout}
	for k, v := range j.env {
		cmd.Env["SMOL_E_"+k] = v
	}
	if file == "" {
		cmd.Stdin = j.stdin
	}
	names := strings.Join(slices.Sorted(maps.Keys(j.env)), " ")
	return cmd, append([]string{id, strconv.Itoa(limit), j.workdir, file, names, done}, j.command.argv...)
}

// settle reads the answer of run.sh.
func (c *call) settle(ctx context.Context, name string, j job, e ending, r reply) (ending, error) {
	switch r.word(0) {
	case "stopped":
		return e, &fleet.Error{Code: fleet.CodeCancelled, Op: "run in machine " + name, Why: "it was stopped before it began"}
	case "noworkdir":
		return e, &fleet.Error{Code: fleet.CodeNotFound, Op: "run in " + fleet.Quote(j.workdir), Why: "it is no directory of the guest that can be entered", Next: "create it first, or leave workdir out"}
	case "raw":
		code := r.result.ExitCode
		if e.timedOut = code == exitTimeout && e.took >= j.timeout; !e.timedOut {
			e.code = &code
		}
		e.outputs = [2]output{all(r.stdout), all(r.stderr)}
		e.note = "the guest has no writable directory or no head program: output is kept only as far as the engine does"
		return e, nil
	case "exit":
		code, err := strconv.Atoi(r.word(1))
		if err != nil {
			return e, &fleet.Error{Code: fleet.CodeInternal, Op: "run in machine " + name, Why: "the guest gave no exit code: " + fleet.Quote(r.word(1))}
		}
		e.code = &code
		if ran, ok := uptimes(r.word(2), r.word(3)); ok {
			e.took = ran
		}
		if r.word(4) == "lost" {
			e.note = "files with its output were removed while it ran, so what it printed is not known"
		}
		e.outputs = [2]output{all(r.stdout), all(r.stderr)}
		if most := c.opts.Limits.MaxOutputBytes; len(r.stdout) <= most && len(r.stderr) <= most {
			return c.withPaths(e, r.dir), nil
		}
		return c.collected(ctx, name, e)
	}
	// The shell itself was killed: by the guest's timeout, or by the command.
	e.timedOut = r.result.ExitCode == exitTimeout
	if !e.timedOut {
		e.note = "its shell was killed before it could write the exit code down"
	}
	return c.collected(ctx, name, e)
}

// exitTimeout is the exit code with which fleets report their timeout.
const exitTimeout = 124

// runDirect runs a program in a guest without a shell: within the fleet's own
// limits, and with no files.
func (c *call) runDirect(ctx context.Context, name string, j job) (ending, error) {
	if j.command.shell {
		return ending{}, &fleet.Error{Code: fleet.CodeUnsupported, Op: "run in machine " + name, Why: "the image has no /bin/sh", Next: `pass command as a list, as ["/app/tool", "--version"]`}
	}
	if len(j.stdin) > fleet.MaxStdin {
		return ending{}, &fleet.Error{Code: fleet.CodeUnsupported, Op: "run in machine " + name, Why: "the image has no /bin/sh, and stdin is over 32 KiB", Next: "write the input with write-file and name it in the command"}
	}
	begin := time.Now()
	res, err := c.fleet.Exec(ctx, name, fleet.Command{Argv: j.command.argv, Env: j.env, Workdir: j.workdir, Stdin: j.stdin, Timeout: j.timeout})
	if err != nil {
		return ending{}, err
	}
	e := ending{took: time.Since(begin), outputs: [2]output{all(res.Stdout), all(res.Stderr)},
		note: "the image has no /bin/sh: the engine ran the command itself and keeps no more output than it returned"}
	if res.ExitCode == exitTimeout && e.took >= j.timeout {
		e.timedOut = true
		return e, nil
	}
	e.code = &res.ExitCode
	return e, nil
}

func (c *call) upload(ctx context.Context, name, file, content string) error {
	return c.fleet.Upload(ctx, name, file, strings.NewReader(content), int64(len(content)))
}

// uptimes is the time between two first words of /proc/uptime.
func uptimes(begin, end string) (time.Duration, bool) {
	b, err1 := strconv.ParseFloat(begin, 64)
	e, err2 := strconv.ParseFloat(end, 64)
	if err1 != nil || err2 != nil || e < b {
		return 0, false
	}
	return time.Duration((e - b) * float64(time.Second)), true
}

// doneAtOnce is how many commands' files are left in a machine before the next
// command there removes them, since that takes a process.
const doneAtOnce = 16

// toRemove returns the ids of commands whose files are not needed any more, once
// there are enough of them.
func (c *call) toRemove(machine string) string {
	if len(c.finished.of(machine)) < doneAtOnce {
		return ""
	}
	return strings.Join(c.finished.take(machine), " ")
}
