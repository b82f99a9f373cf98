package tools_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"smol-mcp/fleet"
	"smol-mcp/fleet/fleettest"
)

// hostRunner runs commands on this computer with its own /proc, with /tmp in a
// directory of the test: the guests of the other tests have no /proc.
type hostRunner struct {
	shell, dir string
	grouped    bool // commands are in the group of the tests, as an engine may have it
	noSetsid   bool // the program setsid is missing
}

// bootID is the file that names the boot instead of the kernel's, once it is there.
func (h hostRunner) bootID() string { return filepath.Join(h.dir, "boot_id") }

func (h hostRunner) exec(ctx context.Context, _ string, cmd fleet.Command) (fleet.Result, error) {
	argv := cmd.Argv
	if argv[0] == "sh" {
		argv = append(strings.Fields(h.shell), argv[1:]...)
	}
	if h.noSetsid && argv[0] == "setsid" {
		return fleet.Result{}, &fleet.Error{Code: fleet.CodeInternal, Op: "exec", Why: "failed to spawn command: No such file or directory (os error 2)", MaybeDone: true}
	}
	if _, err := os.Stat(h.bootID()); err == nil {
		argv = strings.Split(strings.ReplaceAll(strings.Join(argv, "\x00"), "/proc/sys/kernel/random/boot_id", h.bootID()), "\x00")
	}
	run := exec.Command(argv[0], argv[1:]...)
	run.SysProcAttr = &syscall.SysProcAttr{Setsid: !h.grouped}
	run.Dir, run.Stdin = h.dir, strings.NewReader(cmd.Stdin)
	run.Env = append(os.Environ(), "TMPDIR="+h.dir)
	for k, v := range cmd.Env {
		run.Env = append(run.Env, k+"="+v)
	}
	var stdout, stderr bytes.Buffer
	run.Stdout, run.Stderr = &stdout, &stderr
	if err := run.Start(); err != nil {
		return fleet.Result{}, &fleet.Error{Code: fleet.CodeInternal, Op: "exec", Why: "failed to spawn command: " + err.Error()}
	}
	done := make(chan error, 1)
	go func() { done <- run.Wait() }() // ends with the command, whose time is bounded below
	timer := time.AfterFunc(min(cmd.Timeout, time.Minute), func() { _ = run.Process.Kill() })
	defer timer.Stop()
	select {
	case err := <-done:
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			return fleet.Result{}, &fleet.Error{Code: fleet.CodeInternal, Op: "exec", Why: err.Error()}
		}
		return fleet.Result{ExitCode: run.ProcessState.ExitCode(), Stdout: stdout.Bytes(), Stderr: stderr.Bytes()}, nil
	case <-ctx.Done():
		return fleet.Result{}, &fleet.Error{Code: fleet.CodeCancelled, Op: "exec", Why: "cancelled", MaybeDone: true, Err: ctx.Err()}
	}
}

// TestScriptsInShells runs our scripts in the shells that images have, with the
// /proc that real guests have: what left its session is stopped too, the boot
// is known by its id, and the time is the guest's own.
func TestScriptsInShells(t *testing.T) {
	for _, shell := range []string{"dash", "bash", "busybox sh"} {
		t.Run(shell, func(t *testing.T) {
			t.Parallel()
			if _, err := exec.LookPath(strings.Fields(shell)[0]); err != nil {
				t.Skipf("no %s here", shell)
			}
			host := hostRunner{shell: shell, dir: t.TempDir()}
			r := newRig(t, rigOptions{memory: fleettest.MemoryOptions{Exec: host.exec}})
			name := r.machine(nil)
			ran := r.call("run-command", map[string]any{"name": name, "command": "sleep 0.2; echo out; echo err >&2; exit 3", "env": map[string]any{"X": "a 'b' \"c\" $d\n"}})
			if ran["stdout"] != "out\n" || ran["stderr"] != "err\n" || ran["exitCode"] != 3.0 || ran["startedMachine"] != false || ran["durationMs"].(float64) < 150 {
				t.Errorf("ran: %v", ran)
			}
			if ran := r.call("run-command", map[string]any{"name": name, "command": []string{"printenv", "X"}, "env": map[string]any{"X": "a 'b' \"c\" $d\n"}}); ran["stdout"] != "a 'b' \"c\" $d\n\n" {
				t.Errorf("environment: %q", ran["stdout"])
			}
			if long := r.run(name, "yes | head -c 500000"); long["truncated"] != true || long["stdoutBytes"] != 500000.0 {
				t.Errorf("long output: %v bytes", long["stdoutBytes"])
			}
			smaps := r.call("read-file", map[string]any{"name": name, "path": "/proc/self/maps", "encoding": "auto"})
			if smaps["bytes"].(float64) < 100 || smaps["size"].(float64) < smaps["bytes"].(float64) {
				t.Errorf("a file without a size: %v of %v bytes", smaps["bytes"], smaps["size"])
			}
			stopped(t, r, name, host.dir)
			if err := os.WriteFile(host.bootID(), []byte("another-boot\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			if ran := r.run(name, "true"); ran["startedMachine"] != true {
				t.Error("another boot went unnoticed")
			}
		})
	}
}

// stopped cancels a command whose child has left its session, and sees that both end.
func stopped(t *testing.T, r *rig, name, dir string) {
	t.Helper()
	beat := filepath.Join(dir, "beat")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = r.client.CallTool(ctx, &mcp.CallToolParams{Name: "run-command", Arguments: map[string]any{
			"name": name, "command": "beat() { while :; do echo >>" + beat + "; sleep 0.05; done; }; " +
				"(trap '' TERM; beat) & env -i /bin/sh -c 'while :; do echo >>" + beat + "; /bin/sleep 0.05; done' & " +
				"setsid sh -c 'while :; do echo >>" + beat + "; sleep 0.05; done' & wait"}})
	}()
	size := func() int64 {
		info, err := os.Stat(beat)
		if err != nil {
			return 0
		}
		return info.Size()
	}
	eventually(t, "it runs", func() bool { return size() > 0 })
	begin := time.Now()
	cancel()
	<-done
	eventually(t, "nothing of it runs", func() bool {
		before := size()
		time.Sleep(300 * time.Millisecond) // six beats
		return size() == before
	})
	if took := time.Since(begin); took > 4*time.Second {
		t.Errorf("it ran for %v after the cancel", took)
	}
}
