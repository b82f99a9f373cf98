package fleet

import (
	"context"
	"sync"
	"time"
)

// gate lets at most width operations work inside one machine at a time. smolvm
// holds one of eight guest connections for each, and with none left its own
// look at the machine's state fails, so that a busy machine seems dead.
type gate struct {
	width int
	mu    sync.Mutex
	rooms map[string]*room // of the machines somebody works in or waits for
}

type room struct {
	places chan struct{}
	people int // inside or waiting
}

func newGate(width int) *gate { return &gate{width: width, rooms: make(map[string]*room)} }

// enter waits for a place in the machine, at most wait, and returns how to
// leave it. op names the operation in an error.
func (g *gate) enter(ctx context.Context, op, machine string, wait time.Duration) (leave func(), err error) {
	r := g.join(machine)
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case r.places <- struct{}{}:
		return func() {
			<-r.places
			g.part(machine, r)
		}, nil
	case <-ctx.Done():
		err = &Error{Code: CodeOf(ctx.Err()), Op: op, Why: "waited for a place in the machine: " + ctx.Err().Error(), Err: ctx.Err()}
	case <-timer.C:
		err = Errorf(CodeTimeout, op, "%d operations have been running in the machine for %v", g.width, wait)
	}
	g.part(machine, r)
	return nil, err
}

func (g *gate) join(machine string) *room {
	g.mu.Lock()
	defer g.mu.Unlock()
	r := g.rooms[machine]
	if r == nil {
		r = &room{places: make(chan struct{}, g.width)}
		g.rooms[machine] = r
	}
	r.people++
	return r
}

func (g *gate) part(machine string, r *room) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if r.people--; r.people == 0 {
		delete(g.rooms, machine)
	}
}
