package fleet_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
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
	"smol-mcp/fleet/fleettest"
)

func TestEngineStartsWhenDialledAndStopsWhenClosed(t *testing.T) {
	p := newPlace(t)
	e := p.engine()
	if n := len(p.starts()); n != 0 || e.Status() != (fleet.EngineStatus{}) {
		t.Errorf("before the first Dial: %d starts, %+v", n, e.Status())
	}
	if h := get(t, e, "/health"); !strings.Contains(h, `"version":"1.14.5"`) {
		t.Errorf("health %s", h)
	}
	dial(t, e)
	if n := len(p.starts()); n != 1 {
		t.Fatalf("%d starts", n)
	}
	want := fleet.EngineStatus{Kind: "smolvm", URL: "unix://" + p.dir + "/engine.sock", Version: "1.14.5", Started: true, PID: p.starts()[0].PID}
	if e.Status() != want {
		t.Errorf("%+v\nwant %+v", e.Status(), want)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	if alive(want.PID) {
		t.Error("it runs on")
	}
	for _, f := range []string{"engine.sock", "engine.json"} {
		if _, err := os.Lstat(filepath.Join(p.dir, f)); err == nil {
			t.Errorf("%s stays", f)
		}
	}
	refused(t, e, fleet.CodeCancelled, "ended")
}

// W4: the engine lives as long as anybody uses it.
func TestEngineOutlivesItsStarter(t *testing.T) {
	p := newPlace(t)
	a, b := p.engine(), p.engine()
	dial(t, a)
	dial(t, b)
	a.Close()
	dial(t, b)
	if n := len(p.starts()); n != 1 {
		t.Errorf("%d starts", n)
	}
	b.Close()
	if alive(p.starts()[0].PID) {
		t.Error("the last user left it running")
	}
}

// W6: of processes that start together, one starts the engine and all use it.
func TestEngineStartRace(t *testing.T) {
	p := newPlace(t)
	t.Setenv("SMOLVM_FAKE_READY_MS", "200")
	var users []*user
	for range 8 {
		users = append(users, p.user())
	}
	for _, u := range users {
		u.send("dial")
	}
	for _, u := range users {
		if s := u.status(); len(p.starts()) == 0 || s.PID != p.starts()[0].PID || !s.Started {
			t.Errorf("a user has %+v", s)
		}
	}
	if n := len(p.starts()); n != 1 {
		t.Errorf("%d starts", n)
	}
	pid := p.starts()[0].PID
	for i, u := range users {
		if !alive(pid) {
			t.Fatalf("gone with %d users left", len(users)-i)
		}
		u.send("close")
		u.cmd.Wait()
	}
	if alive(pid) {
		t.Error("the last user left it running")
	}
}

// All closes at once stop it too: one of them is the last.
func TestEngineCloseRace(t *testing.T) {
	p := newPlace(t)
	for range 5 {
		var engines []*fleet.Engine
		for range 6 {
			e := p.engine()
			dial(t, e)
			engines = append(engines, e)
		}
		pid := engines[0].Status().PID
		var wg sync.WaitGroup
		for _, e := range engines {
			wg.Go(func() { e.Close() })
		}
		wg.Wait()
		if alive(pid) {
			t.Fatal("nobody was the last")
		}
	}
}

func TestEngineStarterKilled(t *testing.T) {
	for _, c := range []struct {
		name string
		mess func(p *place)
	}{
		{"record", func(*place) {}},
		{"no record", func(p *place) { os.Remove(filepath.Join(p.dir, "engine.json")) }},
		{"torn record", func(p *place) { os.WriteFile(filepath.Join(p.dir, "engine.json"), []byte(`{"pid"`), 0o600) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPlace(t)
			u := p.user()
			pid := u.dial().PID
			u.kill()
			c.mess(p)
			if !alive(pid) {
				t.Fatal("it died with its starter")
			}
			e := p.engine()
			dial(t, e)
			if s := e.Status(); s.PID != pid || !s.Started {
				t.Errorf("got %+v, want the engine %d", s, pid)
			}
			e.Close()
			if alive(pid) {
				t.Error("the last user left it running")
			}
		})
	}
}

func TestEngineStarterKilledWhileStarting(t *testing.T) {
	p := newPlace(t)
	t.Setenv("SMOLVM_FAKE_READY_MS", "700")
	u := p.user()
	u.send("dial")
	eventually(t, "the engine is recorded", func() bool {
		_, err := os.Stat(filepath.Join(p.dir, "engine.json"))
		return err == nil && len(p.starts()) == 1
	})
	u.kill()
	e := p.engine()
	dial(t, e)
	if n := len(p.starts()); n != 1 || e.Status().PID != p.starts()[0].PID {
		t.Errorf("%d starts, %+v", n, e.Status())
	}
	e.Close()

	// The same with an engine that never answers: it is stopped, and another started.
	t.Setenv("SMOLVM_FAKE_READY_MS", "600000")
	u = p.user()
	u.send("dial")
	eventually(t, "the engine is recorded", func() bool { return len(p.starts()) == 2 })
	eventually(t, "the engine is recorded", func() bool {
		_, err := os.Stat(filepath.Join(p.dir, "engine.json"))
		return err == nil
	})
	u.kill()
	t.Setenv("SMOLVM_FAKE_READY_MS", "0")
	e = p.engine(func(o *fleet.EngineOptions) { o.StartTimeout = time.Second })
	dial(t, e)
	if alive(p.starts()[1].PID) {
		t.Error("the stuck one is left")
	}
}

// W5, first half: an engine that crashed is started again, and machines are there.
func TestEngineCrashed(t *testing.T) {
	p := newPlace(t)
	a, b := p.engine(), p.engine()
	dial(t, a)
	dial(t, b)
	s := fleet.NewSmolvm(a.Dial, fleet.SmolvmOptions{})
	defer s.Close()
	if _, err := s.Create(t.Context(), fleet.Spec{Name: "kept"}); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		pid := a.Status().PID
		syscall.Kill(pid, syscall.SIGKILL)
		eventually(t, "it is dead", func() bool { return !alive(pid) }) // else it may take one more connection
		dial(t, a)
		if list := get(t, b, "/api/v1/machines"); !strings.Contains(list, `"kept"`) {
			t.Errorf("machines %s", list)
		}
		if !alive(a.Status().PID) {
			t.Errorf("%+v", a.Status())
		}
	}
	if n := len(p.starts()); n != 4 {
		t.Errorf("%d starts", n)
	}
	a.Close()
	dial(t, b)
}

// A socket that somebody removed leaves an engine that nobody can reach.
func TestEngineWithoutItsSocket(t *testing.T) {
	p := newPlace(t)
	e := p.engine()
	dial(t, e)
	os.Remove(filepath.Join(p.dir, "engine.sock"))
	dial(t, e)
	if list := p.starts(); len(list) != 2 || alive(list[0].PID) {
		t.Errorf("%d starts; two engines on the same data?", len(list))
	}
}

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

// W13: a Ctrl-C in the terminal of the starter does not reach the engine.
func TestEngineIsOutOfReachOfSignals(t *testing.T) {
	p := newPlace(t)
	u := p.user(func(c *exec.Cmd) { c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} })
	pid := u.dial().PID
	syscall.Kill(-u.cmd.Process.Pid, syscall.SIGINT)
	u.cmd.Wait()
	e := p.engine()
	dial(t, e)
	if e.Status().PID != pid {
		t.Errorf("got %+v, want %d", e.Status(), pid)
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

// B4: what is no engine is named, and left alone.
func TestEngineMeetsSomethingElse(t *testing.T) {
	ssh := func(t *testing.T, socket string) {
		l, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				fmt.Fprint(c, "SSH-2.0-OpenSSH_9.2\r\n")
				bufio.NewReader(c).ReadString('\n')
				c.Close()
			}
		}()
		t.Cleanup(func() { l.Close(); <-done })
	}
	datagrams := func(t *testing.T, socket string) {
		c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
	}
	web := func(status int, body string) func(*testing.T, string) {
		return func(t *testing.T, socket string) {
			serveAt(t, socket, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(status)
				fmt.Fprint(w, body)
			}))
		}
	}
	for _, c := range []struct {
		name  string
		serve func(*testing.T, string)
		text  string
	}{
		{"ssh", ssh, "SSH-2.0-OpenSSH_9.2"},
		{"another product", web(200, `{"status":"healthy","service":"SmolVM"}`), `{"status":"healthy","service":"SmolVM"}`},
		{"a web server", web(404, "<html>nothing here"), "404 Not Found: <html>nothing here"},
		{"datagrams", datagrams, "wrong type for socket"},
		{"unwell", web(200, `{"status":"bad","version":"1.14.5"}`), `"bad"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPlace(t)
			socket := filepath.Join(p.dir, "engine.sock")
			c.serve(t, socket)
			refused(t, p.engine(), fleet.CodeUnavailable, socket, c.text, "end what listens there")
			refused(t, p.engine(func(o *fleet.EngineOptions) { o.URL = "unix://" + socket }), fleet.CodeUnavailable, c.text, "SMOL_LOCAL_URL")
			if fi, err := os.Lstat(socket); err != nil || fi.Mode().Type() != os.ModeSocket {
				t.Errorf("it was harmed: %v", err)
			}
			if n := len(p.starts()); n != 0 {
				t.Errorf("%d starts", n)
			}
		})
	}
	t.Run("a file", func(t *testing.T) {
		p := newPlace(t)
		os.WriteFile(filepath.Join(p.dir, "engine.sock"), []byte("precious"), 0o600)
		refused(t, p.engine(), fleet.CodeUnavailable, "is not a socket")
		if b, _ := os.ReadFile(filepath.Join(p.dir, "engine.sock")); string(b) != "precious" {
			t.Errorf("the file is %q", b)
		}
	})
}

// A serve of the user's own is used and never stopped. When it goes, ours
// finds the same machines (W14).
func TestEngineOfTheUser(t *testing.T) {
	p := newPlace(t)
	socket := filepath.Join(p.dir, "usual.sock")
	cmd := exec.Command(p.prog, "serve", "start", "--listen", socket)
	cmd.Env = append(os.Environ(), "SMOLVM_GUEST_ROLLOUT_HOST_PORT=0")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { cmd.Process.Kill(); cmd.Wait() }()
	eventually(t, "it listens", func() bool {
		c, err := net.Dial("unix", socket)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	e := p.engine(func(o *fleet.EngineOptions) { o.Kind = "auto" })
	fleet.SetUsual(e, filepath.Join(p.dir, "nothing.sock"), socket)
	dial(t, e)
	if s := e.Status(); s.Started || s.PID != cmd.Process.Pid || s.URL != "unix://"+socket {
		t.Errorf("%+v", s)
	}
	s := fleet.NewSmolvm(e.Dial, fleet.SmolvmOptions{})
	defer s.Close()
	if _, err := s.Create(t.Context(), fleet.Spec{Name: "kept"}); err != nil {
		t.Fatal(err)
	}
	other := p.engine()
	fleet.SetUsual(other, socket)
	dial(t, other)
	other.Close()
	if !alive(cmd.Process.Pid) {
		t.Fatal("it was stopped")
	}
	tooNew := p.engine(func(o *fleet.EngineOptions) { o.MinVersion = "1.15" })
	fleet.SetUsual(tooNew, socket)
	refused(t, tooNew, fleet.CodeUnavailable, "smolvm 1.14.5", "at least 1.15")
	if !alive(cmd.Process.Pid) {
		t.Fatal("it was stopped")
	}
	cmd.Process.Kill()
	cmd.Wait()
	if list := get(t, e, "/api/v1/machines"); !strings.Contains(list, `"kept"`) || !e.Status().Started {
		t.Errorf("%+v has %s", e.Status(), list)
	}
}

// W39: a socket in a public place is used only when its file and its server are ours.
func TestEngineTrustsOnlyItsUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to be another user")
	}
	p := newPlace(t)
	public, err := os.MkdirTemp("/tmp", "pub")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(public)
	os.Chmod(public, 0o777)
	b, err := os.ReadFile(p.prog)
	if err != nil {
		t.Fatal(err)
	}
	prog, socket := filepath.Join(public, "smolvm"), filepath.Join(public, "s")
	if err := os.WriteFile(prog, b, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(prog, "serve", "start", "--listen", socket)
	cmd.Env = []string{"SMOLVM_DATA_DIR=" + filepath.Join(public, "data"), "SMOLVM_GUEST_ROLLOUT_HOST_PORT=0"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { cmd.Process.Kill(); cmd.Wait() }()
	eventually(t, "it listens", func() bool { _, err := os.Stat(socket); return err == nil })
	link := filepath.Join(public, "link")
	ours := p.engine()
	dial(t, ours)
	if err := os.Symlink(filepath.Join(p.dir, "engine.sock"), link); err != nil {
		t.Fatal(err)
	}
	try := func(what, socket string) {
		t.Helper()
		elsewhere := t.TempDir()
		e := p.engine(func(o *fleet.EngineOptions) {
			o.Dir = func() (string, error) { return elsewhere, nil }
			o.Smolvm = "/nonexistent/smolvm"
		})
		fleet.SetUsual(e, socket)
		refused(t, e, fleet.CodeUnavailable, "/nonexistent/smolvm")
		if e.Status().URL != "" {
			t.Errorf("%s was used", what)
		}
	}
	try("another user's socket", socket)
	os.Chown(socket, 0, 0)
	try("another user's server behind our file", socket)
	try("a symbolic link to our own", link)
	swapped := filepath.Join(public, "swapped")
	serveAt(t, swapped, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"status":"ok","version":"1.14.5"}`) }))
	os.Chown(swapped, 65534, 65534)
	try("a file of another user with our server", swapped)
}

func TestEngineAtURL(t *testing.T) {
	p := newPlace(t)
	f := fleettest.StartSmolvm(t, fleettest.SmolvmOptions{})
	e := p.engine(func(o *fleet.EngineOptions) { o.URL = f.URL() })
	dial(t, e)
	if s := e.Status(); s.Started || s.URL != f.URL() {
		t.Errorf("%+v", s)
	}
	e.Close()
	if f.Count("GET", "/health") == 0 || len(p.starts()) != 0 {
		t.Errorf("%d starts", len(p.starts()))
	}

	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	l.Close()
	for _, url := range []string{"unix://" + p.dir + "/my/own.sock", fmt.Sprintf("http://localhost:%d", port)} {
		at := func(o *fleet.EngineOptions) { o.URL = url }
		a, b, plain := p.engine(at), p.engine(at), p.engine()
		dial(t, a)
		dial(t, b)
		dial(t, plain) // finds it by the record
		pid := a.Status().PID
		for _, e := range []*fleet.Engine{a, b, plain} {
			if s := e.Status(); !s.Started || s.PID != pid || s.URL != url {
				t.Errorf("%+v", s)
			}
		}
		elsewhere := p.engine(func(o *fleet.EngineOptions) { o.URL = "unix://" + p.dir + "/third.sock" })
		refused(t, elsewhere, fleet.CodeUnavailable, "other sessions use the one at "+url)
		a.Close()
		plain.Close()
		if !alive(pid) {
			t.Fatal("stopped under a user")
		}
		b.Close()
		if alive(pid) {
			t.Error("the last user left it running")
		}
	}

	for _, url := range []string{"http://192.0.2.1:9", "ssh://x", "unix://relative", "http://localhost"} {
		e := p.engine(func(o *fleet.EngineOptions) { o.URL = url })
		ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
		if _, err := e.Dial(ctx); fleet.CodeOf(err) != fleet.CodeUnavailable {
			t.Errorf("%s: %v", url, err)
		}
		cancel()
	}
	if n := len(p.starts()); n != 2 {
		t.Errorf("%d starts", n)
	}
}

// W15: a signal goes to the process that was recorded or to none.
func TestEngineSignalsNobodyElse(t *testing.T) {
	p := newPlace(t)
	innocent := exec.Command("sleep", "600")
	if err := innocent.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { innocent.Process.Kill(); innocent.Wait() }()
	rewrite := func(change func(map[string]any)) {
		t.Helper()
		file := filepath.Join(p.dir, "engine.json")
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var rec map[string]any
		json.Unmarshal(b, &rec)
		change(rec)
		b, _ = json.Marshal(rec)
		os.WriteFile(file, b, 0o600)
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", innocent.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	begun := strings.Fields(string(stat))[21] // sleep's name has no blank
	time.Sleep(50 * time.Millisecond)         // the engine must begin in another hundredth of a second

	e := p.engine()
	dial(t, e)
	pid := e.Status().PID
	rewrite(func(rec map[string]any) { rec["pid"] = innocent.Process.Pid }) // a number used again
	e.Close()
	syscall.Kill(pid, syscall.SIGKILL)
	syscall.Wait4(pid, nil, 0, nil)

	e = p.engine()
	dial(t, e)
	pid = e.Status().PID
	rewrite(func(rec map[string]any) { rec["pid"], rec["begun"] = innocent.Process.Pid, begun }) // not who listens
	if err := e.Close(); err == nil {
		t.Error("Close says that all is well")
	}
	syscall.Kill(pid, syscall.SIGKILL)
	syscall.Wait4(pid, nil, 0, nil)
	if !alive(innocent.Process.Pid) {
		t.Error("an innocent process was killed")
	}
}

func TestEngineIgnoresTheSignal(t *testing.T) {
	if testing.Short() {
		t.Skip("waits the 10 s that an engine has to end")
	}
	p := newPlace(t)
	t.Setenv("SMOLVM_FAKE_IGNORE_TERM", "1")
	e := p.engine()
	dial(t, e)
	began := time.Now()
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	if d := time.Since(began); d < 9*time.Second || d > 13*time.Second {
		t.Errorf("took %v", d)
	}
	if _, err := os.Lstat(filepath.Join(p.dir, "engine.sock")); err == nil {
		t.Error("the socket stays")
	}
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
	refused(t, p.engine(kind("smolvm")), fleet.CodeUnavailable, "SMOL_MCP_SMOLVM")
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
