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
	"sync"
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

// shortestWait is what it takes to have the command under way on a busy computer.
const shortestWait = time.Second

var errWaitOver = errors.New("the wait for the command is over")

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
		c.jobs.finished(name, id)
	}
	return out, nil
}

// maxArgument bounds each word of a command in bytes: Linux takes no longer ones.
const maxArgument = 120 << 10

// check refuses what would fail in the guest in a way that tells nothing.
func (j job) check() error {
	for _, word := range j.command.argv {
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
			return invalid("environment variable "+fleet.Quote(name), "a name has letters, digits and _ and does not begin with a digit; a value has no NUL")
		}
	}
	return nil
}

func isVariable(name string) bool {
	for i, r := range name {
		if r != '_' && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (i == 0 || r < '0' || r > '9') {
			return false
		}
	}
	return name != "" && len(name) <= 240
}

// attempt sends the job and makes sense of what comes back.
func (c *call) attempt(ctx context.Context, name, id string, j job) (ending, error) {
	e := ending{id: id}
	file, err := "", error(nil)
	if len(j.stdin) > fleet.MaxStdin && !c.contacts.lacksShell(name) {
		// The upload starts a machine that is off, so this is the moment to look.
		ran, err := c.runs(ctx, name)
		if err != nil {
			return e, err
		}
		e.started = !ran
		file = "/tmp/.smol-mcp-" + id + ".in"
		if err := c.upload(ctx, name, file, j.stdin); err != nil {
			return e, err
		}
	}
	cmd, args := j.request(id, file, c.opts.Limits.MaxOutputBytes+1, c.jobs.takeDone(name))
	c.stage("running the command in %s", name)
	begin := time.Now()
	waiting, cancel := context.WithTimeoutCause(ctx, j.patience(), errWaitOver)
	defer cancel()
	r, err := c.inGuest(waiting, name, scripts.run(), cmd, args...)
	e.started = e.started || r.started
	if err == nil && r.word(0) == "nostdin" {
		// The upload went below a workload that came up after it; it is up now.
		if err := c.upload(ctx, name, file, j.stdin); err != nil {
			return e, err
		}
		r, err = c.inGuest(waiting, name, scripts.run(), cmd, args...)
	}
	e.took = time.Since(begin)
	switch {
	case errors.Is(err, errNoShell):
		return c.runDirect(ctx, name, j)
	case err != nil && r.result.ExitCode == exitTimeout && e.took >= j.timeout:
		e.timedOut = true // what it printed went with its shell
		return c.collected(ctx, name, e)
	case err != nil:
		return c.unseen(ctx, waiting, name, j, e, err)
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

// patience is how long the call waits for an answer. Who waits as long as the
// command may run also waits to hear that it was killed.
func (j job) patience() time.Duration {
	if j.wait >= j.timeout {
		return j.timeout + execMargin
	}
	return max(j.wait, shortestWait)
}

// settle reads the answer of run.sh.
func (c *call) settle(ctx context.Context, name string, j job, e ending, r reply) (ending, error) {
	switch r.word(0) {
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
		e.outputs = [2]output{all(r.stdout), all(r.stderr)}
		if most := c.opts.Limits.MaxOutputBytes; len(r.stdout) <= most && len(r.stderr) <= most {
			return c.withPaths(e, r.dir), nil
		}
		return c.collected(ctx, name, e)
	}
	// The shell itself was killed: by the guest's timeout, or by the command.
	e.timedOut = r.result.ExitCode == exitTimeout
	if !e.timedOut {
		e.note = "the command ended its own shell, so its exit code was not seen"
	}
	return c.collected(ctx, name, e)
}

// exitTimeout is the exit code with which fleets report their timeout.
const exitTimeout = 124

// unseen decides what became of a job when the answer did not come.
func (c *call) unseen(ctx, waiting context.Context, name string, j job, e ending, err error) (ending, error) {
	switch {
	case ctx.Err() != nil:
		why := "the client or the session is gone; the command goes on"
		if stopWanted(ctx) {
			why = "the call was cancelled; the command is being stopped"
			c.background(ctx, stopTimeout, func(ctx context.Context) { c.stop(ctx, name, e.id) })
		}
		return e, &fleet.Error{Code: fleet.CodeCancelled, Op: "run in machine " + name, Why: why, Err: context.Cause(ctx)}
	case !fleet.MaybeDone(err):
		return e, err // it never reached the guest
	}
	note := "it goes on in the guest until its timeoutSecs are over"
	if !errors.Is(context.Cause(waiting), errWaitOver) {
		note = "the connection was lost (" + fleet.Bound(explain(err).Why, 200) + "), and the command goes on in the guest"
	}
	for pause := time.Second; ; pause = min(2*pause, 10*time.Second) {
		begun, collectErr := false, error(nil)
		e, begun, collectErr = c.collect(ctx, name, e)
		switch {
		case collectErr != nil && !j.once:
			return e, collectErr
		case collectErr == nil && !begun:
			return e, err // nothing shows that it ever ran
		case e.code != nil:
			return e, nil
		case e.took >= j.timeout+execMargin:
			e.timedOut, e.note = true, "the engine did not say that it was killed"
			return e, nil
		case !j.once:
			e.running = true
			e.note = note + "; when it ends, its exit code will be in " + strings.TrimSuffix(e.outputs[0].path, ".out") + ".rc"
			return e, nil
		}
		// The machine goes with the call, so the call waits for the end.
		select {
		case <-time.After(pause):
			e.took += pause
		case <-ctx.Done():
			return e, &fleet.Error{Code: fleet.CodeCancelled, Op: "run in machine " + name, Why: "the call was cancelled", Err: context.Cause(ctx)}
		}
	}
}

// collect asks the guest how a job stands and for both ends of its output. begun is
// false when the guest does not know the job.
func (c *call) collect(ctx context.Context, name string, e ending) (_ ending, begun bool, err error) {
	most := c.opts.Limits.MaxOutputBytes
	head, tail := most*2/3, most/3
	r, err := c.inGuest(ctx, name, scripts.collect(), fleet.Command{Timeout: scriptTimeout}, e.id, strconv.Itoa(head), strconv.Itoa(tail))
	if err != nil {
		return e, false, err
	}
	outBytes, err1 := strconv.ParseInt(r.word(1), 10, 64)
	errBytes, err2 := strconv.ParseInt(r.word(2), 10, 64)
	if err1 != nil || err2 != nil {
		return e, false, nil
	}
	if code, err := strconv.Atoi(r.word(0)); err == nil && !e.timedOut {
		e.code = &code
	}
	e.outputs = [2]output{ends(r.stdout, outBytes, head), ends(r.stderr, errBytes, head)}
	return c.withPaths(e, r.dir), true, nil
}

// collected is collect for a job that has ended.
func (c *call) collected(ctx context.Context, name string, e ending) (ending, error) {
	e, begun, err := c.collect(ctx, name, e)
	if err == nil && !begun {
		e.note = strings.TrimPrefix(e.note+"; what it printed is not to be found in the guest", "; ")
	}
	return e, err
}

// withPaths names the guest files of the outputs.
func (c *call) withPaths(e ending, dir string) ending {
	e.outputs[0].path = dir + "/.smol-mcp-" + e.id + ".out"
	e.outputs[1].path = dir + "/.smol-mcp-" + e.id + ".err"
	return e
}

// all is an output of which everything is known.
func all(b []byte) output { return output{head: b, total: int64(len(b))} }

// ends is an output as collect.sh gives it: whole, or its first head bytes and
// its last ones.
func ends(b []byte, total int64, head int) output {
	if int64(len(b)) >= total || len(b) <= head {
		return output{head: b, total: max(total, int64(len(b)))}
	}
	return output{head: b[:head], tail: b[head:], total: total}
}

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

// stopTimeout bounds the stop of a cancelled command: TERM, 2 s, KILL, 1 s.
const stopTimeout = 10 * time.Second

// stop ends a job with all it started.
func (c *call) stop(ctx context.Context, name, id string) {
	r, err := c.inGuest(ctx, name, scripts.stop(), fleet.Command{Timeout: stopTimeout}, id)
	if err != nil || r.word(0) == "alive" {
		c.opts.Log.Warn("a cancelled command may still run", "machine", name, "command", id, "answer", r.word(0), "err", err)
	}
}

// stopWanted reports whether the end of ctx is the user's wish to stop, which the
// SDK tells as a plain cancel. A lost client or an ended session ends the wait,
// not the command.
func stopWanted(ctx context.Context) bool { return context.Cause(ctx) == context.Canceled }

// uptimes is the time between two first words of /proc/uptime.
func uptimes(begin, end string) (time.Duration, bool) {
	b, err1 := strconv.ParseFloat(begin, 64)
	e, err2 := strconv.ParseFloat(end, 64)
	if err1 != nil || err2 != nil || e < b {
		return 0, false
	}
	return time.Duration((e - b) * float64(time.Second)), true
}

// jobs remembers the commands whose output was told in full: the next command in
// their machine removes their files, some at a time, since that takes a process.
type jobs struct {
	mu   sync.Mutex
	done map[string][]string // ids, by machine
}

// doneAtOnce is how many commands' files are left before they are removed.
const doneAtOnce = 16

func (j *jobs) finished(machine, id string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.done == nil {
		j.done = map[string][]string{}
	}
	j.done[machine] = append(j.done[machine], id)
}

// takeDone returns ids, separated by spaces, once there are enough of them.
func (j *jobs) takeDone(machine string) string {
	j.mu.Lock()
	defer j.mu.Unlock()
	ids := j.done[machine]
	if len(ids) < doneAtOnce {
		return ""
	}
	delete(j.done, machine)
	return strings.Join(ids, " ")
}

func (j *jobs) forget(machine string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.done, machine)
}
