package tools_test

import (
	"context"
	"strings"
	"syscall"
	"testing"
	"time"

	"smol-mcp/fleet"
	"smol-mcp/fleet/fleettest"
)

// A command that is killed at once has its end seen, since its shell is killed last; and who
// removes our files does not make us say that the machine had been off.
func TestKilledAtOnce(t *testing.T) {
	inShells(t, func(t *testing.T, r *rig, name, dir string) {
		ran := r.call("run-command", map[string]any{"name": name, "command": "trap '' TERM; echo begun; sleep 1000", "waitSecs": 1})
		if ran["running"] != true {
			t.Fatalf("ran: %v", ran)
		}
		got := r.call("stop-command", map[string]any{"name": name, "commandId": ran["commandId"], "signal": "KILL"})
		if got["exitCode"] != 137.0 || got["signal"] != "KILL" || got["note"] != nil {
			t.Errorf("killed: %v", got)
		}
		r.run(name, "rm -rf "+dir+"/.smol-mcp")
		if after := r.run(name, "echo again"); after["startedMachine"] != false || after["stdout"] != "again\n" {
			t.Errorf("after our files were removed: %v", after)
		}
	})
}

// What is dead and never reaped, as below a first process that does not care, is not waited for.
func TestUnreapedProcesses(t *testing.T) {
	const setChildSubreaper = 36 // PR_SET_CHILD_SUBREAPER
	if _, _, e := syscall.RawSyscall(syscall.SYS_PRCTL, setChildSubreaper, 1, 0); e != 0 {
		t.Skipf("orphans cannot be kept: %v", e)
	}
	defer syscall.RawSyscall(syscall.SYS_PRCTL, setChildSubreaper, 0, 0)
	host := hostRunner{shell: "dash", dir: t.TempDir()}
	r := newRig(t, rigOptions{memory: fleettest.MemoryOptions{Exec: host.exec}})
	name := r.machine(nil)
	ran := r.call("run-command", map[string]any{"name": name, "command": "sleep 1000 & sleep 1000", "waitSecs": 0})
	begin := time.Now()
	got := r.call("stop-command", map[string]any{"name": name, "commandId": ran["commandId"]})
	if took := time.Since(begin); got["exitCode"] != 143.0 || got["note"] != nil || took > 4*time.Second {
		t.Errorf("stopped after %v: %v", took, got)
	}
}

// Where a fleet itself drops output, as smol cloud of text, the result says so (W33).
func TestDroppedOutput(t *testing.T) {
	exec := func(_ context.Context, _ string, cmd fleet.Command) (fleet.Result, error) {
		if cmd.Argv[0] != "/app/tool" {
			return fleet.Result{}, &fleet.Error{Code: fleet.CodeInternal, Op: "exec", Why: "failed to spawn command: No such file or directory (os error 2)"}
		}
		return fleet.Result{Stdout: []byte("whole\n"), Stderr: []byte("beginn"), StderrTruncated: true}, nil
	}
	r := newRig(t, rigOptions{memory: fleettest.MemoryOptions{Exec: exec}})
	got := r.call("run-command", map[string]any{"name": r.machine(nil), "command": []string{"/app/tool"}})
	note, _ := got["note"].(string)
	if got["truncated"] != true || got["exitCode"] != 0.0 || got["stderr"] != "beginn" || !strings.Contains(note, "stderr had after 6 bytes") || strings.Contains(note, "stdout had") {
		t.Errorf("told: %v", got)
	}
	if over := got["overflow"].([]any); len(over) != 1 || over[0].(map[string]any)["stream"] != "stderr" || over[0].(map[string]any)["path"] != "" {
		t.Errorf("overflow: %v", over)
	}
}

// stopping is a fleet whose stops take as long as the test wants, during which a machine
// still counts as running.
type stopping struct {
	fleet.Fleet
	begun, release chan struct{}
}

func (f stopping) Stop(ctx context.Context, name string, o fleet.StopOptions) (fleet.Machine, error) {
	close(f.begun)
	<-f.release
	return f.Fleet.Stop(ctx, name, o)
}

// Looking at a command while its machine is being stopped asks nothing in the guest, since
// that could reach the engine after the stop, and start the machine again.
func TestLooksDoNotUndoAStop(t *testing.T) {
	r := newRig(t, rigOptions{})
	slow := stopping{Fleet: r.fleet, begun: make(chan struct{}), release: make(chan struct{})}
	r.options.Fleets = []fleet.Fleet{slow}
	r.session, r.client = r.connect(rigOptions{})
	name := r.machine(map[string]any{"name": "kept"})
	ran := r.call("run-command", map[string]any{"name": name, "command": "sleep 1000", "background": true})
	stopped := make(chan map[string]any, 1)
	go func() { stopped <- r.call("stop-machine", map[string]any{"name": name}) }()
	<-slow.begun
	for _, tool := range []string{"read-command", "stop-command"} {
		if text := r.refused(tool, map[string]any{"name": name, "commandId": ran["commandId"]}); !strings.HasPrefix(text, "NOT_READY") {
			t.Errorf("%s while it stops: %s", tool, text)
		}
	}
	if shown := r.call("get-machine", map[string]any{"name": name}); shown["commands"] != nil {
		t.Errorf("its commands were asked for: %v", shown)
	}
	close(slow.release)
	if m := <-stopped; m["state"] != "stopped" {
		t.Errorf("stopped: %v", m)
	}
}
