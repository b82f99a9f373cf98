//go:build unix

package reaper_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"smol-mcp/store"
)

var long = flag.Bool("long", false, "run the long forms of the crash tests")

// buildWorker builds this test binary once more, with failpoints in it.
var buildWorker = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "smol-mcp-worker-")
	if err != nil {
		return "", err
	}
	os.Setenv(workerDir, dir) // for TestMain to remove
	bin := filepath.Join(dir, "worker")
	out, err := exec.Command("go", "test", "-c", "-tags", "failpoints", "-o", bin, ".").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build the worker: %w\n%s", err, out)
	}
	return bin, nil
})

// worker returns a process that lives in p and w.
func (p *places) worker(t testing.TB, role, sock string, env ...string) *exec.Cmd {
	t.Helper()
	bin, err := buildWorker()
	check(t, err)
	cmd := exec.Command(bin)
	cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0", "SMOL_MCP_TEST_ROLE="+role, "SMOL_MCP_TEST_WORLD="+sock,
		"SMOL_MCP_TEST_RUN="+p.run, "SMOL_MCP_TEST_STATE="+p.state)
	cmd.Env = append(cmd.Env, env...)
	return cmd
}

// points are the places at which a process may die, in the order of a life.
var points = []string{
	"inst-rename", "db-link", "db-commit", "adopt",
	"intend-ledger", "intend-done", "create-before", "create-after", "confirm", "drop-ledger",
	"tombstone", "claim", "delete-before", "delete-after", "settle", "end",
}

// T3, and the three ways to lose a net: a process dies at each place of a
// life, then something is lost with it, then one gc has to leave nothing behind.
// W7: also between the request to create a machine and its reply.
func TestCrashAtEachPlace(t *testing.T) {
	losses := map[string]func(p *places) error{
		"both nets":    func(*places) error { return nil },
		"ledger only":  func(p *places) error { return os.RemoveAll(p.run) },
		"records only": func(p *places) error { return os.RemoveAll(p.state) },
	}
	for name, lose := range losses {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cases := 0
			for _, point := range points {
				for n := 1; ; n++ {
					if !crashAt(t, fmt.Sprintf("%s=kill@%d", point, n), lose) {
						if n == 1 {
							t.Errorf("no life comes by %s", point)
						}
						break
					}
					cases++
					if t.Failed() {
						t.Fatalf("after a death at %s, time %d", point, n)
					}
				}
			}
			t.Logf("%d deaths", cases)
		})
	}
}

// crashAt lets a process live until it dies at fp, and reports whether it did.
func crashAt(t *testing.T, fp string, lose func(*places) error) bool {
	p, w := newPlaces(t), newWorld()
	sock := w.serve(t)
	if !strings.HasPrefix(fp, "db-link") { // which only the first process comes by
		if out, err := p.worker(t, "orphan", sock, "SMOL_MCP_TEST_GRACE=1h").CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	cmd := p.worker(t, "life", sock, "SMOL_MCP_FP="+fp)
	out, err := cmd.CombinedOutput()
	if err != nil && cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("%s: %v\n%s", fp, err, out)
	}
	died := err != nil
	check(t, lose(p))
	p.collect(t, w)
	if died && w.names()["kept"] == 0 {
		p.clean(t, w) // it was not made yet
	} else {
		p.clean(t, w, "kept")
	}
	return died
}

// T5: a process dies while it builds the file anew, makes it small, or writes
// again what it owns.
func TestCrashWhileMending(t *testing.T) {
	for _, point := range []string{"db-link", "mend-rename", "mend-renamed", "compact-rename", "inst-rename"} {
		t.Run(point, func(t *testing.T) {
			p, w := newPlaces(t), newWorld()
			sock := w.serve(t)
			if out, err := p.worker(t, "orphan", sock, "SMOL_MCP_TEST_GRACE=1h").CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			live := p.open(t)
			s := live.NewSession("stdio", "live")
			mine := mustMake(t, s, w, wish("mcp-live", store.Ephemeral), "")
			died := 0
			for range 5 {
				switch point {
				case "db-link":
					check(t, os.RemoveAll(p.run))
				case "mend-rename", "mend-renamed":
					check(t, os.Truncate(filepath.Join(p.run, "state.db"), 8192))
				}
				if out, err := p.worker(t, "mender", sock, "SMOL_MCP_FP="+point+"=kill").CombinedOutput(); err != nil {
					died++
				} else if point != "db-link" { // the live one may have been faster there
					t.Fatalf("it came by no %s: %s", point, out)
				}
				rec, ok, err := s.Use(t.Context(), local("mcp-live"))
				if err != nil || !ok || rec.UID != mine.UID {
					t.Fatalf("the live session: %+v %v %v", rec, ok, err)
				}
				mustMake(t, s, w, wish(fmt.Sprintf("mcp-%d", died), store.Once), "")
			}
			if died == 0 {
				t.Error("nobody died")
			}
			recs, err := s.End(t.Context())
			check(t, err)
			check(t, newReaper(live, w).Remove(t.Context(), recs...))
			check(t, live.Close())
			p.collect(t, w)
			p.clean(t, w)
		})
	}
}

// T6, I5, F13: a reaper dies between its claim and its request; another one
// finishes within two sweeps.
func TestReaperDies(t *testing.T) {
	times := 200
	if testing.Short() {
		times = 20
	}
	p, w := newPlaces(t), newWorld()
	sock := w.serve(t)
	st := p.open(t)
	r := newReaper(st, w)
	for n := range times {
		s := p.open(t)
		name := fmt.Sprintf("mcp-%d", n)
		mustMake(t, s.NewSession("stdio", "test"), w, wish(name, store.Once), "")
		check(t, s.Abort())
		if out, err := p.worker(t, "sweeper", sock, "SMOL_MCP_FP=claim=kill").CombinedOutput(); err == nil {
			t.Fatalf("it did not die: %s", out)
		}
		if w.names()[name] == 0 {
			t.Fatal("it did not die in time")
		}
		for range 2 {
			_, err := r.Sweep(t.Context())
			check(t, err)
		}
		if left := w.names(); len(left) != 0 {
			t.Fatalf("after two sweeps: %v", left)
		}
	}
	check(t, st.Close())
	p.collect(t, w)
	p.clean(t, w)
}

// T4: six servers live, die and are stopped at random; then one gc has to leave
// nothing, and no live session may have lost a machine.
// W3: of many processes that create at once, every machine is recorded.
func TestSoak(t *testing.T) {
	seeds, span := []uint64{1}, 8*time.Second
	if *long {
		seeds, span = []uint64{1, 2, 3}, 40*time.Second
	}
	for _, seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := soak(t, seed, span)
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

// The harness has to find what it is there for.
func TestSoakFindsLeaks(t *testing.T) {
	for seed := range uint64(5) {
		if r := soak(t, 100+seed, 6*time.Second, "SMOL_MCP_TEST_NO_INTENT=1"); r.leaked > 0 {
			t.Log(r)
			return
		}
	}
	t.Error("records written after the create did not leak")
}

func TestSoakFindsHarm(t *testing.T) {
	for seed := range uint64(5) {
		if r := soak(t, 200+seed, 6*time.Second, "SMOL_MCP_FP_HEARTBEAT=300ms"); r.harmed > 0 {
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

func soak(t *testing.T, seed uint64, span time.Duration, env ...string) soaked {
	t.Helper()
	p, w := newPlaces(t), newWorld()
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
