package fleet

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// ErrNoPlace is in the chain of errors of operations that were not begun, since
// others took all the places in the machine.
var ErrNoPlace = errors.New("no place in the machine")

// gate lets at most width operations work inside one machine at a time, and at
// most long of those that may take long, so that looking at these never waits
// for them. smolvm holds one of eight guest connections for each, and with none
// left its own look at the machine's state fails, so that a busy machine seems dead.
type gate struct {
	width int
	long  int
	mu    sync.Mutex
	rooms map[string]*room // of the machines somebody works in or waits for
}

type room struct {
	places chan struct{}
	longs  chan struct{}
	people int // inside or waiting
}

func newGate(width, long int) *gate {
	return &gate{width: width, long: long, rooms: make(map[string]*room)}
}

// enter waits for a place in the machine, at most wait, and returns how to
// leave it. op names the operation in an error; brief ones may take
// every place.
func (g *gate) enter(ctx context.Context, op, machine string, wait time.Duration, brief bool) (leave func(), err error) {
	r := g.join(machine)
	timer := time.NewTimer(wait)
	defer timer.Stop()
	taken := []chan struct{}{}
	leave = func() {
		for _, places := range taken {
			<-places
		}
		g.part(machine, r)
	}
	need := []chan struct{}{r.longs, r.places}
	if brief {
		need = need[1:]
	}
	for _, places := range need {
		select {
		case places <- struct{}{}:
			taken = append(taken, places)
			continue
		case <-ctx.Done():
			err = &Error{Code: CodeOf(ctx.Err()), Op: op, Err: errors.Join(ErrNoPlace, ctx.Err()),
				Why: fmt.Sprintf("it was not begun: %d commands run in the machine already, and it waited for a place", len(r.longs))}
		case <-timer.C:
			err = &Error{Code: CodeNotReady, Op: op, Err: ErrNoPlace, Why: fmt.Sprintf("it was not begun: %d operations have been running in the machine for %v", cap(places), wait)}
		}
		leave()
		return nil, err
	}
	return leave, nil
}

func (g *gate) join(machine string) *room {
	g.mu.Lock()
	defer g.mu.Unlock()
	r := g.rooms[machine]
	if r == nil {
		r = &room{places: make(chan struct{}, g.width), longs: make(chan struct{}, g.long)}
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
