package tools

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"smol-mcp/fleet"
)

// A job is a command with all that it needs. It runs in the guest on its own: its
// output is in files there, a shell waits there for its end and writes it down,
// and another ends it when its time is over. See guest/run.sh.
type job struct {
	command    commandLine
	env        map[string]string
	workdir    string
	stdin      string
	timeout    time.Duration // the guest ends it after this
	wait       time.Duration // how long the call waits for its end
	background bool          // the end of the call is not the user's wish to stop it
	once       bool          // its machine goes with the call
}

// An ending is how a job stands when its call stops waiting.
type ending struct {
	id       string // of its files in the guest
	kept     bool   // there are such files
	code     *int   // nil: running, out of time, or not seen
	signal   string // that ended it, where the code does not say
	timedOut bool
	running  bool
	started  bool // the machine was started by it
	took     time.Duration
	outputs  [2]output // stdout, stderr
	note     string
}

// run runs a job with one request to the fleet when it is over within attachedFor,
// and more when it takes longer, when its output is long, or its end was not seen.
func (c *call) run(ctx context.Context, name string, j job) (runOut, error) {
	if err := j.check(); err != nil {
		return runOut{}, err
	}
	e, err := c.attempt(ctx, name, ending{id: randomName("", idLength)}, j)
	if err != nil {
		return runOut{}, err
	}
	if j.once {
		e.kept, e.outputs[0].path, e.outputs[1].path = false, "", "" // they go with the machine
	}
	out := c.outcome(name, e)
	switch {
	case e.running:
		c.noteStanding(name, e, j.timeout-e.took)
	case e.code != nil && !out.Truncated:
		c.finished.change(name, func(ids []string) []string { return append(ids, e.id) })
	}
	return out, nil
}

// An id of a command has so many of these; run.sh halves it.
const (
	idLength  = 12
	idLetters = "abcdefghijklmnopqrstuvwxyz0123456789"
)

// Bounds of a command in bytes: each word, which Linux does not take longer, and all together,
// with room for the environment.
const (
	maxArgument = 120 << 10
	maxCommand  = 512 << 10
	maxInput    = 10 << 20 // of its standard input
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
	if len(j.stdin) > maxInput {
		return &fleet.Error{Code: fleet.CodeInvalid, Op: "run the command", Why: fmt.Sprintf("stdin has %d bytes, and at most %d are taken", len(j.stdin), maxInput),
			Next: "write it in parts with write-file, append true, and let the command read the file"}
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

// attempt starts the job and makes sense of what comes back.
func (c *call) attempt(ctx context.Context, name string, e ending, j job) (ending, error) {
	if c.contacts.of(name).noShell {
		return c.runDirect(ctx, name, j, errNoShell)
	}
	file, err := c.feed(ctx, name, &e, j)
	if err != nil {
		return e, err
	}
	c.stage("running the command in %s", name)
	begin := time.Now()
	r, err := c.begin(ctx, name, file, e.id, j)
	err = j.ownNames(err)
	e.started = e.started || r.started
	e.took = time.Since(begin)
	if err != nil && file != "" && !fleet.MaybeDone(err) && !errors.Is(err, errUnderway) {
		c.dropUpload(ctx, name, file)
	}
	switch {
	case errors.Is(err, errNoShell), errors.Is(err, errNoFiles):
		return c.runDirect(ctx, name, j, err)
	case err == nil && r.word(0) == "exit":
		return c.settle(ctx, name, e, r)
	case err == nil && (r.word(0) == "lost" || r.word(0) == ""):
		return c.follow(ctx, name, j, e, begin, nil)
	case err == nil:
		if file != "" { // nothing has read it
			c.dropUpload(ctx, name, file)
		}
		return e, refusedByGuest(name, j, r.word(0))
	case !fleet.MaybeDone(err) && !errors.Is(err, errUnderway):
		return e, err // it never reached the guest
	}
	return c.follow(ctx, name, j, e, begin, err)
}

// feed uploads an input that is too long for the request, and returns where it is.
func (c *call) feed(ctx context.Context, name string, e *ending, j job) (file string, err error) {
	if len(j.stdin) <= fleet.MaxStdin {
		return "", nil
	}
	// The upload starts a machine that is off, so this is the moment to look.
	ran, err := c.runs(ctx, name)
	if err != nil {
		return "", err
	}
	e.started = !ran
	file = "/tmp/.smol-mcp-" + e.id + ".in"
	if dir := c.contacts.of(name).dir; dir != "" {
		file = dir + "/" + e.id + ".stdin" // whoever runs the command may remove it there
	}
	return file, c.upload(ctx, name, file, j.stdin)
}

// refusedByGuest is the error for what run.sh said instead of beginning.
func refusedByGuest(name string, j job, word string) error {
	switch word {
	case "stopped":
		return &fleet.Error{Code: fleet.CodeCancelled, Op: "run in machine " + name, Why: "it was stopped before it began"}
	case "noworkdir":
		return &fleet.Error{Code: fleet.CodeNotFound, Op: "run in " + fleet.Quote(j.workdir), Why: "it is no directory of the guest that can be entered", Next: "create it first, or leave workdir out"}
	}
	return &fleet.Error{Code: fleet.CodeInternal, Op: "run in machine " + name, Why: "the guest answered " + fleet.Quote(word) + ", and the command did not begin"}
}

// settle reads the answer of a job that ended while its request was open.
func (c *call) settle(ctx context.Context, name string, e ending, r reply) (ending, error) {
	e.kept = true
	s := standing{state: "exit", flag: r.word(4), why: r.word(5)}
	code, err := strconv.Atoi(r.word(1))
	if err != nil {
		return e, &fleet.Error{Code: fleet.CodeInternal, Op: "run in machine " + name, Why: "the guest gave no exit code: " + fleet.Quote(r.word(1))}
	}
	s.code = code
	if ran, ok := uptimes(r.word(2), r.word(3)); ok {
		e.took = ran
	}
	e = e.stands(s)
	most := c.opts.Limits.MaxOutputBytes
	if !r.whole || len(r.stdout) > most || len(r.stderr) > most {
		return c.collected(ctx, name, e)
	}
	e.outputs = [2]output{all(r.stdout), all(r.stderr)}
	return e.withPaths(r.dir + "/" + e.id), nil
}

// exitTimeout is the exit code with which fleets report their timeout.
const exitTimeout = 124

// runDirect runs a program in a guest without a shell, or without a place for
// files: within the fleet's own limits, and to its end.
func (c *call) runDirect(ctx context.Context, name string, j job, cause error) (ending, error) {
	why := cause.Error()
	unsupported := &fleet.Error{Code: fleet.CodeUnsupported, Op: "run in machine " + name, Why: why}
	switch {
	case j.command.shell && errors.Is(cause, errNoShell):
		unsupported.Next = `pass command as a list, as ["/app/tool", "--version"]`
		return ending{}, unsupported
	case j.background:
		unsupported.Why += ", so nothing could be told of a command in the background"
		unsupported.Next = "run it without background"
		return ending{}, unsupported
	case len(j.stdin) > fleet.MaxStdin:
		unsupported.Why += ", and stdin is over 32 KiB"
		unsupported.Next = "write the input with write-file and name it in the command"
		return ending{}, unsupported
	}
	begin := time.Now()
	res, err := c.fleet.Exec(ctx, name, fleet.Command{Argv: j.command.argv, Env: j.env, Workdir: j.workdir, Stdin: j.stdin, Timeout: j.timeout})
	if err != nil {
		return ending{}, err
	}
	e := ending{took: time.Since(begin), outputs: [2]output{all(res.Stdout), all(res.Stderr)},
		note: why + ": the engine ran the command itself, to its end, and keeps no more output than it returned"}
	for i, cut := range []bool{res.StdoutTruncated, res.StderrTruncated} {
		if e.outputs[i].cut = cut; cut {
			e.say(fmt.Sprintf("it dropped what %s had after %d bytes, which is lost", streamNames[i], e.outputs[i].total))
		}
	}
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

// Of the commands that were told in full the files of some stay, for who asks again;
// of the rest they are removed some at a time, since that takes a process.
const (
	doneKept   = 32
	doneAtOnce = 16
)

// toRemove returns the ids of commands whose files are not needed any more, once
// there are enough of them; for a machine that this session has not met yet "-",
// which removes those of long ago.
func (c *call) toRemove(machine string) string {
	var ids []string
	c.finished.change(machine, func(all []string) []string {
		if len(all) < doneKept+doneAtOnce {
			return all
		}
		ids = all[:doneAtOnce]
		return slices.Clone(all[doneAtOnce:])
	})
	if ids == nil && !c.contacts.of(machine).met {
		return "-"
	}
	return strings.Join(ids, " ")
}
