//go:build unix

package reaper_test

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

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
	if p.elsewhere {
		cmd.Env = append(cmd.Env, targetEnv+"=1")
	}
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
			crashAtEach(t, points, false, lose)
		})
	}
}

// W11: the same with machines elsewhere, which outlive a boot of this computer too.
func TestCrashAtEachPlaceElsewhere(t *testing.T) {
	boot := func(p *places) error { p.boot = "next boot"; return nil }
	losses := map[string]func(p *places) error{
		"both nets":         func(*places) error { return nil },
		"boot":              boot,
		"boot, ledger only": func(p *places) error { return errors.Join(boot(p), os.RemoveAll(p.run)) },
	}
	for name, lose := range losses {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			crashAtEach(t, points[slices.Index(points, "intend-ledger"):], true, lose)
		})
	}
}

func crashAtEach(t *testing.T, points []string, elsewhere bool, lose func(*places) error) {
	cases := 0
	for _, point := range points {
		for n := 1; ; n++ {
			if !crashAt(t, fmt.Sprintf("%s=kill@%d", point, n), elsewhere, lose) {
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
}

// crashAt lets a process live until it dies at fp, and reports whether it did.
func crashAt(t *testing.T, fp string, elsewhere bool, lose func(*places) error) bool {
	p, w := newPlaces(t), newWorld()
	p.elsewhere, w.ids = elsewhere, elsewhere
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
