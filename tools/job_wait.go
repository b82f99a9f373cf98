package tools

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"smol-mcp/fleet"
)

// shortestWait is what it takes to have the command under way on a busy computer.
const shortestWait = time.Second

var errWaitOver = errors.New("the wait for the command is over")

// collectTimeout bounds a look at a job: the call has waited as long as it was to.
const collectTimeout = 10 * time.Second

// dispatch sends the job and waits for the answer as long as j is patient. The
// request stays open until the guest answers, so that the job's place in the
// machine is not given to another while it runs.
func (c *call) dispatch(ctx context.Context, name string, j job, cmd fleet.Command, args []string) (reply, error) {
	if !c.waits.begin() {
		return reply{}, errSessionOver
	}
	open, cancel := context.WithTimeout(context.WithoutCancel(ctx), j.timeout+2*execMargin)
	stop := context.AfterFunc(c.over, cancel)
	var sent atomic.Bool
	cmd.Sent = func() { sent.Store(true) }
	type answer struct {
		reply
		err error
	}
	answered := make(chan answer, 1)
	go func() {
		defer c.waits.done()
		defer cancel()
		defer stop()
		var a answer
		a.err = c.guard(func() (err error) { a.reply, err = c.inGuest(open, name, scripts.run(), cmd, args...); return err })
		answered <- a
	}()
	timer := time.NewTimer(max(j.wait, shortestWait))
	defer timer.Stop()
	for extended := false; ; extended = true {
		select {
		case a := <-answered:
			return a.reply, a.err
		case <-ctx.Done():
		case <-timer.C:
			// Who waits as long as the command may run also waits to hear that it was killed.
			if sent.Load() && j.wait >= j.timeout && !extended {
				timer.Reset(execMargin)
				continue
			}
		}
		break
	}
	if !sent.Load() {
		cancel()
		a := <-answered
		return a.reply, notBegun(ctx, name, a.err)
	}
	return reply{}, &fleet.Error{Code: fleet.CodeTimeout, Op: "run in machine " + name, Why: errWaitOver.Error(), Err: errWaitOver, MaybeDone: true}
}

// notBegun is the error of a command that was given up before it was sent.
func notBegun(ctx context.Context, name string, err error) error {
	var e *fleet.Error
	switch {
	case errors.As(err, &e) && e.MaybeDone:
		return err
	case ctx.Err() != nil:
		return &fleet.Error{Code: fleet.CodeCancelled, Op: "run in machine " + name, Why: "the call was cancelled before the command began", Err: context.Cause(ctx)}
	case errors.Is(err, fleet.ErrNoPlace):
		busy := *e
		busy.Code, busy.Next = fleet.CodeNotReady, "wait until a command there has ended, and call again"
		return &busy
	}
	return &fleet.Error{Code: fleet.CodeNotReady, Op: "run in machine " + name, Why: "it was not begun: the engine did not answer within waitSecs", Next: "look at the machine with get-machine, and call again", Err: err}
}

// unseen decides what became of a job when the answer did not come.
func (c *call) unseen(ctx context.Context, name string, j job, e ending, err error) (ending, error) {
	switch {
	case !fleet.MaybeDone(err):
		return e, err // it never reached the guest
	case ctx.Err() != nil:
		why := "the client or the session is gone; the command goes on"
		if stopWanted(ctx) {
			why = "the call was cancelled; the command is being stopped"
			c.background(ctx, stopTimeout, func(ctx context.Context) { c.stop(ctx, name, e.id) })
		}
		return e, &fleet.Error{Code: fleet.CodeCancelled, Op: "run in machine " + name, Why: why, Err: context.Cause(ctx)}
	}
	note := "it goes on in the guest until its timeoutSecs are over"
	if !errors.Is(err, errWaitOver) {
		note = "the connection was lost (" + fleet.Bound(explain(err).Why, 200) + "), and the command goes on in the guest"
	}
	end := time.Now().Add(j.timeout + execMargin - e.took)
	for pause := time.Second; ; pause = min(2*pause, 10*time.Second) {
		var seen sight
		var lookErr error
		e, seen, lookErr = c.collect(ctx, name, e)
		late := time.Now().After(end)
		switch {
		case lookErr != nil && (!j.once || late || isPermanent(lookErr)):
			return e, lookedInVain(e.id, lookErr)
		case lookErr == nil && seen == unknownJob:
			return e, err // nothing shows that it ever ran
		case lookErr == nil && seen != runningJob:
			return e, nil
		case late:
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
		case <-ctx.Done():
			return e, &fleet.Error{Code: fleet.CodeCancelled, Op: "run in machine " + name, Why: "the call was cancelled", Err: context.Cause(ctx)}
		}
	}
}

// sight is what a look at a job found.
type sight int

const (
	unknownJob sight = iota // the guest has nothing of it
	runningJob
	endedJob
	lostJob // its end was not written down, or the machine is off
)

// lookedInVain is the error of a command that was sent and could not be looked at.
func lookedInVain(id string, cause error) error {
	failure := *explain(cause)
	failure.MaybeDone = true
	failure.Why = sentence(failure.Why) + " The command was sent, and most likely runs; its output is in files with " + id + " in their names"
	failure.Next = "look for them with read-file /tmp before you run it again"
	return &failure
}

// collect asks the guest how a job stands and for both ends of its output. It does
// not start a machine that was stopped meanwhile.
func (c *call) collect(ctx context.Context, name string, e ending) (ending, sight, error) {
	most := c.opts.Limits.MaxOutputBytes
	head, tail := most*2/3, most/3
	ctx, cancel := context.WithTimeout(ctx, collectTimeout)
	defer cancel()
	m, err := c.fleet.Get(ctx, name)
	if err != nil {
		return e, unknownJob, err
	}
	if m.State != fleet.Running && m.State != fleet.Unreachable {
		e.note = "the machine went to state " + string(m.State) + " while the command ran, so its end was not seen; its output may be lost"
		return e, lostJob, nil
	}
	r, err := c.inGuest(ctx, name, scripts.collect(), fleet.Command{Timeout: scriptTimeout, Brief: true}, e.id, strconv.Itoa(head), strconv.Itoa(tail))
	if err != nil {
		return e, unknownJob, err
	}
	outBytes, err1 := strconv.ParseInt(r.word(1), 10, 64)
	errBytes, err2 := strconv.ParseInt(r.word(2), 10, 64)
	if err1 != nil || err2 != nil {
		return e, unknownJob, nil
	}
	e.outputs = [2]output{ends(r.stdout, outBytes, head), ends(r.stderr, errBytes, head)}
	e = c.withPaths(e, r.dir)
	if code, err := strconv.Atoi(r.word(0)); err == nil {
		if !e.timedOut {
			e.code = &code
		}
		return e, endedJob, nil
	}
	if r.word(0) == "dead" {
		if !e.timedOut {
			e.note = "its shell was killed before it could write the exit code down"
		}
		return e, lostJob, nil
	}
	return e, runningJob, nil
}

// collected is collect for a job that has ended.
func (c *call) collected(ctx context.Context, name string, e ending) (ending, error) {
	e, seen, err := c.collect(ctx, name, e)
	if err == nil && seen == unknownJob {
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

// stopTimeout bounds the stop of a cancelled command: TERM, 2 s, KILL, 1 s.
const stopTimeout = 10 * time.Second

// stop ends a job with all it started.
func (c *call) stop(ctx context.Context, name, id string) {
	if m, err := c.fleet.Get(ctx, name); err == nil && m.State != fleet.Running && m.State != fleet.Unreachable {
		return // looking for it would start the machine
	}
	r, err := c.inGuest(ctx, name, scripts.stop(), fleet.Command{Timeout: stopTimeout, Brief: true}, id)
	if err != nil || r.word(0) == "alive" {
		c.opts.Log.Warn("a cancelled command may still run", "machine", name, "command", id, "answer", r.word(0), "err", err)
	}
}

// stopWanted reports whether the end of ctx is the user's wish to stop, which the
// SDK tells as a plain cancel. A lost client or an ended session ends the wait,
// not the command.
func stopWanted(ctx context.Context) bool { return context.Cause(ctx) == context.Canceled }
