//go:build unix

package machine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"smol-mcp/fleet/engine/agent"
)

// link is the conversation with a guest's agent. QEMU serves one connection at a
// time, so all that is asked of a guest goes over this one; when it breaks, the
// next that asks makes it anew.
type link struct {
	dir string

	turn   chan struct{} // held while dialling
	mu     sync.Mutex
	client *agent.Client
	closed bool
}

func newLink(dir string) *link { return &link{dir: dir, turn: make(chan struct{}, 1)} }

// get returns a conversation, dialling for as long as ctx lasts.
func (l *link) get(ctx context.Context) (*agent.Client, error) {
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %w", agent.ErrGone, context.Cause(ctx))
	}
	l.mu.Lock()
	c, closed := l.client, l.closed
	l.mu.Unlock()
	if closed {
		return nil, fmt.Errorf("%w: the machine is stopped", agent.ErrGone)
	}
	if c != nil {
		select {
		case <-c.Gone():
			c.Close()
		default:
			return c, nil
		}
	}
	c, err := agent.Dial(ctx, func(ctx context.Context) (net.Conn, error) { return dialIn(ctx, l.dir, "agent.sock") })
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		c.Close()
		return nil, fmt.Errorf("%w: the machine is stopped", agent.ErrGone)
	}
	l.client = c
	return c, nil
}

func (l *link) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	if l.client != nil {
		l.client.Close()
	}
}

// link returns the conversation of a running machine; vm.mu is taken.
func (vm *machine) theLink() *link {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	if vm.link == nil {
		vm.link = newLink(vm.dir)
	}
	return vm.link
}

// Guest is a running machine and the conversation with its guest.
type Guest struct {
	*agent.Client
	Record  Record
	Started bool // for whoever asked
}

// Guest returns the conversation with the guest of a machine. One that does not run is
// started, or, unless start, refused.
func (m *Manager) Guest(ctx context.Context, name string, start bool) (Guest, error) {
	vm, err := m.find(name)
	if err != nil {
		return Guest{}, err
	}
	var g Guest
	if state := m.seen(vm).State; state != Running {
		if !start {
			return g, &Error{NotRunning, "machine '" + name + "' is " + string(state)}
		}
		if _, err := m.Start(ctx, name); err != nil {
			return g, err
		}
		g.Started = true
	}
	g.Record = m.seen(vm)
	if g.Record.State != Running {
		return g, errors.New("the machine ended right after its start")
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	g.Client, err = vm.theLink().get(ctx)
	return g, err
}

// ping asks a guest whether it is there.
func (m *Manager) ping(ctx context.Context, vm *machine) error {
	c, err := vm.theLink().get(ctx)
	if err != nil {
		return err
	}
	_, err = c.Call(ctx, agent.Request{Op: "ping"})
	return err
}

// powerOff asks a guest to end, and waits for it, ten seconds at most, also when ctx ends: what
// the guest is writing would be lost.
func (m *Manager) powerOff(ctx context.Context, vm *machine, p *process) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	c, err := vm.theLink().get(ctx)
	if err == nil {
		_, err = c.Call(ctx, agent.Request{Op: "poweroff"})
	}
	if err != nil && !errors.Is(err, agent.ErrGone) {
		m.opts.Log.Info("guest does not end by itself", "machine", vm.name(), "err", err)
		return
	}
	if p != nil {
		awaitEnd(ctx, p.PID, p.Begun, 10*time.Second)
	}
}
