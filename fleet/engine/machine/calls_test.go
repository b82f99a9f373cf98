//go:build unix

package machine

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"
)

// A delete cuts short all starts of the machine, also those that wait for another.
func TestDeleteCutsAllStarts(t *testing.T) {
	registry, err := net.Listen("tcp", "127.0.0.1:0") // one that takes its time
	must(t, err)
	var conns sync.WaitGroup
	asked := make(chan struct{}, 100)
	conns.Go(func() {
		for {
			conn, err := registry.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
			asked <- struct{}{}
		}
	})
	t.Cleanup(func() { registry.Close(); conns.Wait() })
	m, _ := managerOf(t, "", Spec{Image: registry.Addr().String() + "/slow:1"})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	const starts = 3 // as that many calls of run-command at once do
	started := make(chan error, starts)
	for range starts {
		go func() { _, err := m.Start(ctx, "m"); started <- err }()
	}
	<-asked
	time.Sleep(50 * time.Millisecond) // for the others to wait behind the first
	deleted := make(chan error, 1)
	go func() { deleted <- m.Delete("m") }()
	select {
	case err := <-deleted:
		must(t, err)
	case <-time.After(30 * time.Second):
		t.Errorf("not deleted yet, and the registry was asked %d times more", len(asked))
		cancel()
	}
	for range starts {
		var e *Error
		if err := <-started; err == nil || !strings.Contains(err.Error(), errDeleting.Error()) && !(errors.As(err, &e) && e.Kind == NotFound) {
			t.Errorf("a start of it ended with %v", err)
		}
	}
}

// A start that is cut short while it asks a running machine whether it is there, as by the end of
// the engine, has not heard that the machine is silent: it stays as it is.
func TestStartCutShort(t *testing.T) {
	m, vm := managerOf(t, "", Spec{Image: "127.0.0.1:1/none"})
	_, guest, _ := running(t, vm)
	ctx, cancel := context.WithCancel(t.Context())
	var asked sync.WaitGroup
	asked.Go(func() {
		conn, err := guest.Accept()
		if err != nil {
			t.Error(err)
			return
		}
		cancel() // before an answer
		<-m.life.Done()
		conn.Close()
	})
	t.Cleanup(func() { m.end(); asked.Wait() })
	begin := time.Now()
	_, err := m.Start(ctx, "m")
	if time.Since(begin) >= 3*time.Second {
		t.Skip("too busy: the guest was given up before the start was cut short")
	}
	if r := m.seen(vm); r.State != Running || !errors.Is(err, context.Canceled) {
		t.Errorf("the machine is %s, and the start says: %v", r.State, err)
	}
}

// A stop that is cut short, as by the end of the engine, leaves the guest its time to write down
// what it has.
func TestStopCutShort(t *testing.T) {
	m, vm := managerOf(t, "", Spec{Image: "127.0.0.1:1/none"})
	qemu, guest, finish := running(t, vm)
	p := m.seen(vm).Process
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var asked sync.WaitGroup
	asked.Go(func() {
		conn, _, request, err := guestOf(guest)
		if err != nil || !strings.Contains(string(request), "poweroff") {
			t.Errorf("asked %q, %v", request, err)
			return
		}
		defer conn.Close() // as QEMU does at its end
		cancel()
		time.Sleep(200 * time.Millisecond) // of work, during which it must not be killed
		_ = finish()                       // fails if it was
		awaitEnd(context.Background(), p.PID, p.Begun, time.Minute)
	})
	begin := time.Now()
	r, err := m.Stop(ctx, "m")
	took := time.Since(begin)
	asked.Wait()
	if took >= 9*time.Second {
		t.Skip("too busy: the guest had ten seconds and did not come to its end")
	}
	if err != nil || r.State != Stopped {
		t.Errorf("%s, %v", r.State, err)
	}
	if err := qemu.Wait(); err != nil {
		t.Errorf("the machine did not end by itself after %v: %v", took, err)
	}
}
