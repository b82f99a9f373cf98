package tools

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"smol-mcp/fleet"
	"smol-mcp/fleet/fleettest"
	"smol-mcp/store"
)

// callOf is a call of a session of its own.
func callOf(t *testing.T) *call {
	t.Helper()
	dir := t.TempDir()
	st := store.New(store.Options{RuntimeDir: dir + "/run", StateDir: dir + "/state"})
	s := New(Options{Fleets: []fleet.Fleet{fleettest.NewMemory(fleettest.MemoryOptions{})}, Store: st}, "stdio")
	t.Cleanup(func() {
		if _, err := s.End(context.Background()); err != nil {
			t.Error(err)
		}
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	})
	return &call{Session: s, site: s.sites[0], stage: func(string, ...any) {}}
}

const jobID = "abcdefabcdef"

// A command that was sent in the moment in which its call was cancelled, and ran, is not told as
// one that was not begun.
func TestSentWhenCancelled(t *testing.T) {
	c := callOf(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r, err := c.dispatch(ctx, "m", jobID, job{timeout: time.Minute, wait: time.Minute}, launch{
		releaseAfter: time.Hour,
		send: func(open context.Context, sent func()) (reply, error) {
			<-open.Done() // by now it is given up as not sent
			sent()
			return reply{line: []string{"exit", "0"}}, nil
		},
	})
	if err != nil || r.word(0) != "exit" {
		t.Errorf("it ran to its end, and the call says %q, %v", r.line, err)
	}
}

// Of jobs that are launched at once mostAttached keep their requests open and no more, until they
// have ended; then as many others do.
func TestMostAttached(t *testing.T) {
	c := callOf(t)
	j := job{timeout: time.Minute, wait: time.Minute}
	launched := func(n int) (attached []launch) {
		all, begin := make(chan launch, n), make(chan struct{})
		for range n {
			go func() {
				<-begin
				all <- c.launching("m", "", jobID, "", j)
			}()
		}
		close(begin)
		for range n {
			if l := <-all; l.attached {
				attached = append(attached, l)
			}
		}
		return attached
	}
	for range 2 {
		attached := launched(20)
		if len(attached) != mostAttached {
			t.Fatalf("%d jobs keep their requests open at once, and %d may", len(attached), mostAttached)
		}
		var open atomic.Int32
		var all sync.WaitGroup
		for _, l := range attached {
			l.send = func(context.Context, func()) (reply, error) {
				open.Add(1)
				return reply{line: []string{"exit", "0"}}, nil
			}
			all.Go(func() {
				if _, err := c.dispatch(t.Context(), "m", jobID, j, l); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if n := open.Load(); n != mostAttached {
			t.Errorf("%d were sent", n)
		}
		for c.attached.of("m") > 0 {
			time.Sleep(time.Millisecond) // a place is given back after the answer
		}
	}
}
