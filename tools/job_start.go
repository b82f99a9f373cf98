package tools

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"smol-mcp/fleet"
)

// attachedFor is how long a job may keep its request open, and with it one of the few
// places that commands have in a machine: the answer of one that is over by then
// takes one request. mostAttached is how many may at once; what comes beyond answers
// at once that it runs.
const (
	attachedFor  = time.Second
	mostAttached = 3
)

// shortestWait is what it takes to have the command under way on a busy computer.
const shortestWait = time.Second

// errUnderway says that a job goes on without its request.
var errUnderway = errors.New("the command goes on")

// A launch is a way to get a job into a guest, with one request. See guest/run.sh for the
// answer.
type launch struct {
	native       bool          // the guest begins it by itself
	attached     bool          // its request is open for as long as the job, up to attachedFor
	releaseAfter time.Duration // when it is ended if it is open still
	send         func(ctx context.Context, sent func()) (reply, error)
}

// dispatch sends the job and waits for the answer: to its end, or until it has
// kept its request open long enough and is released from it.
func (c *call) dispatch(ctx context.Context, name, id string, j job, l launch) (reply, error) {
	detach := func() {
		if l.attached {
			c.attached.change(name, func(n int) int { return n - 1 })
		}
	}
	if !c.waits.begin() {
		detach()
		return reply{}, errSessionOver
	}
	open, cancel := context.WithTimeout(context.WithoutCancel(ctx), j.timeout+2*execMargin)
	stop := context.AfterFunc(c.over, cancel)
	sent := make(chan struct{})
	var wasSent atomic.Bool
	onWay := func() { wasSent.Store(true); close(sent) }
	answered := make(chan answer, 1)
	go func() {
		defer c.waits.done()
		defer cancel()
		defer stop()
		defer detach()
		var a answer
		a.err = c.guard(func() (err error) { a.reply, err = l.send(open, onWay); return err })
		a.reply = a.reply.unframed(a.word(6) == "err")
		answered <- a
	}()
	unsent := time.NewTimer(max(j.wait, shortestWait))
	defer unsent.Stop()
	select {
	case a := <-answered:
		return a.reply, a.err
	case <-sent:
		return c.attend(ctx, name, id, j, l, answered)
	case <-ctx.Done():
	case <-unsent.C:
	}
	if !wasSent.Load() {
		cancel()
		a := <-answered
		if a.err == nil { // it was sent in the same moment, and has begun
			return a.reply, nil
		}
		return a.reply, notBegun(ctx, name, a.err)
	}
	return c.attend(ctx, name, id, j, l, answered)
}

// An answer is what came back for a job's request.
type answer struct {
	reply
	err error
}

// attend waits for the answer of a job that was sent, and releases it in time.
func (c *call) attend(ctx context.Context, name, id string, j job, l launch, answered <-chan answer) (reply, error) {
	begin := time.Now()
	pause := time.NewTimer(l.releaseAfter)
	defer pause.Stop()
	for next := attachedFor; ; next = min(2*next, 10*time.Second) {
		select {
		case a := <-answered:
			return a.reply, a.err
		case <-ctx.Done():
			return reply{}, errUnderway
		case <-pause.C:
		}
		r, err := c.release(ctx, name, id, j.timeout-time.Since(begin))
		if err == nil && r.word(0) == "running" {
			return released(ctx, r, answered)
		}
		// It is over, and its answer on the way; or it has not begun; or it cannot be reached.
		pause.Reset(next)
		if time.Since(begin) > j.wait+execMargin {
			return r, errUnderway
		}
	}
}

// released waits for the end of the request of a job that was released from it, which
// comes at once: what it says of the machine's start is not known otherwise.
func released(ctx context.Context, r reply, answered <-chan answer) (reply, error) {
	timer := time.NewTimer(shortestWait)
	defer timer.Stop()
	select {
	case a := <-answered:
		if a.err == nil && a.word(0) == "exit" { // it ended in the same moment
			return a.reply, nil
		}
		r.started = r.started || a.started
	case <-timer.C:
	case <-ctx.Done():
	}
	return r, errUnderway
}

// release ends the request of a job, which goes on until its time is over, also when
// nobody of ours lives any more.
func (c *call) release(ctx context.Context, name, id string, left time.Duration) (reply, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout) // a guest that hangs must not hold up the answer
	defer cancel()
	if c.halting.of(name) > 0 {
		return reply{}, offError(name, "stopping")
	}
	return c.inGuest(ctx, name, scripts.release(), fleet.Command{Timeout: scriptTimeout, Brief: true, NoStart: true}, halves(id), seconds(left), scripts.watch())
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
