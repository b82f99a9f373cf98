package fleet

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// List returns the tenant's machines, also those of other installations.
func (c *Cloud) List(ctx context.Context) ([]Machine, error) {
	rows, err := c.rows(ctx, "list machines")
	if err != nil {
		return nil, err
	}
	return cloudMachinesOf(rows), nil
}

// Get returns one machine, by name or id.
func (c *Cloud) Get(ctx context.Context, name string) (Machine, error) {
	op := "get machine " + name
	id, row, err := c.find(ctx, op, name)
	if err != nil {
		return Machine{}, err
	}
	if row != nil {
		return row.machine(), nil
	}
	m, err := c.look(ctx, op, id)
	if gone(err) {
		c.names.drop(id)
		m, err = c.lookUp(ctx, op, name)
	}
	return m.machine(), err
}

// Stop shuts a machine down, or suspends it.
func (c *Cloud) Stop(ctx context.Context, name string, opts StopOptions) (m Machine, err error) {
	op, stop := "stop machine "+name, c.halt
	if opts.KeepMemory {
		op, stop = "suspend machine "+name, c.suspend
	}
	err = c.with(ctx, op, name, func(id string) error {
		got, err := stop(ctx, op, id)
		m = got.machine()
		return err
	})
	return m, err
}

// halt stops a machine and waits until it is down. A refusal is no failure where
// the machine is down already.
func (c *Cloud) halt(ctx context.Context, op, id string) (cloudMachine, error) {
	r := request{op: op, method: http.MethodPost, path: cloudPath(id, "/stop"), wait: cloudStopWait, effect: true, twice: true, empty: true}
	if err := c.tell(ctx, r); err != nil && !doubtful(err) {
		return cloudMachine{}, err
	} else if err != nil {
		m, lookErr := c.look(ctx, op, id)
		if lookErr == nil && down(m.state()) {
			return m, nil
		}
		return m, err
	}
	return c.awaitDown(ctx, r, id)
}

// suspend stops a machine with its memory kept.
func (c *Cloud) suspend(ctx context.Context, op, id string) (cloudMachine, error) {
	r := request{op: op, method: http.MethodPost, path: cloudPath(id, "/pause"), wait: cloudStopWait, effect: true, empty: true}
	err := c.tell(ctx, r)
	switch {
	case noRoute(err):
		c.can.without("/pause")
		return cloudMachine{}, &Error{Code: CodeUnsupported, Op: op, Why: "the service cannot keep the memory of a stopped machine", Err: err}
	case err != nil && !doubtful(err):
		return cloudMachine{}, err
	case err != nil:
		m, lookErr := c.look(ctx, op, id)
		if lookErr == nil && m.state() == Suspended {
			return m, nil
		}
		return m, err
	}
	c.names.change(id, func(k *knownMachine) { k.untouched, k.paused = false, true })
	return c.awaitDown(ctx, r, id)
}

// doubtful reports whether a failed change may be what the machine is in already,
// or was carried out: its state tells.
func doubtful(err error) bool {
	return statusOf(err) == http.StatusConflict || MaybeDone(err) && CodeOf(err) != CodeCancelled
}

func down(s State) bool { return s == Stopped || s == Created || s == Failed }

// tell sends a change whose answer tells nothing: releases answer with the
// machine, with something else or with nothing.
func (c *Cloud) tell(ctx context.Context, r request) error {
	return c.try(ctx, r, func(a *answer) (bool, error) {
		_, err := a.read()
		return true, err
	})
}

// awaitDown looks until a machine runs no more.
func (c *Cloud) awaitDown(ctx context.Context, r request, id string) (cloudMachine, error) {
	end := c.opts.Now().Add(cloudStopWait)
	for wait := pollFirst; ; wait = min(2*wait, pollLast) {
		m, err := c.lookOn(ctx, r.op, id)
		if err != nil {
			return m, r.fail(CodeOf(err), true, fmt.Errorf("it was accepted, but what became of it was not seen: %w", err))
		}
		if down(m.state()) || m.state() == Suspended {
			return m, nil
		}
		if !c.opts.Now().Before(end) {
			return m, r.fail(CodeTimeout, true, fmt.Errorf("it was accepted, but after %v the machine is still %s", cloudStopWait, Quote(m.word)))
		}
		if err := c.opts.Pause(ctx, wait); err != nil {
			return m, r.fail(CodeOf(err), true, fmt.Errorf("it was accepted, but its end was not waited for: %w", err))
		}
	}
}

// Delete removes a machine, looks whether it is gone, and returns the bill.
func (c *Cloud) Delete(ctx context.Context, name string) (gone Deletion, err error) {
	op := "delete machine " + name
	err = c.with(ctx, op, name, func(id string) (err error) {
		gone, err = c.remove(ctx, op, id)
		return err
	})
	return gone, err
}

func (c *Cloud) remove(ctx context.Context, op, id string) (Deletion, error) {
	r := request{op: op, method: http.MethodDelete, path: cloudPath(id, "") + "?includeUsage=true", wait: cloudStopWait, effect: true, twice: true}
	var bill []byte
	accepted := false
	err := noMachine(c.try(ctx, r, func(a *answer) (again bool, err error) {
		accepted = true
		bill, err = a.read()
		return true, err
	}))
	switch {
	case gone(err):
		return Deletion{}, cmp.Or(c.unlisted(ctx, r, id), err)
	case err != nil && !(MaybeDone(err) && ctx.Err() == nil):
		return Deletion{}, err
	}
	if err = c.awaitGone(ctx, r, id, err); err == nil && !accepted {
		err = c.unlisted(ctx, r, id)
	}
	if err != nil {
		return Deletion{}, err
	}
	c.names.drop(id)
	cost, said := costIn(bill)
	if !said { // the answer was lost, or of a release that does not bill at once
		cost = c.usage(ctx, op, id)
	}
	return Deletion{CostMicros: cost}, nil
}

// awaitGone looks until a machine is not found any more. cause is why the answer to
// the delete was not seen; nil when it was accepted.
func (c *Cloud) awaitGone(ctx context.Context, r request, id string, cause error) error {
	for wait := 100 * time.Millisecond; ; wait *= 2 {
		m, err := c.look(ctx, r.op, id)
		switch {
		case gone(err):
			return nil
		case cause != nil:
			return cause
		case err != nil:
			return r.fail(CodeOf(err), true, fmt.Errorf("it was accepted, but whether the machine is gone was not seen: %w", err))
		case wait > 5*time.Second:
			return r.fail(CodeInternal, true, fmt.Errorf("it was accepted, but the machine is still there (%s)", Quote(m.word)))
		}
		if err := c.opts.Pause(ctx, wait); err != nil {
			return r.fail(CodeOf(err), true, fmt.Errorf("it was accepted, but whether the machine is gone was not waited for: %w", err))
		}
	}
}

// usage asks for the bill of a deleted machine; 0 when it cannot be had. The service
// keeps it for 30 days.
func (c *Cloud) usage(ctx context.Context, op, id string) int64 {
	if c.can.lacks("/usage") {
		return 0
	}
	r := request{op: op, method: http.MethodGet, path: cloudPath(id, "/usage"), wait: healthWait}
	var raw json.RawMessage
	if err := c.ask(ctx, r, &raw); err != nil {
		if noRoute(err) {
			c.can.without("/usage")
		}
		return 0
	}
	cost, _ := costIn(raw)
	return cost
}

// costIn finds totalMicros, which is the whole cost, anywhere in a bill: its shape
// differs between releases.
func costIn(bill []byte) (micros int64, said bool) {
	dec := json.NewDecoder(bytes.NewReader(bill))
	dec.UseNumber()
	for {
		t, err := dec.Token()
		if err != nil {
			return 0, false
		}
		if t != "totalMicros" {
			continue
		}
		if n, err := dec.Token(); err == nil {
			if number, ok := n.(json.Number); ok {
				micros, err := number.Int64()
				return micros, err == nil
			}
		}
	}
}

// Pull is not offered: a machine's image is fetched when it starts.
func (c *Cloud) Pull(ctx context.Context, name, image string) (Image, error) {
	op := "pull image " + Bound(image, 128) + " into machine " + name
	if err := CheckAnyName(name); err != nil {
		return Image{}, err
	}
	if err := ctx.Err(); err != nil {
		return Image{}, &Error{Code: CodeOf(err), Op: op, Why: err.Error(), Err: err}
	}
	return Image{}, &Error{Code: CodeUnsupported, Op: op, Why: "the cloud fetches the image of a machine by itself and has no route for others",
		Next: "create a machine with that image"}
}

var errStopped = errors.New("it went down again while it was waited for")
