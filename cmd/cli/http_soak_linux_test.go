package cli

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

var soakTime = flag.Duration("http.soak", time.Minute, "how long TestHTTPSoak goes on")

// soakRate is how many requests come in a second, by so many clients.
const soakRate, soakClients = 200, 40

// Many clients of both eras, which come and go without a word, for a long time: what the
// server holds afterwards is what it held after the first part.
func TestHTTPSoak(t *testing.T) {
	if testing.Short() {
		t.Skip("a minute")
	}
	p := newHTTPPlace(t, "SMOL_MCP_HTTP_SESSION_IDLE_SECS=2")
	s := p.start()
	keeper := s.connect(handshakeEra, theToken)
	name := newMachine(t, keeper)
	stopKeeping := keepUsing(s, name)

	soak := &soak{server: s, machine: name}
	soak.run(t, *soakTime/4)
	first := settled(t, s, 40)
	soak.run(t, *soakTime*3/4)
	const engineConnections = 16 // kept open at most; how many are in use at once is chance
	last := settled(t, s, first.files+engineConnections)
	stopKeeping()

	rate := float64(soak.calls.Load()) / soakTime.Seconds()
	t.Logf("%d requests, %.0f a second, %d cut off, %d refused; memory %d KiB after a quarter, %d at the end; descriptors %d and %d",
		soak.calls.Load(), rate, soak.cut.Load(), soak.failed.Load(), first.kib, last.kib, first.files, last.files)
	if last.kib > first.kib*5/4+8<<10 {
		t.Errorf("memory grew from %d KiB to %d KiB", first.kib, last.kib)
	}
	if n := soak.failed.Load(); n > 0 {
		t.Errorf("%d requests failed that should not, the first with %v", n, soak.first.Load())
	}
	if rate < soakRate/20 { // a busy computer is no fault of the server
		t.Errorf("only %.0f requests a second", rate)
	}
	eventually(t, "all sessions have ended", 30*time.Second, func() bool { return len(p.machines()) == 0 })
	s.end(syscall.SIGQUIT) // the runtime tells all goroutines
	if n := strings.Count(s.log.String(), "\ngoroutine "); n == 0 || n > 60 {
		t.Errorf("%d goroutines at the end", n)
	} else {
		t.Logf("%d goroutines at the end", n)
	}
}

// keepUsing holds on to a machine until stop.
func keepUsing(s *httpServer, name string) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() {
		r := s.raw(theToken)
		_ = r.open() // without a session the machine goes, and the test fails
		for ctx.Err() == nil {
			_, _ = r.call(ctx, "get-machine", map[string]any{"name": name})
			select {
			case <-ctx.Done():
			case <-time.After(300 * time.Millisecond):
			}
		}
	})
	return func() { cancel(); work.Wait() }
}

type holding struct{ kib, files int }

// settled is what the server holds when its clients are gone, their sessions have ended and no more
// than files descriptors are open.
func settled(t *testing.T, s *httpServer, files int) holding {
	t.Helper()
	http.DefaultClient.CloseIdleConnections()
	var open []string
	defer func() {
		if t.Failed() {
			t.Logf("more than %d descriptors: %q", files, open)
		}
	}()
	eventually(t, "sessions have ended and connections are closed", 30*time.Second, func() bool {
		opened, ended := strings.Count(s.log.String(), `"session opened"`), strings.Count(s.log.String(), `"session ended"`)
		open = s.descriptors()
		return opened-ended <= 2 && len(open) <= files
	})
	return holding{s.memory("VmRSS"), len(open)}
}

type soak struct {
	server  *httpServer
	machine string
	calls   atomic.Int64
	cut     atomic.Int64
	failed  atomic.Int64
	first   atomic.Value // error
}

func (s *soak) run(t *testing.T, d time.Duration) {
	t.Helper()
	end := time.Now().Add(d)
	var clients sync.WaitGroup
	for range soakClients {
		clients.Go(func() {
			r := s.server.raw(theToken)
			for time.Now().Before(end) {
				begin := time.Now()
				if r.id == "" || rand.N(20) == 0 { // the old one is left where it is
					r = s.server.raw(theToken)
					s.note(r.open())
				}
				s.step(r)
				if wait := time.Second*soakClients/soakRate - time.Since(begin); wait > 0 {
					time.Sleep(wait) // the pace
				}
			}
		})
	}
	clients.Wait()
}

// step does one of the things that clients do.
func (s *soak) step(r *rawSession) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var err error
	switch n := rand.N(20); {
	case n < 1: // what works in a guest costs this computer most: the fake engine's are processes here
		_, err = r.call(ctx, "get-machine", map[string]any{"name": s.machine})
	case n < 7:
		_, err = r.call(ctx, "list-machines", nil)
	case n < 13:
		_, _, err = r.post(ctx, fmt.Sprintf(`{"jsonrpc":"2.0","id":"list-%d","method":"tools/list"}`, r.count.Add(1)))
	case n < 14:
		_, err = r.call(ctx, "run-command", map[string]any{"name": s.machine, "command": "true"})
	case n < 16:
		modern := *r
		modern.id, modern.modern = "", true
		_, err = modern.call(ctx, "list-machines", nil)
	case n < 17:
		_, _, err = r.do(ctx, http.MethodDelete, "")
		r.id = ""
	default: // cut off in the middle of something
		short, stop := context.WithTimeout(ctx, time.Duration(rand.N(8))*time.Millisecond)
		defer stop()
		switch n {
		case 17:
			_, _, _ = r.do(short, http.MethodGet, "")
		case 18:
			_, _ = r.call(short, "run-command", map[string]any{"name": s.machine, "command": "sleep 0.01"})
		default:
			modern := *r
			modern.id, modern.modern = "", true
			_, _ = modern.call(short, "get-machine", map[string]any{"name": s.machine})
		}
		s.cut.Add(1)
	}
	if err != nil && strings.Contains(err.Error(), "session not found") {
		r.id, err = "", nil // on a busy computer it was idle for too long
	}
	s.note(err)
}

func (s *soak) note(err error) {
	s.calls.Add(1)
	if err != nil && s.failed.Add(1) == 1 {
		s.first.Store(err)
	}
}
