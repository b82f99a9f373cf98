package tools

import (
	"context"
	"errors"
	"strconv"
	"time"

	"smol-mcp/fleet"
)

// follow waits for the end of a job whose request is over, as long as j is patient,
// and sees how it stands. lost is why its answer did not come, errUnderway when none was to
// be expected, or nil when it said that the end was not seen.
func (c *call) follow(ctx context.Context, name string, j job, e ending, begin time.Time, lost error) (ending, error) {
	limit := begin.Add(j.wait)
	if j.once {
		limit = begin.Add(j.timeout + execMargin) // its machine goes with the call
	}
	if errors.Is(lost, errUnderway) {
		c.await(ctx, name, e.id, time.Until(limit))
		lost = nil
	}
	for pause := time.Second; ; pause = min(2*pause, 10*time.Second) {
		if ctx.Err() != nil {
			return e, c.left(ctx, name, j, e.id)
		}
		e.took = time.Since(begin) // where the guest cannot tell
		found, s, err := c.glance(ctx, name, e)
		switch {
		case ctx.Err() != nil:
			return e, c.left(ctx, name, j, e.id)
		case errors.Is(err, errOff):
			e.kept = true // it was sent, and may be asked for
			e.say(explain(err).Why + "; what it had printed is not known")
			return e, nil
		case err != nil && (isPermanent(err) || time.Now().After(limit)):
			return e, lookedInVain(e.id, err)
		case err == nil && s.state == "gone":
			return e, vanished(name, e.id, lost)
		case err == nil && s.overdue():
			c.stopJob(ctx, name, e.id, "TERM", stopGrace, "timeout")
		case err == nil && (s.state != "running" || time.Now().After(limit)):
			return found, nil
		case err == nil && lost != nil:
			// It may hold on to the request that was lost.
			if _, err := c.release(ctx, name, e.id, j.timeout-s.took); err == nil {
				lost = nil
			}
		}
		c.pause(ctx, pause, err == nil && lost == nil, name, e.id, limit)
	}
}

// pause waits a while before the next look: for the end of the job where it can be awaited.
func (c *call) pause(ctx context.Context, d time.Duration, awaitable bool, name, id string, limit time.Time) {
	if awaitable {
		c.await(ctx, name, id, time.Until(limit))
		return
	}
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// overdue reports whether a job runs that should have been ended, since what was to
// end it was killed.
func (s standing) overdue() bool {
	return s.state == "running" && s.timed && s.timeout > 0 && s.took > s.timeout+execMargin
}

// left is the error of a call that ended before its job, which it stops where that is
// what the user wants.
func (c *call) left(ctx context.Context, name string, j job, id string) error {
	e := &fleet.Error{Code: fleet.CodeCancelled, Op: "run in machine " + name, Err: context.Cause(ctx),
		Why: "the client or the session is gone; the command goes on", Next: "read-command " + id + " tells how it stands"}
	switch {
	case j.once:
		e.Why, e.Next = "the call was cancelled", ""
	case stopWanted(ctx) && j.background:
		e.Why = "the call was cancelled; the command goes on, since it runs in the background"
	case stopWanted(ctx):
		e.Why = "the call was cancelled; the command is being stopped"
		c.background(ctx, lateStop, func(ctx context.Context) { c.stopAtLast(ctx, name, id) })
	}
	return e
}

// lateStop bounds how long a command is stopped that may not have begun.
const lateStop = 2 * time.Minute

// stopAtLast stops a command whose call was cancelled. Its request may be starting the machine, which
// nothing can hold it back from: so that is tried until the guest says that nothing of it is
// left, or will begin. Only the first try outlives the session.
func (c *call) stopAtLast(ctx context.Context, name, id string) {
	if _, err := c.stopJob(ctx, name, id, "TERM", stopGrace, "stop"); err == nil || isPermanent(err) {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.over, cancel)()
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
		if _, err := c.stopJob(ctx, name, id, "TERM", stopGrace, "stop"); err == nil || isPermanent(err) {
			return
		}
	}
}

// lookedInVain is the error of a command that was sent and could not be looked at.
func lookedInVain(id string, cause error) error {
	failure := *explain(cause)
	failure.MaybeDone = true
	failure.Why = sentence(failure.Why) + " The command was sent as " + id + ", and how it stands is not known"
	failure.Next = "ask with read-command before you run it again"
	if failure.Code == fleet.CodeNotFound {
		failure.Next = "the machine is gone, and the command with it"
	}
	return &failure
}

// vanished is the error of a command of which the guest shows nothing.
func vanished(name, id string, lost error) error {
	if lost != nil {
		return lost // nothing shows that it ever ran
	}
	return &fleet.Error{Code: fleet.CodeNotFound, Op: "look at command " + id + " in machine " + name,
		Why: "its files in the guest are gone, so how it ended is not known", Next: "look for its effects before you run it again"}
}

// Stops: what does not end by itself is killed after a grace.
const (
	stopGrace    = 2 * time.Second
	longGrace    = 5 * time.Second
	stopTimeout  = 15 * time.Second
	stopAndWatch = "-" // nothing is killed
)

// stopJob signals a job with all it started, waits up to grace for its end, and kills what
// is left then, unless why is stopAndWatch. It reports whether nothing is left.
func (c *call) stopJob(ctx context.Context, name, id, signal string, grace time.Duration, why string) (bool, error) {
	r, err := c.peek(ctx, name, scripts.stop(), fleet.Command{Timeout: grace + stopTimeout, Brief: true},
		halves(id), signal, tenths(grace), why)
	if errors.Is(err, errOff) {
		return true, err
	}
	if err != nil || r.word(0) == "alive" {
		c.opts.Log.Warn("a stopped command may still run", "machine", name, "command", id, "answer", r.word(0), "err", err)
	}
	return r.word(0) != "alive", err
}

func tenths(d time.Duration) string { return strconv.Itoa(int(d / (100 * time.Millisecond))) }

// stopWanted reports whether the end of ctx is the user's wish to stop, which the
// SDK tells as a plain cancel. A lost client or an ended session ends the wait,
// not the command.
func stopWanted(ctx context.Context) bool { return context.Cause(ctx) == context.Canceled }
