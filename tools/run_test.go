package tools_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"smol-mcp/fleet"
	"smol-mcp/fleet/fleettest"
	"smol-mcp/tools"
)

// Each way for a command to end gives its own fields.
func TestEndings(t *testing.T) {
	r := newRig(t, rigOptions{})
	name := r.machine(nil)
	for _, c := range []struct {
		what    string
		command any
		more    map[string]any
		want    map[string]any
	}{
		{"success", "true", nil, map[string]any{"exitCode": 0.0, "stdout": "", "stderr": "", "timedOut": false}},
		{"failure", "exit 42", nil, map[string]any{"exitCode": 42.0}},
		{"signal", "kill -9 $$", nil, map[string]any{"exitCode": 137.0, "signal": "KILL"}},
		{"not found", []string{"no-such-program"}, nil, map[string]any{"exitCode": 127.0}},
		{"not executable", []string{"/etc"}, nil, map[string]any{"exitCode": 126.0}},
		{"time-out", "echo early; sleep 60", map[string]any{"timeoutSecs": 1}, map[string]any{"exitCode": nil, "timedOut": true, "stdout": "early\n", "running": false}},
		{"background child", "sleep 60 & echo started", nil, map[string]any{"exitCode": 0.0, "stdout": "started\n"}},
		{"unread stdin", "echo deaf", map[string]any{"stdin": strings.Repeat("x", 20000)}, map[string]any{"exitCode": 0.0, "stdout": "deaf\n"}},
		{"no stdin", "cat; echo end", nil, map[string]any{"stdout": "end\n"}},
		{"stdin", "cat", map[string]any{"stdin": "wörds\n"}, map[string]any{"stdout": "wörds\n"}},
		{"large stdin", "wc -c", map[string]any{"stdin": strings.Repeat("y", 300000)}, map[string]any{"stdout": "300000\n"}},
		{"env", "echo $A-$B", map[string]any{"env": map[string]any{"A": "1 2", "B": "$x"}}, map[string]any{"stdout": "1 2-$x\n"}},
		{"workdir", "pwd", map[string]any{"workdir": "/tmp"}, map[string]any{"stdout": "/tmp\n"}},
		{"arguments as they are", []string{"printf", "%s|", "a b", "", "$HOME", "'"}, nil, map[string]any{"stdout": "a b||$HOME|'|"}},
		{"both streams", "echo out; echo err >&2", nil, map[string]any{"stdout": "out\n", "stderr": "err\n", "stdoutBytes": 4.0, "stderrBytes": 4.0}},
		{"quick stderr", "echo gone >&2; exit 1", nil, map[string]any{"stderr": "gone\n", "exitCode": 1.0}},
		{"no new line at the end", "printf x", nil, map[string]any{"stdout": "x"}},
		{"shell killed from within", "kill -9 $PPID; exit 5", nil, map[string]any{"exitCode": nil, "timedOut": false}},
	} {
		arguments := map[string]any{"name": name, "command": c.command}
		for k, v := range c.more {
			arguments[k] = v
		}
		got := r.call("run-command", arguments)
		for k, want := range c.want {
			if got[k] != want {
				t.Errorf("%s: %s is %v, want %v (%v)", c.what, k, got[k], want, got)
			}
		}
	}
	if text := r.refused("run-command", map[string]any{"name": name, "command": "true", "workdir": "/none"}); !strings.HasPrefix(text, "NOT_FOUND") {
		t.Errorf("a missing workdir: %q", text)
	}
	if text := r.refused("run-command", map[string]any{"name": name, "command": "true", "timeoutSecs": 901}); !strings.HasPrefix(text, "TIMEOUT_TOO_LONG") || !strings.Contains(text, "15m") {
		t.Errorf("over the ceiling: %q", text)
	}
}

// One request to the fleet for a short command, a machine, a page of a file.
func TestRequestsPerCall(t *testing.T) {
	r := newRig(t, rigOptions{})
	name := r.machine(nil)
	for tool, arguments := range map[string]map[string]any{
		"run-command":   {"command": "echo hi"},
		"read-file":     {"path": "/etc/passwd"},
		"list-machines": nil,
	} {
		if arguments != nil {
			arguments["name"] = name
		}
		before := r.requests()
		r.try(tool, arguments)
		if n := r.requests() - before; n != 1 {
			t.Errorf("%s: %d requests: %v", tool, n, r.memory.Calls()[before:])
		}
	}
}

// requests counts the calls that a real client would send: Info is cached there.
func (r *rig) requests() int { return len(r.memory.Calls()) - r.memory.Count("Info") }

// W34: startedMachine tells when a call had to start the machine.
func TestStartedMachine(t *testing.T) {
	r := newRig(t, rigOptions{})
	name := r.machine(nil)
	for _, tool := range []string{"run-command", "read-file", "write-file"} {
		arguments := map[string]any{"name": name}
		switch tool {
		case "run-command":
			arguments["command"] = "true"
		case "read-file":
			arguments["path"] = "/etc"
		case "write-file":
			arguments["path"], arguments["content"] = "/root/x", "y"
		}
		r.call("stop-machine", map[string]any{"name": name})
		for _, want := range []bool{true, false} {
			if got := r.call(tool, arguments)["startedMachine"]; got != want {
				t.Errorf("%s: startedMachine is %v, want %v", tool, got, want)
			}
		}
	}
	// Also by a command that is released from its request.
	r.call("stop-machine", map[string]any{"name": name})
	if ran := r.run(name, "sleep 1.3; echo late"); ran["startedMachine"] != true || ran["stdout"] != "late\n" {
		t.Errorf("a longer command: %v", ran)
	}
	// A session that has not met the machine yet is told as well.
	r.call("stop-machine", map[string]any{"name": name})
	_, r.client = r.connect(rigOptions{})
	if got := r.run(name, "true")["startedMachine"]; got != true {
		t.Errorf("first contact: %v", got)
	}
}

// Long output: both ends, the exact gap, and the whole in the guest.
func TestOverflow(t *testing.T) {
	r := newRig(t, rigOptions{})
	name := r.machine(nil)
	ran := r.run(name, `i=0; while [ $i -lt 20000 ]; do echo "line $i äöü"; i=$((i+1)); done`)
	stdout := ran["stdout"].(string)
	if ran["truncated"] != true || !strings.HasPrefix(stdout, "line 0 äöü\nline 1 ") || !strings.HasSuffix(stdout, "line 19999 äöü\n") {
		t.Fatalf("ends: %q ... %q", stdout[:40], stdout[len(stdout)-40:])
	}
	over := ran["overflow"].([]any)[0].(map[string]any)
	size := int(ran["stdoutBytes"].(float64))
	head, rest, _ := strings.Cut(stdout, "\n[")
	mark, tail, _ := strings.Cut(rest, "]\n")
	var gap int
	if _, err := fmt.Sscanf(mark, "%d bytes", &gap); err != nil || len(head)+gap+len(tail) != size || over["bytes"] != float64(size) {
		t.Errorf("%d + %d + %d is not %d (mark %q, overflow %v)", len(head), gap, len(tail), size, mark, over)
	}
	sum := sha256.Sum256(r.readAll(name, over["path"].(string)))
	if want := r.run(name, "sha256sum "+over["path"].(string))["stdout"].(string); !strings.HasPrefix(want, hex.EncodeToString(sum[:])) {
		t.Error("the pages together are not the file")
	}
}

// readAll pages through a file.
func (r *rig) readAll(name, path string) []byte {
	r.t.Helper()
	var all []byte
	for {
		page := r.call("read-file", map[string]any{"name": name, "path": path, "offset": len(all), "encoding": "auto"})
		all = append(all, contentOf(r.t, page)...)
		if page["eof"] == true {
			return all
		}
		if page["bytes"] == 0.0 {
			r.t.Fatalf("a page without bytes at %d of %v", len(all), page["size"])
		}
	}
}

// A whole result stays under what clients take, whatever is printed.
func TestResultBudget(t *testing.T) {
	r := newRig(t, rigOptions{})
	name := r.machine(nil)
	for what, command := range map[string]string{
		"text":      "yes '0123456789' | head -c 3000000; yes abc | head -c 3000000 >&2",
		"escapes":   `yes '"\' | head -c 300000`,
		"control":   `yes "$(printf '\001\002')" | head -c 60000`,
		"bytes":     "head -c 300000 /dev/urandom; head -c 300000 /dev/urandom >&2",
		"runes":     "yes äöü€😀 | head -c 100001",
		"one short": "head -c 65537 /dev/zero | tr '\\0' a",
	} {
		res := r.try("run-command", map[string]any{"name": name, "command": command})
		if n := len(words(res)); n > 50_000 {
			t.Errorf("%s: a result of %d characters", what, n)
		}
		if out := decoded(t, res); out["truncated"] != true || len(out["overflow"].([]any)) == 0 {
			t.Errorf("%s: not marked as truncated", what)
		}
		if what != "bytes" && strings.ContainsRune(words(res), '\uFFFD') {
			t.Errorf("%s: a character was cut", what)
		}
	}
}

// W22: a reply that does not come in time is no failure of the command.
func TestLostExecReply(t *testing.T) {
	r := newRig(t, rigOptions{})
	name := r.machine(nil)
	r.memory.Fault(fleettest.Fault{Method: "Exec", Times: 1, LostReply: true, Err: &fleet.Error{Code: fleet.CodeTimeout, Op: "exec in " + name, Why: "HTTP 408", MaybeDone: true}})
	if ran := r.run(name, "echo done"); ran["running"] != false || ran["exitCode"] != 0.0 || ran["stdout"] != "done\n" {
		t.Errorf("carried out, reply lost: %v", ran)
	}
}

// A guest that says nothing at all after its time-out is still asked for what was printed.
func TestSilentTimeout(t *testing.T) {
	var guests func(machine string) (fleettest.Runner, error)
	r := newRig(t, rigOptions{memory: fleettest.MemoryOptions{Guest: func(machine string) (fleettest.Runner, error) {
		runner, err := guests(machine)
		return silent{runner.(*fleettest.Guest)}, err
	}}})
	guests = fleettest.Guests(t, fleettest.GuestOptions{})
	name := r.machine(nil)
	ran := r.call("run-command", map[string]any{"name": name, "command": "echo early; sleep 60", "timeoutSecs": 1})
	if ran["timedOut"] != true || ran["exitCode"] != nil || ran["running"] != false || ran["stdout"] != "early\n" {
		t.Errorf("ran: %v", ran)
	}
}

// silent is a guest whose killed commands leave nothing of their output.
type silent struct{ *fleettest.Guest }

func (s silent) Exec(ctx context.Context, cmd fleet.Command) (fleet.Result, error) {
	res, err := s.Guest.Exec(ctx, cmd)
	if res.ExitCode == 124 {
		res.Stdout, res.Stderr = nil, nil
	}
	return res, err
}

// A cancelled command is stopped with everything it started.
func TestCancelStopsTheCommand(t *testing.T) {
	r := newRig(t, rigOptions{})
	name := r.machine(nil)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := r.client.CallTool(ctx, &mcp.CallToolParams{Name: "run-command", Arguments: map[string]any{
			"name": name, "command": "trap '' HUP; (while :; do date +%s%N >/tmp/alive; sleep 0.05; done) & wait"}})
		done <- err
	}()
	eventually(t, "it runs", func() bool { return r.run(name, "cat /tmp/alive 2>/dev/null")["stdout"] != "" })
	cancel()
	if err := <-done; err == nil {
		t.Error("the call was not cancelled")
	}
	eventually(t, "nothing of it runs", func() bool {
		return r.run(name, "a=$(cat /tmp/alive); sleep 0.3; [ \"$a\" = \"$(cat /tmp/alive)\" ] && echo still")["stdout"] == "still\n"
	})
}

// The end of a session ends the wait, not by stopping commands in machines that stay.
func TestSessionEndLeavesCommands(t *testing.T) {
	r := newRig(t, rigOptions{})
	name := r.machine(map[string]any{"name": "kept"})
	client := r.client
	go func() {
		_, _ = client.CallTool(t.Context(), &mcp.CallToolParams{Name: "run-command", Arguments: map[string]any{
			"name": name, "command": "echo begun >/root/a; while [ ! -e /root/go ]; do sleep 0.05; done; echo ended >/root/a"}})
	}()
	first := r.session
	_, r.client = r.connect(rigOptions{})
	eventually(t, "it runs", func() bool { return r.run(name, "cat /root/a 2>/dev/null")["stdout"] == "begun\n" })
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if err := first.Close(ctx); err != nil {
		t.Error(err)
	}
	r.run(name, "touch /root/go")
	eventually(t, "it ends by itself", func() bool { return r.run(name, "cat /root/a")["stdout"] == "ended\n" })
}

func TestManyCommandsAtOnce(t *testing.T) {
	r := newRig(t, rigOptions{})
	name := r.machine(nil)
	var group sync.WaitGroup
	for i := range 20 {
		group.Go(func() {
			if ran := r.try("run-command", map[string]any{"name": name, "command": fmt.Sprintf("sleep 0.1; echo %d", i)}); decoded(t, ran)["stdout"] != fmt.Sprintf("%d\n", i) {
				t.Errorf("%d: %s", i, words(ran))
			}
		})
	}
	group.Wait()
	// The files of commands that were told in full are removed, some at a time.
	for range 70 {
		r.run(name, "true")
	}
	files := r.run(name, "ls /tmp/.smol-mcp | grep -c 'stdout$'")["stdout"].(string)
	if n, err := strconv.Atoi(strings.TrimSpace(files)); err != nil || n < 30 || n > 60 {
		t.Errorf("%s output files after 90 commands", files)
	}
}

func TestRunOnce(t *testing.T) {
	r := newRig(t, rigOptions{})
	ran := r.call("run-once", map[string]any{"image": "alpine:3.20", "command": "echo $X; exit 4", "env": map[string]any{"X": "y"}})
	if ran["stdout"] != "y\n" || ran["exitCode"] != 4.0 || !strings.HasPrefix(ran["machine"].(string), "mcp-once-") {
		t.Errorf("ran: %v", ran)
	}
	long := r.call("run-once", map[string]any{"image": "alpine:3.20", "command": "yes | head -c 1000000"})
	if over := long["overflow"].([]any)[0].(map[string]any); over["path"] != "" || over["bytes"] != 1e6 || long["truncated"] != true {
		t.Errorf("long output: %v", over)
	}
	if late := r.call("run-once", map[string]any{"image": "alpine:3.20", "command": "sleep 60", "timeoutSecs": 1}); late["timedOut"] != true || late["exitCode"] != nil {
		t.Errorf("time-out: %v", late)
	}
	r.refused("run-once", map[string]any{"image": "alpine:3.20", "command": "true", "workdir": "/none"})
	if left := r.names(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// W8: the machine of a run-once that cannot be deleted stays recorded.
func TestRunOnceKeepsTheRecord(t *testing.T) {
	r := newRig(t, rigOptions{})
	r.memory.Fault(fleettest.Fault{Method: "Delete", Times: 1, Err: &fleet.Error{Code: fleet.CodeInternal, Op: "delete", Why: "still alive"}})
	ran := r.call("run-once", map[string]any{"image": "alpine:3.20", "command": "echo ok"})
	if ran["stdout"] != "ok\n" || !strings.Contains(ran["note"].(string), "still alive") {
		t.Errorf("ran: %v", ran)
	}
	recs, err := r.store.Records(t.Context())
	if err != nil || len(recs) != 1 || recs[0].Name != ran["machine"] {
		t.Errorf("records %v, %v", recs, err)
	}
}

// A cancelled run-once deletes its machine all the same.
func TestCancelledRunOnce(t *testing.T) {
	r := newRig(t, rigOptions{})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := r.client.CallTool(ctx, &mcp.CallToolParams{Name: "run-once", Arguments: map[string]any{"image": "alpine:3.20", "command": "sleep 60"}})
		done <- err
	}()
	eventually(t, "it runs", func() bool { return r.memory.Count("Exec") > 1 })
	cancel()
	if err := <-done; err == nil {
		t.Error("the call was not cancelled")
	}
	eventually(t, "the machine is gone", func() bool { return len(r.names()) == 0 })
}

func TestBranches(t *testing.T) {
	r := newRig(t, rigOptions{})
	source := r.machine(map[string]any{"branchable": true})
	out := r.call("branch-machine", map[string]any{"name": source, "childNames": []string{"mcp-one", "mcp-two", "stays"}})
	if len(out["children"].([]any)) != 3 || out["ready"] != true || out["machine"].(map[string]any)["name"] != "mcp-one" {
		t.Errorf("branches: %v", out)
	}
	r.memory.Fault(fleettest.Fault{Method: "Exec", Machine: "mcp-bad", Err: &fleet.Error{Code: fleet.CodeInvalid, Op: "exec", Why: "broken"}})
	mixed := r.call("branch-machine", map[string]any{"name": source, "childNames": []string{"mcp-bad", "mcp-good"}})
	if bad := mixed["children"].([]any)[0].(map[string]any); !strings.Contains(bad["error"].(string), "broken") || bad["ready"] != false {
		t.Errorf("mixed: %v", mixed)
	}
	if slices.Contains(r.names(), "mcp-bad") {
		t.Error("the branch that failed was left")
	}
	r.refused("branch-machine", map[string]any{"name": source, "childName": "Bad_Name"})
	r.refused("branch-machine", map[string]any{"name": source, "childName": "a", "childNames": []string{"b"}})
	// W9: the branches are this session's, and go with it.
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
	defer cancel()
	if err := r.session.Close(ctx); err != nil {
		t.Logf("close: %v", err)
	}
	for _, name := range r.names() {
		if name != "stays" && name != source {
			t.Errorf("left: %s", name)
		}
	}
}

// The budgets grow with the setting.
func TestLargerBudget(t *testing.T) {
	r := newRig(t, rigOptions{limits: func(l *tools.Limits) { l.MaxOutputBytes = 1 << 20 }})
	name := r.machine(nil)
	if ran := r.run(name, "yes 1234567 | head -c 500000"); ran["truncated"] != false || len(ran["stdout"].(string)) != 500000 {
		t.Errorf("truncated %v at %v bytes", ran["truncated"], ran["stdoutBytes"])
	}
}
