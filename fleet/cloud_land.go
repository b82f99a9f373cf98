package fleet

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"
)

// landing is a request that makes a machine of a name. A tenant has one machine of
// a name, so that the name shows whether the request was carried out when
// its answer is lost, and the request can be sent again under the same name.
type landing struct {
	r    request
	name string

	// ours reports whether a machine of that name is the one asked for. told is
	// false when the machine does not show it.
	ours func(m cloudMachine) (ours, told bool)
}

// landWaits is how long to wait for a machine to appear after an answer was lost,
// before the request is sent again.
func landWaits() []time.Duration {
	return []time.Duration{time.Second, 3 * time.Second, 10 * time.Second}
}

// sendNamed sends the request. Where the answer is lost it finds out what
// became of it, and sends it once more when nothing did.
func (c *Cloud) sendNamed(ctx context.Context, l landing) (cloudMachine, error) {
	m, err := c.sendOnce(ctx, l)
	if err == nil || !MaybeDone(err) {
		return m, err
	}
	for range 2 {
		m, found, settleErr := c.awaitLanding(ctx, l, err)
		if found || settleErr != nil {
			return m, settleErr
		}
		c.opts.Log.Info("the answer was lost and no machine appeared: sent again under the same name", "op", l.r.op)
		m, err = c.sendOnce(ctx, l)
		switch {
		case err == nil:
			return m, nil
		case statusOf(err) == http.StatusConflict: // the first one landed, or somebody was faster
			m, found, settleErr := c.landed(ctx, l, err)
			if !found && settleErr == nil {
				settleErr = unsure(err)
			}
			return m, settleErr
		case !MaybeDone(err):
			return m, unsure(err) // the first one may still arrive
		}
	}
	return m, unsure(err)
}

// sendOnce sends the request. An answer without a machine is as good as a lost one.
func (c *Cloud) sendOnce(ctx context.Context, l landing) (cloudMachine, error) {
	var m cloudMachine
	err := c.ask(ctx, l.r, &m)
	if err == nil && m.name != "" && m.name != l.name {
		err = l.r.fail(CodeInternal, true, fmt.Errorf("the answer is about machine %s", Quote(m.name)))
	}
	return m, err
}

// awaitLanding looks for the machine again and again. Nothing found and no error
// means that the request was most likely not carried out.
func (c *Cloud) awaitLanding(ctx context.Context, l landing, cause error) (m cloudMachine, found bool, err error) {
	for _, wait := range append([]time.Duration{0}, landWaits()...) {
		if wait > 0 && c.opts.Pause(ctx, wait) != nil {
			return m, false, l.r.fail(CodeOf(ctx.Err()), true, fmt.Errorf("given up while it was looked for, after its answer was lost: %w", ctx.Err()))
		}
		if m, found, err = c.landed(ctx, l, cause); found || err != nil {
			return m, found, err
		}
	}
	return m, false, nil
}

// landed looks once for the machine of an answer that was lost.
func (c *Cloud) landed(ctx context.Context, l landing, cause error) (m cloudMachine, found bool, err error) {
	rows, err := c.rows(ctx, l.r.op)
	if err != nil {
		e := l.r.fail(CodeOf(err), true, fmt.Errorf("its answer was lost (%v), and what became of it cannot be seen: %w", cause, err))
		return m, false, e
	}
	i := slices.IndexFunc(rows, func(row cloudMachine) bool { return row.name == l.name })
	if i < 0 {
		return m, false, nil
	}
	m = rows[i]
	if m.id == "" {
		return m, false, l.r.fail(CodeInternal, true, fmt.Errorf("its answer was lost (%v), and the service lists its machine without an id", cause))
	}
	ours, told := l.ours(m)
	if !told { // a list may say less than a record
		if full, err := c.look(ctx, l.r.op, m.id); err == nil {
			m = full
			ours, told = l.ours(m)
		}
	}
	if ours {
		return m, true, nil
	}
	return m, false, l.r.fail(CodeConflict, !told, errors.New("a machine of this name exists that does not carry this call's mark"))
}
