//go:build linux

package engine_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"smol-mcp/fleet"
	"smol-mcp/fleet/engine/image"
)

// The engine is killed while a command runs: the machine is found as it was, and the
// command runs to its end.
func TestKilledInExec(t *testing.T) {
	t.Parallel()
	p := spawn(t, nil)
	f := p.client(t)
	vm := booted(t, f, fleet.Spec{Name: "vm"})
	before := p.record(t, vm)
	var wg sync.WaitGroup
	wg.Go(func() {
		_, err := f.Exec(t.Context(), vm, fleet.Command{Argv: []string{"/bin/sh", "-c", "echo begun >/root/begun; sleep 3; echo done >/root/done"}, Timeout: time.Minute})
		if !fleet.MaybeDone(err) {
			t.Errorf("the command's outcome was not seen, and the error is %v", err)
		}
	})
	eventually(t, "the command runs", func() bool {
		res, err := f.Exec(t.Context(), vm, fleet.Command{Argv: []string{"cat", "/root/begun"}, Timeout: time.Minute})
		return err == nil && res.ExitCode == 0
	})
	p.kill(t, syscall.SIGKILL)
	wg.Wait()
	p.exec(t)
	f = p.client(t)
	if after := p.record(t, vm); after.Process == nil || after.Process.PID != before.Process.PID {
		t.Errorf("before %+v, after %+v", before, after)
	}
	if s := state(t, f, vm); s != fleet.Running {
		t.Errorf("the machine is %s", s)
	}
	sh(t, f, vm, "for i in 1 2 3 4 5 6 7 8 9 10; do [ -e /root/done ] && exit 0; sleep 1; done; exit 1")
}

// The engine is killed at moments of a machine's first start.
func TestKilledInStart(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		what string
		now  func(p *program) bool
	}{
		{"recorded", func(p *program) bool { return p.startedState() == "starting" }},
		{"QEMU runs", func(p *program) bool { return hypervisors(p.opts.Data) > 0 }},
		{"QEMU listens", func(p *program) bool { return exists(p.opts.Data + "/machines/vm/qmp.sock") }},
	} {
		t.Run(c.what, func(t *testing.T) {
			p := spawn(t, nil)
			f := p.client(t)
			if _, err := f.Create(t.Context(), fleet.Spec{Name: "vm", Image: image.Builtin, MemoryMB: 512, CPUs: 1}); err != nil {
				t.Fatal(err)
			}
			var wg sync.WaitGroup
			wg.Go(func() { _, _ = f.Start(t.Context(), "vm", fleet.StartOptions{}) }) // it is cut off, or is through before
			eventually(t, c.what, func() bool { return c.now(p) })
			p.again(t)
			wg.Wait()
			f = p.client(t)
			s := state(t, f, "vm")
			if n := hypervisors(p.opts.Data); s != fleet.Running && n > 0 {
				t.Errorf("the machine is %s, and %d processes of it run", s, n)
			}
			if s != fleet.Running && s != fleet.Created && s != fleet.Stopped {
				t.Errorf("the machine is %s", s)
			}
			if got := sh(t, f, "vm", "echo works"); got != "works\n" {
				t.Errorf("afterwards it says %q", got)
			}
		})
	}
}

// startedState is the state on disk of the machine vm.
func (p *program) startedState() string {
	text, _ := os.ReadFile(filepath.Join(p.opts.Data, "machines", "vm", "machine.json"))
	var r record
	_ = json.Unmarshal(text, &r) // while it is being replaced there is none
	return r.State
}

// The engine is killed while it makes a template, with a cache of its own.
func TestKilledInTemplate(t *testing.T) {
	t.Parallel()
	p := spawn(t, func(p *program) { p.opts.Cache = filepath.Dir(p.opts.Data) + "/cache" })
	f := p.client(t)
	if _, err := f.Create(t.Context(), fleet.Spec{Name: "vm", Image: image.Builtin, MemoryMB: 512, CPUs: 1}); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = f.Start(t.Context(), "vm", fleet.StartOptions{}) }) // it is cut off
	templates := p.opts.Cache + "/templates"
	eventually(t, "a template is made", func() bool { return hypervisors(templates) > 0 })
	p.again(t)
	wg.Wait()
	if n := hypervisors(templates); n > 0 {
		t.Errorf("%d processes of half-made templates run", n)
	}
	if left, _ := filepath.Glob(templates + "/new-*"); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	if got := sh(t, p.client(t), "vm", "echo works"); got != "works\n" {
		t.Errorf("afterwards it says %q", got)
	}
}

// slowRegistry holds blobs back until hold is closed, and tells of each on asked.
func slowRegistry(t *testing.T) (ref string, hold, asked chan struct{}) {
	t.Helper()
	needMachines(t)
	hold, asked = make(chan struct{}), make(chan struct{}, 100)
	inner := registry.New(registry.Logger(quiet()))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") {
			asked <- struct{}{}
			select {
			case <-hold:
			case <-r.Context().Done():
				return
			}
		}
		inner.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	ref = strings.TrimPrefix(server.URL, "http://") + "/test/image:1"
	tag, err := name.ParseReference(ref)
	must(t, err)
	must(t, remote.Write(tag, busyboxImage(t, nil)))
	return ref, hold, asked
}

// A delete does not wait for the image of a start that goes on.
func TestDeletedInImage(t *testing.T) {
	ref, hold, asked := slowRegistry(t)
	defer close(hold)
	d := start(t)
	f := d.client(t)
	if _, err := f.Create(t.Context(), fleet.Spec{Name: "vm", Image: ref, MemoryMB: 512, CPUs: 1}); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := f.Start(t.Context(), "vm", fleet.StartOptions{}); err == nil {
			t.Error("a machine without an image was started")
		}
	})
	<-asked
	begun := time.Now()
	if _, err := f.Delete(t.Context(), "vm"); err != nil || time.Since(begun) > 5*time.Second {
		t.Errorf("after %v: %v", time.Since(begun), err)
	}
	wg.Wait()
}

// A guest that hangs is out of reach, and is there again when it goes on.
func TestGuestHangs(t *testing.T) {
	t.Parallel()
	d := start(t)
	f := d.client(t)
	vm := booted(t, f, fleet.Spec{Name: "vm"})
	pid := d.record(t, vm).Process.PID
	must(t, syscall.Kill(pid, syscall.SIGSTOP))
	if s := state(t, f, vm); s != fleet.Unreachable {
		t.Errorf("a machine that hangs is %s", s)
	}
	_, err := f.Exec(t.Context(), vm, fleet.Command{Argv: []string{"true"}, Timeout: time.Second})
	if fleet.CodeOf(err) != fleet.CodeTimeout || !fleet.MaybeDone(err) {
		t.Errorf("a command in it: %v", err)
	}
	must(t, syscall.Kill(pid, syscall.SIGCONT))
	eventually(t, "it is there again", func() bool { return state(t, f, vm) == fleet.Running })
	sh(t, f, vm, "true")
}

// The engine is killed while it fetches an image.
func TestKilledInImage(t *testing.T) {
	t.Parallel()
	ref, hold, asked := slowRegistry(t)
	p := spawn(t, func(p *program) { p.opts.Cache = filepath.Dir(p.opts.Data) + "/cache" })
	f := p.client(t)
	if _, err := f.Create(t.Context(), fleet.Spec{Name: "vm", Image: ref, MemoryMB: 512, CPUs: 1}); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = f.Start(t.Context(), "vm", fleet.StartOptions{}) }) // it is cut off
	<-asked
	p.again(t)
	wg.Wait()
	if left, _ := filepath.Glob(p.opts.Cache + "/images/new-*"); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	close(hold)
	if got := sh(t, p.client(t), "vm", "echo works"); got != "works\n" {
		t.Errorf("afterwards it says %q", got)
	}
}

// The hypervisor is killed: the machine is stopped, and its disk is kept.
func TestHypervisorKilled(t *testing.T) {
	d := start(t)
	f := d.client(t)
	vm := booted(t, f, fleet.Spec{Name: "vm"})
	sh(t, f, vm, "echo kept >/root/kept; sync")
	if err := syscall.Kill(d.record(t, vm).Process.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the machine is seen to have stopped", func() bool { return state(t, f, vm) == fleet.Stopped })
	if got := sh(t, f, vm, "cat /root/kept"); got != "kept\n" {
		t.Errorf("the disk has %q", got)
	}
	// Also in the middle of a command.
	var wg sync.WaitGroup
	wg.Go(func() {
		_, err := f.Exec(t.Context(), vm, fleet.Command{Argv: []string{"sleep", "60"}, Timeout: time.Minute})
		if err == nil || !fleet.MaybeDone(err) {
			t.Errorf("a command whose machine died gave %v", err)
		}
	})
	eventually(t, "the command runs", func() bool { return strings.Contains(sh(t, f, vm, "ps"), "sleep 60") })
	begun := time.Now()
	if err := syscall.Kill(d.record(t, vm).Process.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	if took := time.Since(begun); took > 5*time.Second {
		t.Errorf("the command's end was told after %v", took)
	}
}

// The sockets of a machine are removed under a killed engine: the machine is seen to
// be out of reach, and a start boots it anew.
func TestSocketsRemoved(t *testing.T) {
	t.Parallel()
	p := spawn(t, nil)
	f := p.client(t)
	vm := booted(t, f, fleet.Spec{Name: "vm"})
	p.kill(t, syscall.SIGKILL)
	for _, sock := range []string{"agent.sock", "qmp.sock"} {
		if err := os.Remove(filepath.Join(p.opts.Data, "machines", vm, sock)); err != nil {
			t.Fatal(err)
		}
	}
	p.exec(t)
	f = p.client(t)
	if s := state(t, f, vm); s != fleet.Unreachable {
		t.Errorf("the machine is %s", s)
	}
	if _, err := f.Start(t.Context(), vm, fleet.StartOptions{}); err != nil {
		t.Fatal(err)
	}
	sh(t, f, vm, "true")
	if n := hypervisors(p.opts.Data); n != 1 {
		t.Errorf("%d hypervisors run for one machine", n)
	}
}

// The computer has booted since: nothing runs, whatever the records say.
func TestComputerBooted(t *testing.T) {
	t.Parallel()
	p := spawn(t, nil)
	f := p.client(t)
	vm := booted(t, f, fleet.Spec{Name: "vm"})
	sh(t, f, vm, "echo kept >/root/kept; sync")
	p.kill(t, syscall.SIGKILL)
	r := p.record(t, vm)
	if err := syscall.Kill(r.Process.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	// Another process has the number now: this one.
	file := filepath.Join(p.opts.Data, "machines", vm, "machine.json")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var all map[string]any
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	proc := all["process"].(map[string]any)
	proc["bootId"], proc["pid"] = "another", os.Getpid()
	if text, err = json.Marshal(all); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	p.exec(t)
	f = p.client(t)
	if s := state(t, f, vm); s != fleet.Stopped {
		t.Errorf("the machine is %s", s)
	}
	if got := sh(t, f, vm, "cat /root/kept"); got != "kept\n" {
		t.Errorf("the disk has %q", got)
	}
}

// What a cut-off create or delete leaves is removed, and what cannot be read stays.
func TestHalfMade(t *testing.T) {
	p := spawn(t, nil)
	p.kill(t, syscall.SIGKILL)
	machines := filepath.Join(p.opts.Data, "machines")
	for dir, text := range map[string]string{"half": "", "damaged": "{", "other": `{"name":"else"}`} {
		if err := os.MkdirAll(filepath.Join(machines, dir), 0o700); err != nil {
			t.Fatal(err)
		}
		if text == "" {
			continue
		}
		if err := os.WriteFile(filepath.Join(machines, dir, "machine.json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p.exec(t)
	f := p.client(t)
	if list, err := f.List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("%+v, %v", list, err)
	}
	if exists(filepath.Join(machines, "half")) || !exists(filepath.Join(machines, "damaged")) || !exists(filepath.Join(machines, "other")) {
		t.Error("the half-made one must go, and those with a record must stay")
	}
	_, err := f.Create(t.Context(), fleet.Spec{Name: "damaged", Image: image.Builtin})
	var e *fleet.Error
	if !errors.As(err, &e) || e.Code != fleet.CodeConflict {
		t.Errorf("a name that is taken by what cannot be read: %v", err)
	}
}

// Two engines never share a directory.
func TestTwoEngines(t *testing.T) {
	p := spawn(t, nil)
	o := p.opts
	o.Listen += "2"
	second := &program{daemon: &daemon{opts: o}}
	out, err := second.command().CombinedOutput()
	for _, want := range []string{
		fmt.Sprintf("%s is in use by another smol-engine (pid %d, which listens at %s)", p.opts.Data, p.cmd.Process.Pid, p.opts.Listen),
		"SMOL_LOCAL_URL=" + p.opts.Listen + " uses that one", "--data", "XDG_DATA_HOME",
	} {
		if err == nil || !strings.Contains(string(out), want) || strings.Contains(string(out), "temporarily") {
			t.Errorf("no %q: %v: %s", want, err, out)
		}
	}
	o = p.opts
	o.Data += "2"
	second = &program{daemon: &daemon{opts: o}}
	out, err = second.command().CombinedOutput()
	if err == nil || !strings.Contains(string(out), "another program listens") {
		t.Errorf("%v: %s", err, out)
	}
}
