package tools

import (
	"context"
	"errors"
	"io"
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

// jobEnv carries a job's id to everything it starts, so that a stop finds all of
// it, also what left its process group.
const jobEnv = "SMOL_MCP_COMMAND"

// shortestWait is what it takes to have the command under way on a busy computer.
const shortestWait = time.Second

var errWaitOver = errors.New("the wait for the command is over")

// run runs a job with one request to the fleet, and a second one only when its
// output is long or its end was not seen.
func (c *call) run(ctx context.Context, name string, j job) (runOut, error) {
	id := c.jobs.take(name)
	e, err := c.attempt(ctx, name, id, j)
	if err != nil {
		return runOut{}, err
	}
	out := c.outcome(name, e)
	// Files of a job that runs on, or whose output is not all told, keep their name for good.
	if e.code != nil && !out.Truncated {
		c.jobs.giveBack(name, id)
	}
	return out, nil
}

// attempt sends the job and makes sense of what comes back.
func (c *call) attempt(ctx context.Context, name, id string, j job) (ending, error) {
	file, err := c.uploadStdin(ctx, name, id, j.stdin)
	if err != nil {
		return ending{}, err
	}
	cmd := fleet.Command{Env: withJob(j.env, id), Timeout: j.timeout}
	if file == "" {
		cmd.Stdin = j.stdin
	}
	args := append([]string{id, strconv.Itoa(c.opts.Limits.MaxOutputBytes + 1), j.workdir, file}, j.command.argv...)
	c.stage("running the command in %s", name)
	begin := time.Now()
	waiting, cancel := context.WithTimeoutCause(ctx, max(j.wait, shortestWait), errWaitOver)
	r, err := c.inGuest(waiting, name, scripts.run(), cmd, args...)
	cancel()
	if err == nil && r.word(0) == "nostdin" {
		// The upload went below a workload that came up after it; it is up now.
		if err := c.upload(ctx, name, file, j.stdin); err != nil {
			return ending{}, err
		}
		r, err = c.inGuest(ctx, name, scripts.run(), cmd, args...)
	}
	e := ending{id: id, started: r.started, took: time.Since(begin)}
	switch {
	case errors.Is(err, errNoShell):
		return c.runDirect(ctx, name, j)
	case err != nil:
		return c.unseen(ctx, waiting, name, j, e, err)
	}
	return c.settle(ctx, name, j, e, r)
}

// settle reads the answer of run.sh.
func (c *call) settle(ctx context.Context, name string, j job, e ending, r reply) (ending, error) {
	switch r.word(0) {
	case "noworkdir":
		return e, &fleet.Error{Code: fleet.CodeNotFound, Op: "run in " + fleet.Quote(j.workdir), Why: "it is no directory of the guest that can be entered", Next: "create it first, or leave workdir out"}
	case "raw":
		code := r.result.ExitCode
		e.code = &code
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
		return c.collect(ctx, name, e)
	}
	// The shell itself was killed: by the guest's timeout, or by the command.
	e.timedOut = r.result.ExitCode == exitTimeout
	if !e.timedOut {
		e.note = "the command ended its own shell, so its exit code was not seen"
	}
	return c.collect(ctx, name, e)
}

// exitTimeout is the exit code with which fleets report their timeout.
const exitTimeout = 124

// unseen decides what became of a job when the answer did not come.
func (c *call) unseen(ctx, waiting context.Context, name string, j job, e ending, err error) (ending, error) {
	switch {
	case ctx.Err() != nil:
		if stopWanted(ctx) {
			c.background(ctx, stopTimeout, func(ctx context.Context) { c.stop(ctx, name, e.id) })
		}
		return e, &fleet.Error{Code: fleet.CodeCancelled, Op: "run in machine " + name, Why: "the call was cancelled; the command is being stopped", Err: context.Cause(ctx)}
	case !fleet.MaybeDone(err):
		return e, err // it never reached the guest
	}
	note := "it goes on in the guest"
	if !errors.Is(context.Cause(waiting), errWaitOver) {
		note = "the connection was lost (" + fleet.Bound(explain(err).Why, 200) + "), and the command may go on"
	}
	e, err = c.collect(ctx, name, e)
	if err != nil || e.code != nil {
		return e, err
	}
	if e.timedOut = e.took >= j.timeout; e.timedOut {
		return e, nil
	}
	e.running = true
	if file := e.outputs[0].path; file != "" {
		note += "; when it ends, its exit code will be in " + strings.TrimSuffix(file, ".out") + ".rc"
	}
	e.note = note
	return e, nil
}

// collect asks the guest how a job stands and for both ends of its output.
func (c *call) collect(ctx context.Context, name string, e ending) (ending, error) {
	most := c.opts.Limits.MaxOutputBytes
	head, tail := most*2/3, most/3
	r, err := c.inGuest(ctx, name, scripts.collect(), fleet.Command{Timeout: scriptTimeout}, e.id, strconv.Itoa(head), strconv.Itoa(tail))
	if err != nil {
		return e, err
	}
	outBytes, err1 := strconv.ParseInt(r.word(1), 10, 64)
	errBytes, err2 := strconv.ParseInt(r.word(2), 10, 64)
	if err1 != nil || err2 != nil {
		e.note = strings.TrimPrefix(e.note+"; what it printed is not to be found in the guest", "; ")
		return e, nil
	}
	if code, err := strconv.Atoi(r.word(0)); err == nil && !e.timedOut {
		e.code = &code
	}
	e.outputs = [2]output{ends(r.stdout, outBytes, head), ends(r.stderr, errBytes, head)}
	return c.withPaths(e, r.dir), nil
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

// uploadStdin puts input that is too large for a request into a file of the
// guest, and returns its path; empty when the request carries it.
func (c *call) uploadStdin(ctx context.Context, name, id, stdin string) (string, error) {
	if len(stdin) <= fleet.MaxStdin || c.contacts.lacksShell(name) {
		return "", nil
	}
	path := "/tmp/.smol-mcp-" + id + ".in"
	return path, c.upload(ctx, name, path, stdin)
}

func (c *call) upload(ctx context.Context, name, path, content string) error {
	return c.fleet.Upload(ctx, name, path, io.Reader(strings.NewReader(content)), int64(len(content)))
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

// stopWanted reports whether the end of ctx is the user's wish to stop. A lost
// client or an ended session ends the wait, not the command.
func stopWanted(ctx context.Context) bool {
	cause := context.Cause(ctx)
	return !errors.Is(cause, errSessionOver) && !errors.Is(cause, io.EOF) && !errors.Is(cause, io.ErrClosedPipe)
}

func withJob(env map[string]string, id string) map[string]string {
	all := make(map[string]string, len(env)+1)
	for k, v := range env {
		all[k] = v
	}
	all[jobEnv] = id
	return all
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

// jobIDs hands out the names of jobs' files. A name whose job is over and told
// in full is used again for the next job in that machine, so the guest holds no
// more files than ever ran at once, and no program has to remove them.
type jobIDs struct {
	mu   sync.Mutex
	free map[string][]string // by machine
}

func (j *jobIDs) take(machine string) string {
	j.mu.Lock()
	defer j.mu.Unlock()
	if ids := j.free[machine]; len(ids) > 0 {
		j.free[machine] = ids[:len(ids)-1]
		return ids[len(ids)-1]
	}
	return randomName("", 12)
}

func (j *jobIDs) giveBack(machine, id string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.free == nil {
		j.free = map[string][]string{}
	}
	j.free[machine] = append(j.free[machine], id)
}

func (j *jobIDs) forget(machine string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.free, machine)
}
