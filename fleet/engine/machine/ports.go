//go:build unix

package machine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"syscall"
	"time"
)

// forwards are the published ports of a running machine: listeners on this
// computer's loopback whose connections go through the agent, so that no network
// card is needed.
type forwards struct {
	listeners []net.Listener
	cancel    context.CancelFunc
}

// publish listens on all ports, or on none. A computer without IPv6 has no second
// loopback.
func (m *Manager) publish(vm *machine, ports []Port) (*forwards, error) {
	ctx, cancel := context.WithCancel(m.life)
	f := &forwards{cancel: cancel}
	for _, p := range ports {
		for _, loopback := range []string{"127.0.0.1", "::1"} {
			l, err := net.Listen("tcp", net.JoinHostPort(loopback, strconv.Itoa(p.Host)))
			if errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, syscall.EAFNOSUPPORT) {
				continue
			}
			if err != nil {
				f.close()
				return nil, &Error{PortInUse, fmt.Sprintf("host port %d is already in use: %v", p.Host, err)}
			}
			f.listeners = append(f.listeners, l)
			m.work.Go(func() { m.accept(ctx, vm, l, p.Guest) })
		}
	}
	return f, nil
}

// close ends the listeners and their connections. Close of the manager waits for
// the goroutines.
func (f *forwards) close() {
	f.cancel()
	for _, l := range f.listeners {
		l.Close()
	}
}

// accept takes connections until the listener is closed.
func (m *Manager) accept(ctx context.Context, vm *machine, l net.Listener, port int) {
	for {
		conn, err := l.Accept()
		if ctx.Err() != nil {
			return
		}
		if err != nil { // too many open files, for one
			time.Sleep(100 * time.Millisecond)
			continue
		}
		m.work.Go(func() {
			defer conn.Close()
			if err := m.relay(ctx, vm, conn, port); err != nil {
				m.opts.Log.Debug("connection not forwarded", "machine", vm.name(), "port", port, "err", err)
			}
		})
	}
}

// relay joins a connection to a port of the guest until both have ended.
func (m *Manager) relay(ctx context.Context, vm *machine, conn net.Conn, port int) error {
	dial, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	c, err := vm.theLink().get(dial)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	return c.Forward(ctx, port, conn)
}
