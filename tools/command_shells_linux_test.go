package tools_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"smol-mcp/fleet/fleettest"
)

// inShells runs a test in the shells that images have, with the /proc that real guests have, and
// where guests begin jobs by themselves.
func inShells(t *testing.T, test func(t *testing.T, r *rig, name, dir string)) {
	for _, shell := range []string{"dash", "bash", "busybox sh"} {
		t.Run(shell, func(t *testing.T) {
			t.Parallel()
			if _, err := exec.LookPath(strings.Fields(shell)[0]); err != nil {
				t.Skipf("no %s here", shell)
			}
			host := hostRunner{shell: shell, dir: t.TempDir()}
			r := newRig(t, rigOptions{memory: fleettest.MemoryOptions{Exec: host.exec}})
			test(t, r, r.machine(nil), host.dir)
		})
	}
	t.Run("native", func(t *testing.T) {
		t.Parallel()
		r, _, dir := newNative(t, nil)
		test(t, r, r.machine(nil), dir)
	})
}

// Ten ways for a command to end, each with its own fields.
func TestTenEndings(t *testing.T) {
	inShells(t, func(t *testing.T, r *rig, name, dir string) {
		plain := filepath.Join(dir, "plain")
		if err := os.WriteFile(plain, []byte("echo no\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			what    string
			command any
			more    map[string]any
			want    map[string]any
		}{
			{"0", "echo out", nil, map[string]any{"exitCode": 0.0, "stdout": "out\n", "signal": nil, "timedOut": false, "running": false}},
			{"42", []string{"sh", "-c", "exit 42"}, nil, map[string]any{"exitCode": 42.0, "signal": nil}},
			{"signal", "kill -9 $$", nil, map[string]any{"exitCode": 137.0, "signal": "KILL", "timedOut": false, "stderr": ""}},
			{"not found", []string{"no-such-program"}, nil, map[string]any{"exitCode": 127.0}},
			{"errors and output", "echo o; echo e >&2; exec 2>&1; echo both >&2", nil, map[string]any{"stdout": "o\nboth\n", "stderr": "e\n"}},
			{"not executable", []string{plain}, nil, map[string]any{"exitCode": 126.0}},
			{"time-out, TERM ignored", "trap '' TERM; echo early; while :; do sleep 0.1; done", map[string]any{"timeoutSecs": 1}, map[string]any{"exitCode": nil, "timedOut": true, "running": false, "stdout": "early\n", "signal": "KILL"}},
			{"time-out", "echo early; sleep 60", map[string]any{"timeoutSecs": 1}, map[string]any{"exitCode": nil, "timedOut": true, "running": false, "stdout": "early\n", "signal": "TERM"}},
			{"grandchild holds stdout", "(sleep 3; echo late) & echo begun", nil, map[string]any{"exitCode": 0.0, "stdout": "begun\n"}},
			{"unread stdin", "echo deaf", map[string]any{"stdin": strings.Repeat("x", 30000)}, map[string]any{"exitCode": 0.0, "stdout": "deaf\n"}},
			{"stdin", "wc -c", map[string]any{"stdin": strings.Repeat("x", 30000)}, map[string]any{"exitCode": 0.0, "stdout": "30000\n"}},
		} {
			arguments := map[string]any{"name": name, "command": c.command}
			for k, v := range c.more {
				arguments[k] = v
			}
			got := r.call("run-command", arguments)
			if stdout, ok := got["stdout"].(string); ok {
				got["stdout"] = strings.TrimLeft(stdout, " ")
			}
			for k, want := range c.want {
				if got[k] != want {
					t.Errorf("%s: %s is %v, want %v (%v)", c.what, k, got[k], want, got)
				}
			}
			if stderr, _ := got["stderr"].(string); c.what == "not found" && !strings.Contains(stderr, "not found") || c.what == "not executable" && stderr == "" {
				t.Errorf("%s: stderr %q", c.what, stderr)
			}
			for _, listed := range r.call("get-machine", map[string]any{"name": name})["commands"].([]any) {
				if l := listed.(map[string]any); l["command"] == c.command && l["exitCode"] != got["exitCode"] {
					t.Errorf("%s: listed with exit code %v, told with %v", c.what, l["exitCode"], got["exitCode"])
				}
			}
			if c.what == "grandchild holds stdout" {
				if took := got["durationMs"].(float64); took > 1500 {
					t.Errorf("%s: %v ms", c.what, took)
				}
			}
		}
		if text := r.refused("run-command", map[string]any{"name": name, "command": "true", "workdir": "/none"}); !strings.HasPrefix(text, "NOT_FOUND") {
			t.Errorf("a missing workdir: %q", text)
		}
		if left, _ := filepath.Glob(filepath.Join(dir, ".smol-mcp", "*.stdin")); len(left) > 0 {
			t.Errorf("inputs are left: %v", left)
		}
	})
}

// With the disk full the exit code is still known, and the result says what may be missing.
func TestFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can mount a small disk")
	}
	inShells(t, func(t *testing.T, r *rig, name, dir string) {
		if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
			t.Skip(err)
		}
		t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
		full := r.run(name, "echo begun; until grep -q begun "+dir+"/.smol-mcp/*.stdout 2>/dev/null; do :; done; head -c 3000000 /dev/zero >"+dir+"/big || exit 9")
		if note, _ := full["note"].(string); full["exitCode"] != 9.0 || full["stdout"] != "begun\n" || note != "" && !strings.Contains(note, "full") {
			t.Errorf("the disk filled: %v", full)
		}
		if again := r.run(name, "rm "+dir+"/big; echo free"); again["exitCode"] != 0.0 || !strings.Contains(again["stdout"].(string), "free") {
			t.Errorf("with a full disk at its beginning: %v", again)
		}
		if after := r.run(name, "echo fine"); after["stdout"] != "fine\n" || after["note"] != nil {
			t.Errorf("after that: %v", after)
		}
	})
}

// A command whose request is over is ended when its time is, also when nobody of ours
// is there; its watcher does not stay.
func TestTimeIsKept(t *testing.T) {
	inShells(t, func(t *testing.T, r *rig, name, dir string) {
		beat := filepath.Join(dir, "beat")
		line := "trap '' TERM; (while :; do echo >>" + beat + "; sleep 0.05; done) & while :; do sleep 0.1; done"
		ran := r.call("run-command", map[string]any{"name": name, "command": line, "timeoutSecs": 2, "waitSecs": 1})
		if ran["running"] != true {
			t.Fatalf("ran: %v", ran)
		}
		id := ran["commandId"].(string)
		if err := r.session.Close(t.Context()); err != nil {
			t.Error(err)
		}
		eventually(t, "its end is written down", func() bool {
			job, _ := os.ReadFile(filepath.Join(dir, ".smol-mcp", id+".job"))
			return strings.HasPrefix(string(job), "137 ")
		})
		eventually(t, "its watcher is gone", func() bool { return !mentioned(id[:6]+"."+id[6:]) && !mentioned(id) })
		if why, err := os.ReadFile(filepath.Join(dir, ".smol-mcp", id+".why")); string(why) != "timeout\n" {
			t.Errorf("and why: %q, %v", why, err)
		}
	})
}

// mentioned reports whether a process has a text in its command line.
func mentioned(text string) bool {
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range lines {
		if line, err := os.ReadFile(file); err == nil && strings.Contains(string(line), text) {
			return true
		}
	}
	return false
}

// Where commands have no process group of their own, their marks serve.
func TestWithoutGroup(t *testing.T) {
	for _, programs := range []string{"with setsid", "without"} {
		t.Run(programs, func(t *testing.T) {
			t.Parallel()
			host := hostRunner{shell: "dash", dir: t.TempDir(), grouped: true, noSetsid: programs == "without"}
			r := newRig(t, rigOptions{memory: fleettest.MemoryOptions{Exec: host.exec}})
			name := r.machine(nil)
			if ran := r.run(name, "echo out; exit 3"); ran["stdout"] != "out\n" || ran["exitCode"] != 3.0 {
				t.Errorf("ran: %v", ran)
			}
			ran := r.call("run-command", map[string]any{"name": name, "command": "echo begun; sleep 1000 & wait", "waitSecs": 1})
			if ran["running"] != true || ran["stdout"] != "begun\n" {
				t.Fatalf("ran: %v", ran)
			}
			begin := time.Now()
			stopped := r.call("stop-command", map[string]any{"name": name, "commandId": ran["commandId"]})
			if stopped["running"] != false || stopped["signal"] != "TERM" || time.Since(begin) > 3*time.Second {
				t.Errorf("stopped after %v: %v", time.Since(begin), stopped)
			}
			if late := r.call("run-command", map[string]any{"name": name, "command": "sleep 60", "timeoutSecs": 1}); late["timedOut"] != true || late["running"] != false {
				t.Errorf("time-out: %v", late)
			}
		})
	}
}
