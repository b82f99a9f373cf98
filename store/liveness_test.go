//go:build unix

package store_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"smol-mcp/store"
)

const (
	stopSignal = syscall.SIGSTOP
	contSignal = syscall.SIGCONT
)

func isBusy(err error) bool { return errors.Is(err, store.ErrBusy) }

// threads counts this process's threads.
func threads(t testing.TB) int {
	t.Helper()
	d, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Skip("threads cannot be counted here: ", err)
	}
	return len(d)
}

// ownerOf says whose mcp-a is, as a new session sees it.
func ownerOf(t testing.TB, st *store.Store, name string) store.Owner {
	t.Helper()
	rec, ok, err := st.Find(t.Context(), local(name))
	if err != nil || !ok {
		t.Fatalf("find %s: %v %v", name, ok, err)
	}
	return st.NewSession("stdio", "looker").Owner(rec)
}

// T9, I11: what a process started does not keep its lock when it dies.
func TestChildDoesNotKeepLock(t *testing.T) {
	p := newPlaces(t)
	proc := p.start(t, "owner")
	child, err := strconv.Atoi(proc.hear(t))
	check(t, err)
	t.Cleanup(func() { syscall.Kill(child, syscall.SIGKILL) })
	st := p.open(t)
	if o := ownerOf(t, st, "mcp-a"); o != store.AnotherSession {
		t.Fatalf("a live process's machine: %s", o)
	}
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", child))
	if err == nil {
		for _, fd := range fds {
			to, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", child, fd.Name()))
			if strings.HasPrefix(to, p.run) {
				t.Errorf("the child has %s open", to)
			}
		}
	}
	proc.kill()
	deadline := time.Now().Add(time.Second)
	for ownerOf(t, st, "mcp-a") != store.CrashedSession {
		if time.Now().After(deadline) {
			t.Fatal("not known to be dead after a second")
		}
	}
	check(t, syscall.Kill(child, 0))
}

// T10, F32: a child that was forked and has not begun its own program yet has a
// copy of the lock. So a death may be known a moment late, and never early.
func TestForkStorm(t *testing.T) {
	times := 200
	if testing.Short() {
		times = 20
	}
	p := fastPlaces(t)
	st := p.open(t)
	var late time.Duration
	for n := range times {
		name := fmt.Sprintf("mcp-%d", n)
		proc := p.start(t, "forker", "SMOL_MCP_TEST_NAME="+name)
		proc.hear(t)
		for range 5 {
			if o := ownerOf(t, st, name); o != store.AnotherSession {
				t.Fatalf("a live process's machine: %s", o)
			}
		}
		proc.kill()
		start := time.Now()
		for ownerOf(t, st, name) != store.CrashedSession {
			if time.Since(start) > time.Second {
				t.Fatal("not known to be dead after a second")
			}
		}
		late = max(late, time.Since(start))
	}
	t.Logf("%d deaths, known %v after it at the latest", times, late)
}

// T8, I4: a stopped process keeps what it has.
func TestStoppedOwner(t *testing.T) {
	p := newPlaces(t)
	proc := p.start(t, "owner")
	proc.hear(t)
	check(t, proc.Process.Signal(stopSignal))
	h := store.ThisHost()
	awake, ahead := h.Awake, time.Duration(0)
	h.Awake = func() time.Duration { return awake() + ahead }
	st := p.open(t, onHost(h))
	for range 4 {
		if recs, err := st.Claim(t.Context(), store.Claims{NoGrace: true, Again: true}); err != nil || len(recs) != 0 {
			t.Fatalf("claimed %v %v", recs, err)
		}
		ahead += 20 * time.Minute
	}
	check(t, proc.Process.Signal(contSignal))
	if got := proc.say(t, "call"); got != "ok" {
		t.Error(got)
	}
}

// T13: probers do not see each other.
func TestProbersOfDeadProcess(t *testing.T) {
	p := newPlaces(t)
	crashed := p.open(t)
	ready(t, crashed.NewSession("stdio", "crashed"), wish("mcp-a"))
	check(t, crashed.Abort())
	var wg sync.WaitGroup
	for range 8 {
		st := p.open(t)
		wg.Go(func() {
			for range 50 {
				if o := ownerOf(t, st, "mcp-a"); o != store.CrashedSession {
					t.Errorf("owner %s", o)
				}
			}
		})
	}
	wg.Wait()
}

// T15, I3: a lock file that is not the registered one is no proof of anything.
func TestReplacedLockFile(t *testing.T) {
	for name, replace := range map[string]func(file string) error{
		"missing":  os.Remove,
		"replaced": func(file string) error { return errors.Join(os.Remove(file), os.WriteFile(file, nil, 0o600)) },
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlaces(t)
			proc := p.start(t, "owner")
			proc.hear(t)
			files, err := filepath.Glob(filepath.Join(p.run, "inst/*"))
			if err != nil || len(files) != 1 {
				t.Fatal(files, err)
			}
			check(t, replace(files[0]))
			h := store.ThisHost()
			awake, ahead := h.Awake, time.Duration(0)
			h.Awake = func() time.Duration { return awake() + ahead }
			st := p.open(t, onHost(h))
			claim := func() []store.Record {
				recs, err := st.Claim(t.Context(), store.Claims{NoGrace: true})
				check(t, err)
				return recs
			}
			for range 3 { // it lives, whatever its file says
				if recs := claim(); len(recs) != 0 || ownerOf(t, st, "mcp-a") != store.AnotherSession {
					t.Fatalf("claimed %v", recs)
				}
				ahead += 11 * time.Minute
			}
			proc.kill()
			if recs := claim(); len(recs) != 1 { // P1': its pid is gone too
				t.Errorf("claimed %v of a process that is gone", recs)
			}
		})
	}
}

// T11: a process whose number was given to another is dead all the same.
func TestReusedPID(t *testing.T) {
	const last = "/proc/sys/kernel/ns_last_pid"
	f, err := os.OpenFile(last, os.O_WRONLY, 0)
	if err != nil {
		t.Skip("the next pid cannot be chosen here: ", err)
	}
	f.Close()
	p := newPlaces(t)
	proc := p.start(t, "owner")
	proc.hear(t)
	proc.kill()
	st := p.open(t)
	for range 100 {
		if err := os.WriteFile(last, []byte(strconv.Itoa(proc.Process.Pid-1)), 0); err != nil {
			t.Skip(err)
		}
		again := exec.Command("sleep", "5")
		check(t, again.Start())
		reused := again.Process.Pid == proc.Process.Pid
		if reused && ownerOf(t, st, "mcp-a") != store.CrashedSession {
			t.Error("a process with the number of a dead one was taken for it")
		}
		again.Process.Kill()
		again.Wait()
		if reused {
			return
		}
	}
	t.Skip("the pid was never given again")
}

// T12, F28: a lock counts between containers that share the directory, where
// a pid means nothing.
func TestOtherNamespace(t *testing.T) {
	if _, err := exec.LookPath("unshare"); err != nil {
		t.Skip(err)
	}
	if out, err := exec.Command("unshare", "-p", "-m", "-f", "true").CombinedOutput(); err != nil {
		t.Skipf("no namespaces here: %v %s", err, out)
	}
	p := newPlaces(t)
	cmd := exec.Command("unshare", "-p", "-f", "--mount-proc", os.Args[0])
	cmd.Env = append(os.Environ(), "SMOL_MCP_TEST_ROLE=owner", "SMOL_MCP_TEST_RUN="+p.run, "SMOL_MCP_TEST_STATE="+p.state)
	in, err := cmd.StdinPipe()
	check(t, err)
	out, err := cmd.StdoutPipe()
	check(t, err)
	check(t, cmd.Start())
	proc := &process{Cmd: cmd, in: in, out: newScanner(out)}
	proc.hear(t)
	st := p.open(t)
	if o := ownerOf(t, st, "mcp-a"); o != store.AnotherSession {
		t.Errorf("a live process in another namespace: %s", o)
	}
	// all of that namespace dies with its first process
	check(t, killNamespace(cmd.Process.Pid))
	cmd.Wait()
	deadline := time.Now().Add(2 * time.Second)
	for ownerOf(t, st, "mcp-a") != store.CrashedSession {
		if time.Now().After(deadline) {
			t.Fatal("not known to be dead")
		}
	}
}

// killNamespace kills the children of unshare.
func killNamespace(pid int) error {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		return err
	}
	for _, s := range strings.Fields(string(b)) {
		child, err := strconv.Atoi(s)
		if err != nil {
			return err
		}
		if err := syscall.Kill(child, syscall.SIGKILL); err != nil {
			return err
		}
	}
	return nil
}

// The watch for deaths ends when its directory is removed, and with its context.
func TestDeaths(t *testing.T) {
	p := newPlaces(t)
	st := p.open(t)
	if ok, err := st.Deaths(t.Context(), nil); ok || err != nil {
		t.Fatalf("nothing to watch: %v %v", ok, err)
	}
	ready(t, st.NewSession("stdio", "test"), wish("mcp-a"))
	if runtime.GOOS != "linux" {
		t.Skip("nothing tells of a death here")
	}
	heard, over := make(chan bool, 100), make(chan error, 1)
	watch := func(ctx context.Context) {
		_, err := st.Deaths(ctx, func() { heard <- true })
		over <- err
	}
	ctx, cancel := context.WithCancel(t.Context())
	go watch(ctx)
	other := p.open(t)
	for i := 0; ; i++ { // the watch may begin a moment later
		ready(t, other.NewSession("stdio", "other"), wish(fmt.Sprintf("mcp-other-%d", i)))
		check(t, other.Abort())
		select {
		case <-heard:
		case <-time.After(100 * time.Millisecond):
			other = p.open(t)
			continue
		}
		break
	}
	cancel()
	check(t, <-over)
	go watch(t.Context())
	for done := false; !done; {
		check(t, os.RemoveAll(p.run))
		select {
		case err := <-over:
			check(t, err)
			done = true
		case <-time.After(100 * time.Millisecond):
			ready(t, st.NewSession("stdio", "test"), wish("mcp-"+strconv.FormatInt(time.Now().UnixNano(), 36)))
		}
	}
}
