package fleet

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// How a machine that boots is looked at.
const (
	pollFirst  = 250 * time.Millisecond
	pollLast   = 2 * time.Second
	readyGrace = 2 * time.Second  // before readiness is tried out instead of awaited
	lateStart  = 10 * time.Second // a machine may be shown as stopped so long after its start was accepted
	readyLimit = time.Minute      // of a machine that runs and is not said to be ready
)

// Start boots or resumes a machine. The service is asked to do it in the
// background, since it may cancel a start whose client goes away.
func (c *Cloud) Start(ctx context.Context, name string, opts StartOptions) (m Machine, err error) {
	op := "start machine " + name
	err = c.with(ctx, op, name, func(id string) error {
		got, err := c.bringUp(ctx, op, id, opts)
		m = got.machine()
		return err
	})
	return m, err
}

func (c *Cloud) bringUp(ctx context.Context, op, id string, opts StartOptions) (m cloudMachine, err error) {
	known := c.names.ofID(id)
	m.id, m.branchable = id, &known.branchable
	if !known.untouched { // else it is stopped, and that request is saved
		if m, err = c.look(ctx, op, id); err != nil {
			return m, err
		}
	}
	if opts.Branchable && m.branchable != nil && !*m.branchable {
		return m, &Error{Code: CodeConflict, Op: op, Why: "it was not created branchable, and that cannot be changed",
			Next: "create another machine with branchable"}
	}
	up, err := c.bringUpFrom(ctx, op, m, known.paused)
	if known.untouched && statusOf(err) == http.StatusConflict { // somebody else has touched it
		c.names.change(id, func(k *knownMachine) { k.untouched = false })
		if m, err = c.look(ctx, op, id); err != nil {
			return m, err
		}
		return c.bringUpFrom(ctx, op, m, false)
	}
	return up, err
}

// bringUpFrom starts or resumes a machine, by how it was seen, and waits for it.
func (c *Cloud) bringUpFrom(ctx context.Context, op string, m cloudMachine, paused bool) (cloudMachine, error) {
	r := request{op: op, method: http.MethodPost, wait: cloudStartWait, effect: true, empty: true}
	var lost error // of a start whose answer was not seen
	start := func() error {
		err := c.startBy(ctx, r, m.id)
		if MaybeDone(err) && CodeOf(err) != CodeCancelled {
			lost, err = err, nil // awaitUp sees whether it was carried out
		}
		return err
	}
	state := m.state()
	var err error
	switch {
	case state == Running:
		return m, nil
	case state == Starting:
		return c.awaitUp(ctx, r, m, nil)
	case state == Suspended || paused && state == Stopped:
		r.path = cloudPath(m.id, "/resume")
		if err = start(); err == nil || state == Suspended {
			break
		}
		fallthrough // it is not suspended after all
	default:
		r.path = cloudPath(m.id, "/start?detach=true")
		err = start()
	}
	if err != nil {
		return m, err
	}
	c.names.change(m.id, func(k *knownMachine) { k.untouched, k.paused = false, false })
	up, err := c.awaitUp(ctx, r, m, start)
	if lost != nil && errors.Is(err, errStopped) {
		err = lost
	}
	return up, err
}

// startBy sends a start or resume. A refusal is none where the machine is up already.
func (c *Cloud) startBy(ctx context.Context, r request, id string) error {
	err := c.tell(ctx, r)
	if statusOf(err) != http.StatusConflict {
		return err
	}
	if m, lookErr := c.look(ctx, r.op, id); lookErr == nil && (m.state() == Running || m.state() == Starting) {
		return nil
	}
	return err
}

// awaitUp looks until a machine runs and answers, or fails. again, where given, is
// called once when the machine looks as if its start had never arrived.
func (c *Cloud) awaitUp(ctx context.Context, r request, m cloudMachine, again func() error) (cloudMachine, error) {
	id, begun := m.id, c.opts.Now()
	var up time.Time // since when it runs
	for wait := pollFirst; ; wait = min(2*wait, pollLast) {
		var err error
		if m, err = c.lookOn(ctx, r.op, id); err != nil {
			return m, err
		}
		now := c.opts.Now()
		switch m.state() {
		case Running:
			if up.IsZero() {
				up = now
			}
			if m.answers() || now.Sub(up) >= readyLimit || now.Sub(up) >= readyGrace && c.probe(ctx, r.op, id) {
				return m, nil
			}
		case Failed:
			return m, c.startFailed(ctx, r, m)
		case Stopped, Created, Suspended:
			if late := now.Sub(begun) >= lateStart; late && again == nil {
				return m, c.notUp(ctx, r, m, errStopped)
			} else if late {
				if err := again(); err != nil {
					return m, err
				}
				again, begun = nil, now
			}
		}
		if now.Sub(begun) >= cloudStartWait {
			return m, r.fail(CodeTimeout, true, fmt.Errorf("after %v it is still %s; it may yet come up", cloudStartWait, Quote(m.word)))
		}
		if err := c.opts.Pause(ctx, wait); err != nil {
			return m, r.fail(CodeOf(err), true, fmt.Errorf("it was accepted, and not waited for: %w", err))
		}
	}
}

// answers reports whether the service says that the guest answers, or would never
// say so: older releases do not know readiness, and with published ports it
// waits for the workload to serve them.
func (m cloudMachine) answers() bool { return m.ready == nil || *m.ready || len(m.ports) > 0 }

// probe reports whether the guest takes commands, whatever they end with.
func (c *Cloud) probe(ctx context.Context, op, id string) bool {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	_, err := c.execOn(ctx, request{op: op}, id, Command{Argv: []string{"sh", "-c", "true"}, Timeout: 10 * time.Second})
	return err == nil
}

// startFailed says why a machine did not come up, in the service's words.
func (c *Cloud) startFailed(ctx context.Context, r request, m cloudMachine) error {
	why := "the service could not start it"
	if m.fault != "" {
		why += ": " + Bound(m.fault, 512)
	}
	return c.notUp(ctx, r, m, errors.New(why))
}

// notUp adds the last events to why a machine is not up.
func (c *Cloud) notUp(ctx context.Context, r request, m cloudMachine, why error) error {
	e := r.fail(CodeInternal, false, why)
	e.Next = "mend what it names; the machine takes its place in the account until it is deleted"
	events, err := c.events(ctx, r.op, m.id)
	if err != nil || len(events) == 0 {
		return e
	}
	var last []string
	for _, ev := range events[max(0, len(events)-3):] {
		last = append(last, ev.line())
	}
	e.Why = Bound(e.Why+"; its last events: "+strings.Join(last, " | "), MaxWhy)
	return e
}
