//go:build unix

package reaper_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// T4: six servers live, die and are stopped at random; then one gc has to leave
// nothing, and no live session may have lost a machine.
// W3: of many processes that create at once, every machine is recorded.
func TestSoak(t *testing.T) {
	seeds, span := []uint64{1}, 8*time.Second
	if *long {
		seeds, span = []uint64{1, 2, 3}, 40*time.Second
	}
	for _, elsewhere := range []bool{false, true} {
		for _, seed := range seeds {
			t.Run(fmt.Sprintf("%d elsewhere %v", seed, elsewhere), func(t *testing.T) {
				r := soak(t, seed, span, elsewhere)
				t.Log(r)
				if r.leaked > 0 || r.harmed > 0 {
					t.Errorf("%d machines leaked, %d live sessions lost one:\n%s", r.leaked, r.harmed, r.words)
				}
				if r.killed == 0 || r.created == 0 {
					t.Error("nothing happened")
				}
			})
		}
	}
}

// The harness has to find what it is there for.
func TestSoakFindsLeaks(t *testing.T) {
	for seed := range uint64(5) {
		if r := soak(t, 100+seed, 6*time.Second, false, "SMOL_MCP_TEST_NO_INTENT=1"); r.leaked > 0 {
			t.Log(r)
			return
		}
	}
	t.Error("records written after the create did not leak")
}

func TestSoakFindsHarm(t *testing.T) {
	for seed := range uint64(5) {
		if r := soak(t, 200+seed, 6*time.Second, false, "SMOL_MCP_FP_HEARTBEAT=300ms"); r.harmed > 0 {
			t.Log(r)
			return
		}
	}
	t.Error("heartbeats in place of locks did no harm")
}

// soaked is what came of a soak.
type soaked struct {
	killed, failed, exited, created, adopted int
	leaked, harmed                           int
	words                                    string
}

func (r soaked) String() string {
	return fmt.Sprintf("%d killed, %d died at failpoints, %d exited, %d machines made, %d adopted, %d leaked, %d live sessions harmed",
		r.killed, r.failed, r.exited, r.created, r.adopted, r.leaked, r.harmed)
}

const servers = 6

func soak(t *testing.T, seed uint64, span time.Duration, elsewhere bool, env ...string) soaked {
	t.Helper()
	p, w := newPlaces(t), newWorld()
	p.elsewhere, w.ids = elsewhere, elsewhere
	faults := newFaults(seed)
	w.before, w.after = faults.before, faults.after
	sock := w.serve(t)
	env = append(env, "SMOL_MCP_FP=*=kill%0.2,*=stop%0.05", "SMOL_MCP_TEST_GRACE=2s")
	ctx, cancel := context.WithTimeout(t.Context(), span)
	defer cancel()
	var mu sync.Mutex
	var r soaked
	var wg sync.WaitGroup
	for i := range uint64(servers) {
		wg.Go(func() {
			for n := uint64(0); ctx.Err() == nil; n++ {
				one := p.lifeOf(t, ctx, sock, seed*1_000_000+i*1000+n, env)
				mu.Lock()
				r.add(one)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	w.rest() // requests outlive their senders
	for _, c := range w.calls {
		if strings.HasPrefix(c, "create") && strings.HasSuffix(c, " ") {
			r.created++
		}
	}
	p.collect(t, w)
	left := w.names()
	r.leaked = len(left)
	if r.leaked > 0 {
		r.words += fmt.Sprintln("left:", left)
		for _, c := range w.times {
			if f := strings.Fields(c); left[strings.TrimSuffix(f[2], ",")] != 0 {
				r.words += c + "\n"
			}
		}
	}
	if len(env) == 2 {
		p.clean(t, w)
	}
	return r
}

func (r *soaked) add(o soaked) {
	r.killed += o.killed
	r.failed += o.failed
	r.exited += o.exited
	r.adopted += o.adopted
	r.harmed += o.harmed
	r.words += o.words
}

// lifeOf runs one server until it ends, is killed, or the time is up.
func (p *places) lifeOf(t testing.TB, ctx context.Context, sock string, seed uint64, env []string) (r soaked) {
	rnd := newFaults(seed)
	cmd := p.worker(t, "server", sock, append(env, fmt.Sprintf("SMOL_MCP_TEST_SEED=%d", seed))...)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Error(err)
		return r
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	mine := false
	kill := time.After(time.Duration(200+rnd.intN(4000)) * time.Millisecond)
	stop := time.After(time.Duration(100+rnd.intN(5000)) * time.Millisecond)
	wake := time.NewTicker(900 * time.Millisecond)
	defer wake.Stop()
	for {
		select {
		case <-done:
			r.adopted = strings.Count(out.String(), "adopted")
			switch {
			case strings.Contains(out.String(), "lost a machine"):
				r.harmed, r.words = 1, out.String()
			case mine:
				r.killed = 1
			case cmd.ProcessState.Success():
				r.exited = 1
			case cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL:
				r.failed = 1
			default:
				r.words = out.String()
				t.Errorf("a server failed: %s", r.words)
			}
			return r
		case <-kill:
			mine = true
			cmd.Process.Kill()
		case <-stop:
			cmd.Process.Signal(syscall.SIGSTOP)
		case <-wake.C: // also those that a failpoint stopped
			cmd.Process.Signal(syscall.SIGCONT)
		case <-ctx.Done():
			mine = true
			cmd.Process.Kill()
			ctx = context.Background()
		}
	}
}

// faults are what the soak's fleet suffers from.
type faults struct {
	mu  sync.Mutex
	rnd interface{ IntN(int) int }
}

func (f *faults) intN(n int) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.rnd.IntN(n)
}

func (f *faults) before(op, name string) error {
	// a request takes its time, and is carried out even when its sender has died
	time.Sleep(time.Duration(f.intN(20)) * time.Millisecond)
	if f.intN(100) < 5 && op != "get" {
		return errServer
	}
	return nil
}

func (f *faults) after(op, name string) error {
	if f.intN(100) < 2 && op != "get" {
		return errLost
	}
	return nil
}

func newFaults(seed uint64) *faults { return &faults{rnd: rand.New(rand.NewPCG(seed, 2))} }
