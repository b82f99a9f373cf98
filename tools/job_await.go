package tools

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"smol-mcp/fleet"
)

// awaitSlice bounds one request that waits for jobs: a place in the machine is not
// kept for longer when nobody waits any more.
const awaitSlice = 5 * time.Second

// The awaited are the jobs of one machine whose ends calls wait for. One request at a time
// waits for all of them, since places in a machine are few.
type awaited struct {
	mu     sync.Mutex
	calls  map[string][]chan struct{} // by id: closed when it is time to look
	asking bool                       // a goroutine asks the guest
}

// await returns when a job seems to be over, when limit is over, or with ctx.
func (c *call) await(ctx context.Context, name, id string, limit time.Duration) {
	if limit <= 0 || ctx.Err() != nil {
		return
	}
	a := c.awaitedIn(name)
	over, first := a.join(id)
	defer a.leave(id, over)
	if first {
		if !c.waits.begin() {
			a.tell(nil)
			return
		}
		asker := &call{Session: c.Session, site: c.site, account: c.account, stage: func(string, ...any) {}}
		go func() {
			defer c.waits.done()
			_ = c.guard(func() error { asker.ask(name, a); return nil })
		}()
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-over:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// awaitedIn are the awaited jobs of a machine.
func (s *site) awaitedIn(machine string) *awaited {
	var a *awaited
	s.awaits.change(machine, func(have *awaited) *awaited {
		if a = have; a == nil {
			a = &awaited{calls: map[string][]chan struct{}{}}
		}
		return a
	})
	return a
}

// join adds a call that waits for a job. first tells that the caller has to ask.
func (a *awaited) join(id string) (over chan struct{}, first bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	over = make(chan struct{})
	a.calls[id] = append(a.calls[id], over)
	first = !a.asking
	a.asking = true
	return over, first
}

func (a *awaited) leave(id string, over chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.calls[id] = slices.DeleteFunc(a.calls[id], func(ch chan struct{}) bool { return ch == over })
	if len(a.calls[id]) == 0 {
		delete(a.calls, id)
	}
}

// ids are the awaited jobs. With none, asking is over.
func (a *awaited) ids() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asking = len(a.calls) > 0
	return slices.Sorted(maps.Keys(a.calls))
}

// tell lets the calls look that wait for one of these jobs; nil means all, and that
// asking is over.
func (a *awaited) tell(ids []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if ids == nil {
		ids = slices.Collect(maps.Keys(a.calls))
		a.asking = false
	}
	for _, id := range ids {
		for _, over := range a.calls[id] {
			close(over)
		}
		delete(a.calls, id)
	}
}

// ask asks the guest again and again which jobs are over, until no call waits for one.
func (c *call) ask(name string, a *awaited) {
	finished := false
	defer func() {
		if !finished { // nobody waits for an answer that cannot come
			a.tell(nil)
		}
	}()
	pause := time.Second
	for ids := a.ids(); len(ids) > 0; ids = a.ids() {
		over, err := c.askOnce(c.over, name, ids)
		switch {
		case c.over.Err() != nil:
			return
		case err == nil:
			pause = time.Second
			a.tell(append([]string{}, over...))
		case isPermanent(err) || fleet.CodeOf(err) == fleet.CodeNotReady:
			a.tell(ids) // looking says what is the matter
		default:
			select {
			case <-time.After(pause):
			case <-c.over.Done():
			}
			pause = min(2*pause, 10*time.Second)
		}
	}
	finished = true
}

// askOnce waits in the guest for the end of one of the jobs, and returns those that
// are over.
func (c *call) askOnce(ctx context.Context, name string, ids []string) ([]string, error) {
	args := []string{strconv.Itoa(int(awaitSlice / time.Second))}
	for _, id := range ids {
		args = append(args, halves(id))
	}
	r, err := c.peek(ctx, name, scripts.await(), fleet.Command{Timeout: scriptTimeout}, args...)
	if err != nil {
		return nil, err
	}
	over := []string{}
	for _, id := range r.line[min(1, len(r.line)):] {
		over = append(over, strings.ReplaceAll(id, ".", ""))
	}
	return over, nil
}
