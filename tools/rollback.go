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
	if !made && !failure.MaybeDone {
		mark, cancel := context.WithTimeout(context.WithoutCancel(ctx), markTimeout)
		defer cancel()
		if err := c.records.Abandon(mark, rec); err != nil {
			c.opts.Log.Warn("a record of a machine that was never made stays for the reaper", "machine", rec.Name, "err", err)
		}
		return &failure
	}
	failure.MaybeDone = false // it is taken back, or recorded as to be deleted
	if ctx.Err() != nil {
		c.background(ctx, rollbackTimeout, func(ctx context.Context) { _ = c.remove(ctx, rec) })
		return &failure
	}
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
	defer cancel()
	if err := c.remove(undo, rec); err != nil {
		failure.Why += ". The machine " + rec.Name + " could not be deleted yet (" + fleet.Bound(err.Error(), 200) + "); it is recorded and will be"
		return &failure
	}
	failure.Why = sentence(failure.Why) + " What had been created of " + rec.Name + " was deleted again"
	return &failure
}

// remove marks a recorded machine as to be deleted and deletes it. What is
// left by the end of ctx stays marked for a later sweep.
func (c *call) remove(ctx context.Context, rec store.Record) error {
	c.forget(rec.Name)
	marked, found, err := c.records.Tombstone(ctx, rec.Key())
	if err != nil {
		return err
	}
	if !found {
		// A machine to be kept has no record any more; the name is known to be ours.
		if _, err := c.fleet.Delete(ctx, rec.Name); err != nil && fleet.CodeOf(err) != fleet.CodeNotFound {
			return err
		}
		return nil
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
