package tools

import (
	"context"
	"errors"
	"time"

	"smol-mcp/fleet"
	"smol-mcp/store"
)

// rollbackTimeout bounds the deletion of what a failed call had created.
const rollbackTimeout = 30 * time.Second

// madeIt marks a failure after the machine was certainly created.
func madeIt(err error) error { return &afterCreate{err} }

type afterCreate struct{ error }

func (e *afterCreate) Unwrap() error { return e.error }

// takeBack undoes a creation that failed with cause, and returns what the agent
// is to hear. A machine that was not made loses its record; one that was, or
// may have been, is deleted. A cancelled caller does not wait for that.
func (c *call) takeBack(ctx context.Context, rec store.Record, cause error) error {
	made := errors.As(cause, new(*afterCreate))
	failure := *explain(cause)
	cancelled := failure.Code == fleet.CodeCancelled
	if cancelled {
		failure = *calledOff(rec.Name, "nothing was created").(*fleet.Error)
		failure.MaybeDone = fleet.MaybeDone(cause)
	}
	if !made && !failure.MaybeDone {
		mark, cancel := context.WithTimeout(context.WithoutCancel(ctx), markTimeout)
		defer cancel()
		switch err := c.records.Abandon(mark, rec); {
		case errors.Is(err, store.ErrStale): // somebody deleted it meanwhile, and may wait for it to be over
			_ = c.undo(ctx, rec, true)
		case err != nil:
			c.opts.Log.Warn("a record of a machine that was never made stays for the reaper", "machine", rec.Name, "err", err)
		}
		return &failure
	}
	failure.MaybeDone = false // it is taken back, or recorded as to be deleted
	switch {
	case !cancelled && c.deletedMeanwhile(ctx, rec):
		failure = fleet.Error{Code: fleet.CodeConflict, Op: "create machine " + rec.Name, Err: cause,
			Why: "it was deleted while it was being created", Next: "create it again if it is still wanted"}
	case cancelled:
		failure.Why = calledOffWhy
	case failure.Next == "" || failure.Code == fleet.CodeNotReady:
		failure.Next = "mend the cause and call again; nothing of this call is left to use"
	}
	err := c.undo(ctx, rec, made)
	switch {
	case errors.Is(err, errUndoneLater):
		failure.Why = sentence(failure.Why) + " What had been created of " + rec.Name + " is being deleted"
	case err != nil:
		failure.Why = sentence(failure.Why) + " The machine " + rec.Name + " was not deleted: " + fleet.Bound(explain(err).Error(), 300)
		if _, recorded, findErr := c.opts.Store.Find(context.WithoutCancel(ctx), rec.Key()); recorded && findErr == nil {
			failure.Why += "; it is recorded, and the server goes on trying"
		}
	default:
		failure.Why = sentence(failure.Why) + " What had been created of " + rec.Name + " was deleted again"
	}
	return &failure
}

// deletedMeanwhile reports whether somebody has deleted the machine of a call that goes on, or
// ended its session.
func (c *call) deletedMeanwhile(ctx context.Context, rec store.Record) bool {
	now, recorded, err := c.opts.Store.Find(context.WithoutCancel(ctx), rec.Key())
	return err == nil && (!recorded || now.UID != rec.UID || now.Phase == store.Deleting || now.Phase == store.Gone)
}

// calledOffWhy is why a call ended that its client cancelled.
const calledOffWhy = "the call was cancelled"

// calledOff is what is heard of the creation of a machine that its client cancelled: what
// became of the machine. There is nothing to mend.
func calledOff(name, what string) error {
	return &fleet.Error{Code: fleet.CodeCancelled, Op: "create machine " + name, Why: calledOffWhy + "; " + what}
}

// unmade is the error of a creation that ended before anything was asked for.
func unmade(name string, err error) error {
	if fleet.CodeOf(err) == fleet.CodeCancelled {
		return calledOff(name, "nothing was created")
	}
	return err
}

// errUndoneLater means that the caller is gone and clean-up goes on without it.
var errUndoneLater = errors.New("the call was cancelled; clean-up goes on")

// undo deletes a machine that a failed or finished call leaves; answered tells that the call which
// creates it is over. It goes on in the background when the caller is cancelled.
func (c *call) undo(ctx context.Context, rec store.Record, answered bool) error {
	done := make(chan error, 1)
	c.background(ctx, rollbackTimeout, func(ctx context.Context) {
		done <- c.guard(func() error { return c.remove(ctx, rec, answered) })
	})
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return errUndoneLater
	}
}

// remove marks a recorded machine as to be deleted and deletes it. What is
// left by the end of ctx stays marked for a later sweep.
func (c *call) remove(ctx context.Context, rec store.Record, answered bool) error {
	c.forget(rec.Name)
	marked, found, err := c.records.Withdraw(ctx, rec, answered)
	if err != nil || !found {
		return err
	}
	return c.opts.Remover.Remove(ctx, marked)
}

// pullHint adds what an agent cannot guess to a failed start: an allow-list also
// holds for the pull of the image.
func (c *call) pullHint(spec fleet.Spec, err error) error {
	var e *fleet.Error
	lists := len(spec.Network.AllowHosts) > 0 || len(spec.Network.AllowCIDRs) > 0
	if !lists || !isRegistryImage(spec.Image) || !errors.As(err, &e) || e.Next != "" || fleet.CodeOf(err) == fleet.CodeCancelled {
		return err
	}
	hinted := *e
	hinted.Next = "where the image is pulled inside the guest, allowHosts must also name its registry and the hosts that serve its layers"
	return &hinted
}
