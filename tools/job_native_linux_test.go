package tools_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smol-mcp/fleet"
	"smol-mcp/fleet/engine/agent"
	"smol-mcp/fleet/engine/guest/job"
	"smol-mcp/fleet/fleettest"
)

// A nativeHost is a host whose jobs begin as in the guests of the built-in engine.
type nativeHost struct{ hostRunner }

// jobbed is a fleet in memory over such hosts. It counts jobs, and fails as told.
type jobbed struct {
	*fleettest.Memory
	asked atomic.Int64
	err   error // instead of the answer; with MaybeDone the job begins
}

type jobKey struct{}

func (f *jobbed) RunJob(ctx context.Context, name string, j fleet.Job) (fleet.Result, error) {
	f.asked.Add(1)
	if f.err != nil && !fleet.MaybeDone(f.err) {
		return fleet.Result{}, f.err
	}
	res, err := f.Exec(context.WithValue(ctx, jobKey{}, j), name, j.Command)
	return res, cmp.Or(f.err, err)
}

// newNative is a rig over one, and the directory of its files.
func newNative(t *testing.T, err error) (*rig, *jobbed, string) {
	host := nativeHost{hostRunner{shell: "dash", dir: t.TempDir()}}
	r := newRig(t, rigOptions{memory: fleettest.MemoryOptions{Exec: host.exec}})
	f := &jobbed{Memory: r.memory, err: err}
	r.options.Fleets = []fleet.Fleet{fleet.Retry(f)}
	r.session, r.client = r.connect(rigOptions{})
	return r, f, host.dir
}

// A guest that begins jobs by itself is asked for each command; one that cannot is asked once.
func TestNativeJobs(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		err   error
		asked int64
	}{
		"can":         {nil, 3},
		"cannot":      {fleet.Errorf(fleet.CodeUnsupported, "run", "no jobs"), 1},
		"answer lost": {&fleet.Error{Code: fleet.CodeUnreachable, Op: "run", Why: "broken", MaybeDone: true}, 3},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			r, f, dir := newNative(t, c.err)
			name := r.machine(nil)
			for i := range 3 {
				ran := r.call("run-command", map[string]any{"name": name, "command": "echo once >>" + dir + "/made; echo $A", "env": map[string]any{"A": "b"}})
				if ran["exitCode"] != 0.0 || ran["stdout"] != "b\n" || ran["running"] != false {
					t.Errorf("%d: %v", i, ran)
				}
			}
			if made, err := os.ReadFile(dir + "/made"); string(made) != strings.Repeat("once\n", 3) {
				t.Errorf("it ran %q, %v", made, err)
			}
			if got := f.asked.Load(); got != c.asked {
				t.Errorf("the guest was asked %d times", got)
			}
		})
	}
}

// What dropped its environment runs as long as it does, and is stopped with its group.
func TestNativeWithoutEnvironment(t *testing.T) {
	t.Parallel()
	r, _, _ := newNative(t, nil)
	name := r.machine(nil)
	ran := r.call("run-command", map[string]any{"name": name, "command": "exec env -i sleep 1000", "background": true})
	if read := r.call("read-command", map[string]any{"name": name, "commandId": ran["commandId"]}); read["running"] != true {
		t.Errorf("it is %v", read)
	}
	r.call("stop-command", map[string]any{"name": name, "commandId": ran["commandId"]})
	if read := r.call("read-command", map[string]any{"name": name, "commandId": ran["commandId"], "waitSecs": 10}); read["running"] != false || read["signal"] != "TERM" {
		t.Errorf("after the stop it is %v", read)
	}
}

// Who waits for a command hears of a boot, which it did not outlive.
func TestNativeBooted(t *testing.T) {
	t.Parallel()
	r, _, dir := newNative(t, nil)
	name := r.machine(nil)
	ran := r.call("run-command", map[string]any{"name": name, "command": "exec sleep 1000", "background": true})
	before := r.memory.Count("Exec")
	told := make(chan map[string]any, 1)
	go func() {
		told <- r.call("read-command", map[string]any{"name": name, "commandId": ran["commandId"], "waitSecs": 100})
	}()
	eventually(t, "it is waited for", func() bool { return r.memory.Count("Exec") > before+1 })
	begun := time.Now()
	if err := os.WriteFile(dir+"/boot_id", []byte("another-boot\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	read := <-told
	if note, _ := read["note"].(string); read["running"] != false || read["exitCode"] != nil || !strings.Contains(note, "booted anew") || time.Since(begun) > time.Minute {
		t.Errorf("after %v it is %v", time.Since(begun), read)
	}
	if err := os.Remove(dir + "/boot_id"); err != nil {
		t.Fatal(err)
	}
	r.call("stop-command", map[string]any{"name": name, "commandId": ran["commandId"]})
}

func (h nativeHost) exec(ctx context.Context, name string, cmd fleet.Command) (fleet.Result, error) {
	j, ok := ctx.Value(jobKey{}).(fleet.Job)
	if !ok {
		return h.hostRunner.exec(ctx, name, cmd)
	}
	work := agent.Job{
		ID: j.ID, Dir: j.Workdir, WaitMS: j.Wait.Milliseconds(), TimeoutMS: j.Timeout.Milliseconds(),
		Limit: j.Limit, Epoch: j.Asked.Unix(), Shown: j.Shown, Input: j.Input, Done: j.Done,
	}
	for k, v := range j.Env {
		work.Env = append(work.Env, k+"="+v)
	}
	boot := "/proc/sys/kernel/random/boot_id"
	if _, err := os.Stat(h.bootID()); err == nil {
		boot = h.bootID()
	}
	system := job.Host{Launch: h.launch, BootID: boot}
	var res fleet.Result
	done := make(chan error, 1)
	go func() {
		var stdout, stderr bytes.Buffer
		program := agent.Exec{Argv: j.Argv, Env: append(os.Environ(), "TMPDIR="+h.dir), Dir: h.dir}
		err := system.Run(job.Request{Exec: program, Job: work, As: func(do func() error) error { return do() }}, strings.NewReader(j.Stdin), &stdout, &stderr)
		res.Stdout, res.Stderr = stdout.Bytes(), stderr.Bytes()
		done <- err
	}()
	select {
	case err := <-done:
		return res, err
	case <-ctx.Done():
		return fleet.Result{}, &fleet.Error{Code: fleet.CodeCancelled, Op: "exec", Why: "cancelled", MaybeDone: true, Err: ctx.Err()}
	}
}

func (h nativeHost) launch(e agent.Exec, files [3]int, _ int) (int, <-chan syscall.WaitStatus, error) {
	path, err := exec.LookPath(e.Argv[0])
	if err != nil {
		code := 127
		if errors.Is(err, os.ErrPermission) {
			code = 126
		}
		return 0, nil, &job.LaunchError{Code: code, Err: err}
	}
	run := &exec.Cmd{Path: path, Args: e.Argv, Env: e.Env, Dir: e.Dir, SysProcAttr: &syscall.SysProcAttr{Setsid: true}}
	var own [3]*os.File
	for i, fd := range files { // copies, since they are closed after the start
		other, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return 0, nil, &job.LaunchError{Code: 126, Err: err}
		}
		own[i] = os.NewFile(uintptr(other), "stream")
		defer own[i].Close()
	}
	run.Stdin, run.Stdout, run.Stderr = own[0], own[1], own[2]
	if err := run.Start(); err != nil {
		return 0, nil, &job.LaunchError{Code: 126, Err: err}
	}
	ended := make(chan syscall.WaitStatus, 1)
	go func() {
		_ = run.Wait()
		ended <- run.ProcessState.Sys().(syscall.WaitStatus)
	}()
	return run.Process.Pid, ended, nil
}
