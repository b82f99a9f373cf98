//go:build linux

package engine_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"smol-mcp/fleet"
	"smol-mcp/fleet/engine/image"
)

// supervised is a client whose engine is found and started as the server does it, with
// a runtime directory. Another one is another process, as far as engines can tell.
func supervised(t *testing.T, runtime string) (*fleet.Smolvm, *fleet.Engine) {
	t.Helper()
	e := fleet.NewEngine(fleet.EngineOptions{Kind: "qemu", Dir: func() (string, error) { return runtime, os.MkdirAll(runtime, 0o700) }})
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return connect(t, e), e
}

// connect is a client with connections of its own.
func connect(t *testing.T, e *fleet.Engine) *fleet.Smolvm {
	t.Helper()
	f := fleet.NewSmolvm(e.Dial, fleet.SmolvmOptions{})
	t.Cleanup(func() { f.Close() })
	return f
}

// home gives engines that are started in this test a home of their own, with the
// kernel and templates of all tests.
func home(t *testing.T) string {
	t.Helper()
	needMachines(t)
	dir, err := os.MkdirTemp("", "h")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	shareCache(t, dir+"/cache")
	t.Setenv("XDG_CACHE_HOME", dir+"/cache")
	t.Setenv("XDG_DATA_HOME", dir+"/data")
	t.Setenv("PATH", shared.programs+":"+os.Getenv("PATH"))
	return dir
}

// daemons counts the engines that listen below a directory.
func daemons(dir string) int {
	n := 0
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, l := range lines {
		text, _ := os.ReadFile(l)
		if strings.Contains(string(text), "serve\x00--listen\x00unix://"+dir+"/") {
			n++
		}
	}
	return n
}

// The engine's socket, or all of its runtime directory as a logout does, is removed
// under it. The next call gets an engine all the same; machine and command go on, and
// the old engine does not stay.
func TestSocketGone(t *testing.T) {
	for _, gone := range []string{"run/engine.sock", "run"} {
		t.Run(gone, func(t *testing.T) {
			dir := home(t)
			f, e := supervised(t, dir+"/run")
			vm := booted(t, f, fleet.Spec{Name: "vm"})
			before, err := f.Get(t.Context(), vm)
			must(t, err)
			sh(t, f, vm, "(sleep 1; echo done >/root/done) >/dev/null 2>&1 &")
			must(t, os.RemoveAll(filepath.Join(dir, gone)))
			if gone == "run" {
				f, e = supervised(t, dir+"/run")
			} else {
				f = connect(t, e) // the first one's kept connections would do
			}
			begun := time.Now()
			after, err := f.Get(t.Context(), vm)
			if err != nil || after.PID != before.PID || after.State != fleet.Running {
				t.Errorf("before %+v, after %+v, %v", before, after, err)
			}
			t.Logf("there again after %v", time.Since(begun))
			sh(t, f, vm, "for i in 1 2 3 4 5 6 7 8 9 10; do [ -e /root/done ] && exit 0; sleep 1; done; exit 1")
			eventually(t, "the old engine has ended", func() bool { return daemons(dir) == 1 })
			if _, err := f.Delete(t.Context(), vm); err != nil {
				t.Error(err)
			}
			if n := hypervisors(dir); n > 0 {
				t.Errorf("%d hypervisors are left", n)
			}
		})
	}
}

// A server with another runtime directory is told whose engine has the machines, and how to
// use it; that works.
func TestOtherRuntimeDirectory(t *testing.T) {
	dir := home(t)
	f, e := supervised(t, dir+"/run")
	vm := booted(t, f, fleet.Spec{Name: "vm"})
	other, _ := supervised(t, dir+"/run2")
	_, err := other.List(t.Context())
	status := e.Status()
	use := "SMOL_LOCAL_URL=" + status.URL
	for _, want := range []string{dir + "/data/smol-engine is in use", fmt.Sprintf("pid %d,", status.PID), use + " uses that one", "XDG_DATA_HOME"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in %v", want, err)
		}
	}
	t.Log(err)
	third := fleet.NewEngine(fleet.EngineOptions{Kind: "qemu", URL: status.URL, Dir: func() (string, error) { return dir + "/run2", nil }})
	defer third.Close()
	if got := sh(t, connect(t, third), vm, "echo works"); got != "works\n" {
		t.Errorf("got %q", got)
	}
	if _, err := f.Delete(t.Context(), vm); err != nil {
		t.Error(err)
	}
}

// The engine is killed at random moments of machines' lives, also while it makes a
// template. The next one finds nothing that is not whole, and after a delete of what it
// finds nothing is left.
func TestKilledAnytime(t *testing.T) {
	for _, c := range []struct {
		what   string
		own    bool // a cache of its own, so that template and image are made too
		rounds int
		most   time.Duration
	}{{"lives", false, 4, 2500 * time.Millisecond}, {"templates", true, 1, 4500 * time.Millisecond}} {
		t.Run(c.what, func(t *testing.T) {
			p := spawn(t, func(p *program) {
				if c.own {
					p.opts.Cache = filepath.Dir(p.opts.Data) + "/cache"
				}
			})
			for round := range c.rounds {
				after := rand.N(c.most)
				if c.own {
					must(t, os.RemoveAll(p.opts.Cache+"/templates")) // no engine's machine needs them
				}
				p.live(t, after)
				t.Logf("round %d: killed after %v", round, after)
				p.whole(t, c.own)
			}
		})
	}
}

// live makes, uses, stops and deletes machines until the engine is killed.
func (p *program) live(t *testing.T, forAs time.Duration) {
	f := p.client(t)
	ctx, cancel := context.WithCancel(t.Context())
	var lives sync.WaitGroup
	for i := range 2 {
		lives.Go(func() {
			name := fmt.Sprintf("vm-%d", i)
			for ctx.Err() == nil {
				_, _ = f.Create(ctx, fleet.Spec{Name: name, Image: image.Builtin, MemoryMB: 512, CPUs: 1}) // anything may be cut off
				_, _ = f.Exec(ctx, name, fleet.Command{Argv: []string{"true"}, Timeout: time.Minute})
				if i == 0 {
					_, _ = f.Stop(ctx, name, fleet.StopOptions{})
				}
				_, _ = f.Delete(ctx, name)
			}
		})
	}
	time.Sleep(forAs) // the moment is what is tested
	p.kill(t, syscall.SIGKILL)
	cancel()
	lives.Wait()
}

// whole starts the engine again, checks what it finds, and deletes it. With a cache of
// its own a start would have to make a template first, so there is none.
func (p *program) whole(t *testing.T, own bool) {
	t.Helper()
	p.exec(t)
	f := p.client(t)
	var list []fleet.Machine
	// A guest that was told to end just before goes on to do so.
	eventually(t, "as many hypervisors as machines that run", func() bool {
		var err error
		list, err = f.List(t.Context())
		must(t, err)
		running := 0
		for _, m := range list {
			if m.State == fleet.Running {
				running++
			} else if m.State != fleet.Created && m.State != fleet.Stopped && m.State != fleet.Unreachable {
				t.Fatalf("%+v", m)
			}
		}
		return hypervisors(p.opts.Data, p.opts.Cache) == running
	})
	if len(list) > 0 && !own { // also one that was never started
		eventually(t, "a machine works", func() bool {
			res, err := f.Exec(t.Context(), list[0].Name, fleet.Command{Argv: []string{"true"}, Timeout: time.Minute})
			return err == nil && res.ExitCode == 0
		})
	}
	p.deleteAll(t)
	if left := contents(t, filepath.Join(p.opts.Data, "machines")); len(left) != 1 {
		t.Errorf("left behind: %q", left)
	}
	for _, half := range []string{"/templates/new-*", "/images/new-*"} {
		if left, _ := filepath.Glob(p.opts.Cache + half); len(left) > 0 {
			t.Errorf("left behind: %q", left)
		}
	}
	if n := hypervisors(p.opts.Data, p.opts.Cache); n > 0 {
		t.Errorf("%d hypervisors are left", n)
	}
}
