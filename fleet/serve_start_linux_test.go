package fleet_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"smol-mcp/fleet"
)

// W5, second half: a start that failed is tried again at the next call.
func TestEngineStartRetried(t *testing.T) {
	p := newPlace(t)
	t.Setenv("SMOLVM_FAKE_FAIL_STARTS", "2")
	e := p.engine()
	for i := range 2 {
		refused(t, e, fleet.CodeUnavailable, "exit code 1", fmt.Sprintf("start %d of 2 was told to fail", i+1), "engine.log")
	}
	dial(t, e)
}

// C6: an engine that dies right after its first answer is not ready.
func TestEngineDiesAfterReady(t *testing.T) {
	p := newPlace(t)
	t.Setenv("SMOLVM_FAKE_DIE_READY", "1")
	e := p.engine()
	refused(t, e, fleet.CodeUnavailable, "ended before it answered", "exit code 101", "listening on unix://")
	dial(t, e)
}

func TestEngineHangs(t *testing.T) {
	p := newPlace(t)
	t.Setenv("SMOLVM_FAKE_HANG", "1")
	e := p.engine(func(o *fleet.EngineOptions) { o.StartTimeout = time.Second })
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() { refused(t, e, fleet.CodeUnavailable, "did not answer within 1s") })
	}
	wg.Wait()
	if list := p.starts(); len(list) != 1 || alive(list[0].PID) {
		t.Errorf("%d starts for calls that came together", len(list))
	}
}

func TestEngineDialHearsItsContext(t *testing.T) {
	p := newPlace(t)
	t.Setenv("SMOLVM_FAKE_READY_MS", "600000")
	e := p.engine()
	ctx, cancel := context.WithCancel(t.Context())
	eventuallyCancel := time.AfterFunc(100*time.Millisecond, cancel)
	defer eventuallyCancel.Stop()
	began := time.Now()
	if _, err := e.Dial(ctx); fleet.CodeOf(err) != fleet.CodeCancelled {
		t.Errorf("cancelled: %v", err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := e.Dial(ctx); fleet.CodeOf(err) != fleet.CodeTimeout {
		t.Errorf("timed out: %v", err)
	}
	if d := time.Since(began); d > time.Second {
		t.Errorf("took %v", d)
	}

	// Close ends the start that is still going on, and those who wait for it.
	waiting := make(chan error)
	go func() {
		_, err := e.Dial(t.Context())
		waiting <- err
	}()
	eventually(t, "it has been started", func() bool { return len(p.starts()) == 1 })
	e.Close()
	if err := <-waiting; fleet.CodeOf(err) != fleet.CodeCancelled {
		t.Errorf("closed: %v", err)
	}
	if alive(p.starts()[0].PID) {
		t.Error("Close left a half-started engine")
	}
}

// A process that stands still with the lock holds up nobody for longer than they wait.
func TestEngineLockIsHeld(t *testing.T) {
	p := newPlace(t)
	user := p.engine()
	dial(t, user)
	f, err := os.Open(filepath.Join(p.dir, "engine.lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	dial(t, user) // needs no lock
	e := p.engine()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	began := time.Now()
	if _, err := e.Dial(ctx); fleet.CodeOf(err) != fleet.CodeTimeout {
		t.Errorf("got %v", err)
	}
	e.Close()
	if d := time.Since(began); d > time.Second {
		t.Errorf("took %v", d)
	}
	syscall.Flock(int(f.Fd()), syscall.LOCK_UN)
}

func TestEngineSecondPort(t *testing.T) {
	p := newPlace(t)
	if l, err := net.Listen("tcp", "127.0.0.1:10081"); err == nil { // else somebody has it, which serves as well
		defer l.Close()
	}
	e := p.engine()
	dial(t, e)
	e.Close()

	t.Setenv("SMOLVM_FAKE_PORT_TAKEN", "2") // that is this start and the last
	dial(t, p.engine())
	var ports []string
	for _, s := range p.starts() {
		for _, kv := range s.Env {
			if port, ok := strings.CutPrefix(kv, "SMOLVM_GUEST_ROLLOUT_HOST_PORT="); ok {
				ports = append(ports, port)
			}
		}
	}
	if len(ports) != 3 || slices.Contains(ports, "10081") || ports[1] == ports[2] {
		t.Errorf("ports %v", ports)
	}
}

func TestEngineLogRotation(t *testing.T) {
	p := newPlace(t)
	t.Setenv("SMOLVM_FAKE_NOISE", "3000000")
	for range 3 {
		e := p.engine()
		dial(t, e)
		e.Close()
	}
	for name, most := range map[string]int64{"engine.log": 3_000_000 + 4096, "engine.log.1": 1 << 20} {
		fi, err := os.Stat(filepath.Join(p.dir, name))
		if err != nil || fi.Size() > most || fi.Size() == 0 || fi.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v %v", name, fi, err)
		}
	}
	entries, _ := os.ReadDir(p.dir)
	for _, e := range entries {
		if !slices.Contains(strings.Fields("engine.lock engine.users engine.log engine.log.1"), e.Name()) {
			t.Errorf("%s is left", e.Name())
		}
	}
}

// What an engine gets from us: little of the environment, no open files, a
// session of its own.
func TestEngineInheritsLittle(t *testing.T) {
	p := newPlace(t)
	for _, kv := range []string{
		"SMOL_MCP_ENGINE=smolvm", "SMOL_CLOUD_TOKEN=secret", "AWS_SECRET_ACCESS_KEY=secret", "LD_PRELOAD_X=1", "XDG_SESSION_ID=1",
		"SMOLVM_BOOT_BINARY=1", "SMOLVM_PUBLISH_ADDR=0.0.0.0", "SMOLVM_EGRESS_FLOOR=strict", "https_proxy=http://proxy", "XDG_CACHE_HOME=/c",
	} {
		name, value, _ := strings.Cut(kv, "=")
		t.Setenv(name, value)
	}
	leak, err := os.Open("/etc/hostname")
	if err != nil {
		t.Fatal(err)
	}
	defer leak.Close()
	u := p.user(func(c *exec.Cmd) { c.ExtraFiles = []*os.File{leak} })
	u.dial()
	defer u.close()
	s := p.starts()[0]
	var names []string
	for _, kv := range s.Env {
		name, _, _ := strings.Cut(kv, "=")
		names = append(names, name)
	}
	for _, name := range names {
		if strings.HasPrefix(name, "SMOL_") || slices.Contains(strings.Fields(
			"AWS_SECRET_ACCESS_KEY LD_PRELOAD_X XDG_SESSION_ID SMOLVM_BOOT_BINARY SMOLVM_PUBLISH_ADDR ENGINE_USER"), name) {
			t.Errorf("it gets %s", name)
		}
	}
	for _, name := range strings.Fields("PATH SMOLVM_EGRESS_FLOOR SMOLVM_DATA_DIR https_proxy XDG_CACHE_HOME SMOLVM_GUEST_ROLLOUT_HOST_PORT") {
		if !slices.Contains(names, name) {
			t.Errorf("it does not get %s", name)
		}
	}
	if s.Dir != "/" || s.Session != s.PID || s.Group != s.PID {
		t.Errorf("directory %s, session %d, group %d of process %d", s.Dir, s.Session, s.Group, s.PID)
	}
	log := filepath.Join(p.dir, "engine.log")
	for i, want := range []string{"0 /dev/null", "1 " + log, "2 " + log} {
		if len(s.Files) <= i || s.Files[i] != want {
			t.Errorf("files %q, want %q", s.Files, want)
		}
	}
	for _, f := range s.Files[3:] {
		if !strings.Contains(f, "/proc/") { // the directory that was read to make the list
			t.Errorf("it has %s", f)
		}
	}
}

func TestEngineSocketPathTooLong(t *testing.T) {
	p := newPlace(t)
	long := filepath.Join(p.dir, strings.Repeat("x", 100))
	if err := os.Mkdir(long, 0o700); err != nil {
		t.Fatal(err)
	}
	e := p.engine(func(o *fleet.EngineOptions) { o.Dir = func() (string, error) { return long, nil } })
	refused(t, e, fleet.CodeUnavailable, "at most 100", "SMOL_MCP_RUNTIME_DIR")
	if n := len(p.starts()); n != 0 {
		t.Errorf("%d starts", n)
	}
}

func TestEngineTooOld(t *testing.T) {
	p := newPlace(t)
	t.Setenv("SMOLVM_FAKE_VERSION", "1.13.9")
	refused(t, p.engine(), fleet.CodeUnavailable, "smolvm 1.13.9", "at least 1.14.0", "SMOL_MCP_MIN_SMOLVM")
	if alive(p.starts()[0].PID) {
		t.Error("it is left running")
	}
	dial(t, p.engine(func(o *fleet.EngineOptions) { o.MinVersion = "" }))
}

func TestEngineKinds(t *testing.T) {
	p := newPlace(t)
	bin := t.TempDir()
	t.Setenv("PATH", bin)
	kind := func(kind string) func(*fleet.EngineOptions) {
		return func(o *fleet.EngineOptions) { o.Kind, o.Smolvm = kind, "smolvm" }
	}
	refused(t, p.engine(kind("auto")), fleet.CodeUnavailable, "smolvm", "smol-engine", "install smolvm")
	refused(t, p.engine(kind("qemu")), fleet.CodeUnavailable, "smol-engine")
	refused(t, p.engine(kind("smolvm")), fleet.CodeUnavailable, "SMOLVM")
	if err := os.Symlink(p.prog, filepath.Join(bin, "smol-engine")); err != nil {
		t.Fatal(err)
	}
	for _, k := range []string{"auto", "qemu"} {
		e := p.engine(kind(k), func(o *fleet.EngineOptions) { o.MinVersion = "99" }) // which is about smolvm
		dial(t, e)
		if e.Status().Kind != "qemu" {
			t.Errorf("%s: %+v", k, e.Status())
		}
		refused(t, p.engine(kind("smolvm")), fleet.CodeUnavailable, "it is qemu, and the settings ask for smolvm", "SMOL_MCP_ENGINE")
		e.Close()
	}
	if err := os.Symlink(p.prog, filepath.Join(bin, "smolvm")); err != nil {
		t.Fatal(err)
	}
	e := p.engine(kind("auto"))
	dial(t, e)
	if e.Status().Kind != "smolvm" {
		t.Errorf("%+v", e.Status())
	}
}

func TestEngineDirFails(t *testing.T) {
	p := newPlace(t)
	broken := fmt.Errorf("no directory of ours")
	e := p.engine(func(o *fleet.EngineOptions) { o.Dir = func() (string, error) { return "", broken } })
	refused(t, e, fleet.CodeUnavailable, "no directory of ours")
}
