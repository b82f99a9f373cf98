//go:build unix

package machine

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"smol-mcp/fleet/engine/netfilter"
)

// What this process does for a running machine lives and ends with it: it keeps what
// the console prints, and is the network. While no engine runs, the console goes to a
// ring in QEMU's memory when the engine could say so before its end, else nowhere;
// and the network card has no peer, so nothing gets out.

// hold is one QEMU in this process's care.
type hold struct {
	cancel  context.CancelFunc
	parked  atomic.Bool   // the console goes elsewhere from now on
	drained chan struct{} // closed when no more of the console will come
}

// take begins to look after a machine's QEMU. One that was found has run without us.
func (m *Manager) take(vm *machine, p *process, found bool) {
	ctx, cancel := context.WithCancel(m.life)
	h := &hold{cancel: cancel, drained: make(chan struct{})}
	vm.mu.Lock()
	if vm.held != nil {
		vm.held.cancel()
	}
	vm.held = h
	r := vm.record
	vm.mu.Unlock()
	vm.care.Add(1)
	m.work.Go(func() {
		defer vm.care.Done()
		defer close(h.drained)
		if found {
			m.unpark(ctx, vm, p)
		}
		m.keepConsole(ctx, vm, p, h)
	})
	if r.Spec.Networked() {
		vm.care.Add(1)
		m.work.Go(func() {
			defer vm.care.Done()
			if err := m.connect(ctx, vm, r.Spec, p); err != nil && ctx.Err() == nil {
				m.opts.Log.Warn("machine has no network", "machine", r.Name, "err", err)
			}
		})
	}
}

// whileRuns returns a context that ends with a machine's QEMU.
func (m *Manager) whileRuns(ctx context.Context, vm *machine, p *process) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	vm.mu.Lock()
	h := vm.held
	vm.mu.Unlock()
	if h != nil {
		m.work.Go(func() {
			select {
			case <-h.drained:
				if !p.alive(m.host.bootID) { // else the engine ends
					cancel(errors.New("QEMU ended"))
				}
			case <-ctx.Done():
			}
		})
	}
	return ctx, func() { cancel(nil) }
}

// dialSoon connects to a socket of a QEMU as soon as it is there. It fails when ctx or
// the QEMU has ended.
func (m *Manager) dialSoon(ctx context.Context, vm *machine, p *process, name string) (net.Conn, error) {
	for wait := 2 * time.Millisecond; ; wait = min(2*wait, 500*time.Millisecond) {
		conn, err := dialIn(ctx, vm.dir, name)
		if err == nil {
			return conn, nil
		}
		if !p.alive(m.host.bootID) {
			return nil, err
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, context.Cause(ctx)
		}
	}
}

// lastWords is how long a console is read on when a QEMU is let go of: what it printed
// last may still be on its way.
const lastWords = 200 * time.Millisecond

// keepConsole copies what a console prints to the machine's log, until its QEMU ends
// or we do.
func (m *Manager) keepConsole(ctx context.Context, vm *machine, p *process, h *hold) {
	chunk := make([]byte, 32<<10)
	for !h.parked.Load() {
		conn, err := m.dialSoon(ctx, vm, p, "console.sock")
		if err != nil {
			return
		}
		stop := context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Now().Add(lastWords)) })
		for {
			n, err := conn.Read(chunk)
			if wrote := vm.console.append(chunk[:n]); wrote != nil {
				m.opts.Log.Warn("console not kept", "machine", vm.name(), "err", wrote)
			}
			if err != nil {
				break
			}
		}
		stop()
		conn.Close()
	}
}

// ringSize is what a console may print while no engine runs, in bytes, before the
// oldest of it is lost. It takes as much of QEMU's memory, once printed.
const ringSize = 1 << 20

// unpark takes a console back from its ring. Where an engine was killed there is none.
func (m *Manager) unpark(ctx context.Context, vm *machine, p *process) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	ring, err := m.takeRing(ctx, vm, p)
	what := ""
	switch {
	case err != nil && !errors.Is(err, errNoRing):
		m.opts.Log.Warn("console not found again", "machine", vm.name(), "err", err)
		what = "what was printed while no engine ran may be lost"
	case err != nil:
		what = "what was printed while no engine ran is not kept"
	case len(ring) >= ringSize:
		what = "the beginning of what was printed while no engine ran is not kept"
	}
	if what != "" {
		err = vm.console.note(what)
	}
	if err := errors.Join(err, vm.console.append(ring)); err != nil {
		m.opts.Log.Warn("console not kept", "machine", vm.name(), "err", err)
	}
}

var errNoRing = errors.New("the console went nowhere")

// takeRing returns what a console printed to its ring, and gives the console back to
// its socket.
func (m *Manager) takeRing(ctx context.Context, vm *machine, p *process) ([]byte, error) {
	q, err := m.monitor(ctx, vm.dir, p)
	if err != nil {
		return nil, err
	}
	defer q.Close()
	backend, err := q.Backend(ctx, "console")
	if err != nil {
		return nil, err
	}
	if !strings.HasPrefix(backend, "ringbuf") {
		return nil, errNoRing
	}
	ring, err := q.ReadRing(ctx, "console", ringSize)
	return ring, errors.Join(err, q.ToSocket(ctx, "console", "console.sock"))
}

// Park gives the consoles of all running machines to rings, for an engine that ends:
// early, since whoever ends it may not wait for long. Where QEMU cannot, what is printed
// meanwhile is lost.
func (m *Manager) Park() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	var all sync.WaitGroup
	for _, vm := range m.all() {
		vm.mu.Lock()
		h, p, state := vm.held, vm.record.Process, vm.record.State
		vm.mu.Unlock()
		if h == nil || state != Running || !p.alive(m.host.bootID) || h.parked.Load() {
			continue
		}
		all.Go(func() {
			q, err := m.monitor(ctx, vm.dir, p)
			if err == nil {
				defer q.Close()
				h.parked.Store(true)
				err = q.ToRing(ctx, "console", ringSize)
			}
			if err != nil {
				m.opts.Log.Info("what the machine prints is not kept until the next engine", "machine", vm.name(), "err", err)
				return
			}
			select {
			case <-h.drained:
			case <-ctx.Done():
			}
		})
	}
	all.Wait()
}

// Networked reports whether the machine has a network card.
func (s Spec) Networked() bool { return s.Network || len(s.AllowHosts)+len(s.AllowCIDRs) > 0 }

// policy is what the machine may reach. A list that is there, be it empty, takes the
// place of the open network.
func (s Spec) policy() (netfilter.Policy, error) {
	return netfilter.NewPolicy(s.Network && s.AllowHosts == nil && s.AllowCIDRs == nil, s.AllowHosts, s.AllowCIDRs)
}

// connect is a machine's network until its QEMU ends or we do.
func (m *Manager) connect(ctx context.Context, vm *machine, spec Spec, p *process) error {
	policy, err := spec.policy()
	if err != nil {
		return err
	}
	n, err := netfilter.New(netfilter.Options{Policy: policy, Refused: func(what string) {
		if err := vm.console.note("refused " + what); err != nil {
			m.opts.Log.Warn("console not kept", "machine", vm.name(), "err", err)
		}
	}})
	if err != nil {
		return err
	}
	defer n.Close()
	for {
		conn, err := m.dialSoon(ctx, vm, p, "net.sock")
		if err != nil && !p.alive(m.host.bootID) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := n.Serve(ctx, conn); ctx.Err() == nil {
			m.opts.Log.Debug("network card gone", "machine", vm.name(), "err", err)
		}
	}
}

// socketsOf are the sockets that a QEMU listens on in the directory of its machine.
func socketsOf(dir string) []string {
	var all []string
	for _, name := range []string{"qmp.sock", "agent.sock", "console.sock", "net.sock"} {
		all = append(all, filepath.Join(dir, name))
	}
	return all
}
