package tools_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"smol-mcp/fleet"
	"smol-mcp/fleet/fleettest"
	"smol-mcp/tools"
)

// read asks for a command of a result.
func (r *rig) read(machine string, ran map[string]any, more map[string]any) map[string]any {
	r.t.Helper()
	arguments := map[string]any{"name": machine, "commandId": ran["commandId"]}
	for k, v := range more {
		arguments[k] = v
	}
	return r.call("read-command", arguments)
}

// A command that outlasts the wait goes on: what it printed so far comes back, and
// its handle tells the rest, in this session and in another.
func TestWaitOver(t *testing.T) {
	r := newRig(t, rigOptions{})
	name := r.machine(nil)
	ran := r.call("run-command", map[string]any{"name": name, "command": "echo first; while [ ! -e /tmp/go ]; do sleep 0.1; done; echo second; exit 7", "waitSecs": 1})
	if ran["running"] != true || ran["exitCode"] != nil || ran["stdout"] != "first\n" || ran["commandId"] == nil || ran["truncated"] != false {
		t.Fatalf("ran: %v", ran)
	}
	if r.run(name, "true")["running"] != false {
		t.Error("another command does not run beside it")
	}
	if read := r.read(name, ran, nil); read["running"] != true || read["stdout"] != "first\n" || read["nextOffset"] != 6.0 {
		t.Errorf("while it runs: %v", read)
	}
	if !r.session.Busy() {
		t.Error("a session with a running command counts as idle")
	}
	_, second := r.connect(rigOptions{})
	r.client = second
	r.call("write-file", map[string]any{"name": name, "path": "/tmp/go", "content": ""})
	read := r.read(name, ran, map[string]any{"waitSecs": 30, "offset": 6})
	if read["running"] != false || read["exitCode"] != 7.0 || read["stdout"] != "second\n" || read["nextOffset"] != 13.0 || read["stdoutBytes"] != 13.0 {
		t.Errorf("at its end, from another session: %v", read)
	}
	if read := r.read(name, ran, map[string]any{"stream": "stderr"}); read["stdout"] != "" || read["nextOffset"] != 0.0 || read["exitCode"] != 7.0 {
		t.Errorf("the other stream: %v", read)
	}
}

// What a command printed is a resource too.
func TestCommandResource(t *testing.T) {
	r := newRig(t, rigOptions{})
	name := r.machine(nil)
	ran := r.run(name, `echo wörd; printf '\377' >&2`)
	address := "smol://machine/local/" + name + "/command/" + ran["commandId"].(string)
	resource := func(uri string) (*mcp.ReadResourceResult, error) {
		return r.client.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: uri})
	}
	if res, err := resource(address + "/stdout"); err != nil || res.Contents[0].Text != "wörd\n" {
		t.Errorf("stdout: %v %v", res, err)
	}
	if res, err := resource(address + "/stderr"); err != nil || string(res.Contents[0].Blob) != "\xff" {
		t.Errorf("stderr: %v %v", res, err)
	}
	for uri, code := range map[string]string{
		address + "/none": "INVALID",
		"smol://machine/local/" + name + "/command/abcdefghijkl/stdout": "NOT_FOUND", "smol://machine/local/" + name + "/command/..%2F..%2Fx/stdout": "INVALID",
	} {
		if _, err := resource(uri); err == nil || !strings.Contains(err.Error(), code) {
			t.Errorf("%s: %v, want %s", uri, err, code)
		}
	}
	big := r.run(name, "head -c 9000000 /dev/zero")
	if _, err := resource("smol://machine/local/" + name + "/command/" + big["commandId"].(string) + "/stdout"); err == nil || !strings.Contains(err.Error(), "read-command") {
		t.Errorf("one that is too long: %v", err)
	}
}

// A command in the background answers at once and outlives the cancel of its call, not
// its time.
func TestBackground(t *testing.T) {
	r := newRig(t, rigOptions{limits: func(l *tools.Limits) { l.MaxExecTimeout = 10 * time.Second }})
	name := r.machine(nil)
	begin := time.Now()
	ran := r.call("run-command", map[string]any{"name": name, "command": "echo up; sleep 1000", "background": true})
	if took := time.Since(begin); ran["running"] != true || ran["stdout"] != "up\n" || took > 5*time.Second {
		t.Fatalf("after %v: %v", took, ran)
	}
	if job := r.run(name, "sed -n 2p /tmp/.smol-mcp/"+ran["commandId"].(string)+".job")["stdout"].(string); !strings.HasSuffix(job, " 86400\n") {
		t.Errorf("its time: %q", job)
	}
	if broken := r.call("run-command", map[string]any{"name": name, "command": "nosuch", "background": true}); broken["exitCode"] != 127.0 || broken["running"] != false {
		t.Errorf("one that fails at once: %v", broken)
	}
	if text := r.refused("run-command", map[string]any{"name": name, "command": "true", "timeoutSecs": 11}); !strings.Contains(text, "background") {
		t.Errorf("over the ceiling: %q", text)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = r.client.CallTool(ctx, &mcp.CallToolParams{Name: "run-command", Arguments: map[string]any{"name": name, "command": "touch /root/on; sleep 1000", "background": true, "waitSecs": 60}})
	}()
	eventually(t, "it runs", func() bool { return r.run(name, "ls /root")["stdout"] == "on\n" })
	cancel()
	<-done
	running := 0
	for _, one := range r.call("get-machine", map[string]any{"name": name})["commands"].([]any) {
		if one := one.(map[string]any); one["state"] == "running" {
			running++
			if !strings.Contains(one["command"].(string), "sleep 1000") || one["startedAt"].(float64) < 1e9 || one["exitCode"] != nil {
				t.Errorf("listed as %v", one)
			}
		}
	}
	if running != 2 {
		t.Errorf("%d run", running)
	}
}

// A stop ends the whole group, and what it printed stays.
func TestStopCommand(t *testing.T) {
	for _, c := range []struct {
		what, command, signal string
		want                  map[string]any
	}{
		{"TERM", "echo begun; sleep 1000 & wait", "", map[string]any{"exitCode": 143.0, "signal": "TERM", "running": false, "stdout": "begun\n"}},
		{"handled", "trap 'echo bye; exit 3' TERM; echo begun; while :; do sleep 0.1; done", "TERM", map[string]any{"exitCode": 3.0, "running": false, "stdout": "begun\nbye\n"}},
		{"INT", "trap 'echo int; exit 4' INT; echo begun; while :; do sleep 0.1; done", "INT", map[string]any{"exitCode": 4.0, "stdout": "begun\nint\n"}},
		{"deaf to INT", "trap '' INT; echo begun; sleep 1000", "INT", map[string]any{"running": true, "exitCode": nil}},
		{"deaf to TERM", "trap '' TERM; echo begun; while :; do sleep 0.1; done", "TERM", map[string]any{"exitCode": 137.0, "signal": "KILL", "running": false}},
		{"KILL", "trap '' TERM; echo begun; sleep 1000", "KILL", map[string]any{"exitCode": 137.0, "signal": "KILL", "running": false}},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, rigOptions{})
			name := r.machine(nil)
			ran := r.call("run-command", map[string]any{"name": name, "command": c.command, "waitSecs": 1})
			if ran["running"] != true || ran["stdout"] != "begun\n" {
				t.Fatalf("ran: %v", ran)
			}
			arguments := map[string]any{"name": name, "commandId": ran["commandId"]}
			if c.signal != "" {
				arguments["signal"] = c.signal
			}
			got := r.call("stop-command", arguments)
			for k, want := range c.want {
				if got[k] != want {
					t.Errorf("%s is %v, want %v (%v)", k, got[k], want, got)
				}
			}
			if again := r.call("stop-command", map[string]any{"name": name, "commandId": ran["commandId"], "signal": "KILL"}); again["running"] != false {
				t.Errorf("again: %v", again)
			}
		})
	}
	r := newRig(t, rigOptions{})
	name := r.machine(nil)
	for _, tool := range []string{"read-command", "stop-command"} {
		if text := r.refused(tool, map[string]any{"name": name, "commandId": "abcdefghijkl"}); !strings.HasPrefix(text, "NOT_FOUND") {
			t.Errorf("an unknown id: %q", text)
		}
		for _, id := range []string{"", "../../x", "ABCDEFGHIJKL", strings.Repeat("a", 500)} {
			if text := r.refused(tool, map[string]any{"name": name, "commandId": id}); !strings.HasPrefix(text, "INVALID") {
				t.Errorf("id %q: %.100q", id, text)
			}
		}
	}
}

// What was lost is said to be, with the reason; no exit code is made up.
func TestLostOutcomes(t *testing.T) {
	r := newRig(t, rigOptions{})
	name := r.machine(map[string]any{"name": "kept"})
	background := func() map[string]any {
		return r.call("run-command", map[string]any{"name": name, "command": "echo begun; sleep 1000", "background": true})
	}
	lost := background()
	r.call("stop-machine", map[string]any{"name": name})
	for _, tool := range []string{"read-command", "stop-command"} {
		if text := r.refused(tool, map[string]any{"name": name, "commandId": lost["commandId"]}); !strings.HasPrefix(text, "NOT_READY") || !strings.Contains(text, "stopped") || !strings.Contains(text, "not known") {
			t.Errorf("%s of a stopped machine: %q", tool, text)
		}
	}
	if m := r.call("get-machine", map[string]any{"name": name}); m["state"] != "stopped" || m["commands"] != nil {
		t.Errorf("the machine: %v", m)
	}
	r.call("start-machine", map[string]any{"name": name})
	if text := r.refused("read-command", map[string]any{"name": name, "commandId": lost["commandId"]}); !strings.HasPrefix(text, "NOT_FOUND") || !strings.Contains(text, "not known") {
		t.Errorf("after a restart that emptied /tmp: %q", text)
	}
	gone := background()
	r.run(name, "rm -rf /tmp/.smol-mcp")
	if text := r.refused("read-command", map[string]any{"name": name, "commandId": gone["commandId"]}); !strings.HasPrefix(text, "NOT_FOUND") {
		t.Errorf("with its files gone: %q", text)
	}
	killed := r.call("run-command", map[string]any{"name": name, "command": "echo begun; kill -9 $PPID; exit 5"})
	if note, _ := killed["note"].(string); killed["exitCode"] != nil || killed["running"] != false || killed["stdout"] != "begun\n" || !strings.Contains(note, "not seen") {
		t.Errorf("its shell killed: %v", killed)
	}
	all := r.call("run-command", map[string]any{"name": name, "command": "echo begun; kill -9 0", "waitSecs": 5})
	if all["exitCode"] != nil || all["running"] != false || all["stdout"] != "begun\n" {
		t.Errorf("its whole group killed: %v", all)
	}
}

// The answer of the start is lost: the command is found, and runs within its time.
func TestLostStart(t *testing.T) {
	r := newRig(t, rigOptions{})
	name := r.machine(nil)
	r.memory.Fault(fleettest.Fault{Method: "Exec", Times: 1, LostReply: true, Err: &fleet.Error{Code: fleet.CodeUnreachable, Op: "exec in " + name, Why: "connection reset", MaybeDone: true}})
	ran := r.call("run-command", map[string]any{"name": name, "command": "echo begun; sleep 2; echo done", "waitSecs": 20})
	if ran["exitCode"] != 0.0 || ran["stdout"] != "begun\ndone\n" {
		t.Errorf("ran: %v", ran)
	}
	r.memory.Fault(fleettest.Fault{Method: "Exec", Times: 1, Err: &fleet.Error{Code: fleet.CodeUnreachable, Op: "exec in " + name, Why: "connection reset", MaybeDone: true}})
	if text := r.refused("run-command", map[string]any{"name": name, "command": "echo begun"}); !strings.HasPrefix(text, "UNREACHABLE") {
		t.Errorf("it never came there: %q", text)
	}
}
