package fleet_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"smol-mcp/fleet"
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
	if d := time.Since(began); d < 2*time.Second || d > 6*time.Second {
		t.Errorf("took %v", d)
	}
	if _, err := os.Lstat(filepath.Join(p.dir, "engine.sock")); err == nil {
		t.Error("the socket stays")
	}
}
