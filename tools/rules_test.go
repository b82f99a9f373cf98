package tools_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"smol-mcp/fleet"
	"smol-mcp/fleet/fleettest"
	"smol-mcp/tools"
)

// A command that never ran does not get the output of an earlier one.
func TestCommandThatNeverRan(t *testing.T) {
	r := newRig(t, rigOptions{})
	name := r.machine(nil)
	r.run(name, "echo FIRST; exit 9")
	if text := r.refused("run-command", map[string]any{"name": name, "command": "echo " + strings.Repeat("x", 200_000)}); !strings.Contains(text, "write-file") {
		t.Errorf("a command too long for Linux: %.300q", text)
	}
	r.memory.Fault(fleettest.Fault{Method: "Exec", Times: 1, Err: &fleet.Error{Code: fleet.CodeInternal, Op: "exec", Why: "agent lost", MaybeDone: true}})
	if text := r.refused("run-command", map[string]any{"name": name, "command": "echo second"}); !strings.Contains(text, "agent lost") {
		t.Errorf("a command that nothing shows to have run: %q", text)
	}
}

// What a command leaves in the background does not write into the next one's
// output, and is not stopped with it.
func TestBackgroundChildren(t *testing.T) {
	r := newRig(t, rigOptions{})
	name := r.machine(nil)
	r.run(name, "(while :; do echo BG; echo x >>/tmp/alive; sleep 0.05; done) & echo started")
	if ran := r.run(name, "sleep 0.3; echo hi"); ran["stdout"] != "hi\n" {
		t.Errorf("stdout %q", ran["stdout"])
	}
	alive := "a=$(wc -c </tmp/alive); sleep 0.3; [ $a = $(wc -c </tmp/alive) ] || echo alive"
	if ran := r.run(name, alive); ran["stdout"] != "alive\n" {
		t.Fatalf("the background child does not run: %v", ran)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	_, _ = r.client.CallTool(ctx, &mcp.CallToolParams{Name: "run-command", Arguments: map[string]any{"name": name, "command": "sleep 60"}})
	if ran := r.run(name, alive); ran["stdout"] != "alive\n" {
		t.Errorf("the background child of another command: %v", ran)
	}
}

// The environment of a command is the command's alone.
func TestEnvironmentDoesNotReachOurScripts(t *testing.T) {
	r := newRig(t, rigOptions{})
	name := r.machine(nil)
	ran := r.call("run-command", map[string]any{"name": name, "command": []string{"/bin/sh", "-c", "echo $PATH"}, "env": map[string]any{"PATH": "/nowhere:$PATH"}})
	if ran["stdout"] != "/nowhere:$PATH\n" {
		t.Errorf("PATH: %v", ran)
	}
	ran = r.call("run-command", map[string]any{"name": name, "command": "mkdir -p /data/t; head -c 200000 /dev/zero | tr '\\0' y; echo $TMPDIR >&2", "env": map[string]any{"TMPDIR": "/data/t", "dir": "x", "f": "y", "IFS": ":"}})
	if ran["stdoutBytes"] != 200000.0 || ran["truncated"] != true || ran["stderr"] != "/data/t\n" || ran["startedMachine"] != false {
		t.Errorf("TMPDIR: %v bytes, stderr %v, started %v", ran["stdoutBytes"], ran["stderr"], ran["startedMachine"])
	}
	if got := r.run(name, "echo $dir$f$SMOL_E_PATH$id; echo still here")["stdout"]; got != "\nstill here\n" {
		t.Errorf("a later command: %q", got)
	}
	for _, bad := range []string{"A B", "1A", "A=B", ""} {
		if text := r.refused("run-command", map[string]any{"name": name, "command": "true", "env": map[string]any{bad: "x"}}); !strings.HasPrefix(text, "INVALID") {
			t.Errorf("%q: %q", bad, text)
		}
	}
	for _, dir := range []string{"tmp", "./x"} {
		if text := r.refused("run-command", map[string]any{"name": name, "command": "true", "workdir": dir}); !strings.HasPrefix(text, "INVALID") {
			t.Errorf("workdir %q: %q", dir, text)
		}
	}
}

// A list of words is a program, also when the shell has a builtin of that name.
func TestArgvIsNoBuiltin(t *testing.T) {
	r := newRig(t, rigOptions{})
	name := r.machine(nil)
	for _, argv := range [][]string{{"exit", "124"}, {"set"}, {"cd", "/"}} {
		if ran := r.call("run-command", map[string]any{"name": name, "command": argv}); ran["exitCode"] != 127.0 || ran["timedOut"] != false {
			t.Errorf("%v: %v", argv, ran)
		}
	}
}

// W22: run-once waits for its end also when the engine gives up on the request.
func TestRunOnceOutlastsTheRequest(t *testing.T) {
	r := newRig(t, rigOptions{})
	r.memory.Fault(fleettest.Fault{Method: "Exec", Nth: 2, Times: 1, LostReply: true, Err: &fleet.Error{Code: fleet.CodeTimeout, Op: "exec", Why: "HTTP 408", MaybeDone: true}})
	ran := r.call("run-once", map[string]any{"image": "alpine:3.20", "command": "echo late; exit 6"})
	if ran["running"] != false || ran["exitCode"] != 6.0 || ran["stdout"] != "late\n" {
		t.Errorf("ran: %v", ran)
	}
	long := r.call("run-once", map[string]any{"image": "alpine:3.20", "command": "yes | head -c 1000000"})
	if strings.Contains(long["stdout"].(string), "read-file") {
		t.Error("it points into a machine that is gone")
	}
}

// A machine to be kept whose start fails is on record until it is gone.
func TestKeptMachineIsRecordedUntilItRuns(t *testing.T) {
	r := newRig(t, rigOptions{})
	r.memory.Fault(fleettest.Fault{Method: "Start", Err: &fleet.Error{Code: fleet.CodeInternal, Op: "start", Why: "no room"}})
	r.memory.Fault(fleettest.Fault{Method: "Delete", Times: 1, Err: &fleet.Error{Code: fleet.CodeInternal, Op: "delete", Why: "still alive"}})
	text := r.refused("create-machine", map[string]any{"image": "alpine:3.20", "name": "kept"})
	recs, err := r.store.Records(t.Context())
	if err != nil || len(recs) != 1 || recs[0].Name != "kept" || !strings.Contains(text, "goes on trying") {
		t.Errorf("records %v, %v; told %q", recs, err, text)
	}
}

// A branch takes no name that is taken, so its roll-back cannot hit another machine.
func TestBranchNamesMustBeFree(t *testing.T) {
	r := newRig(t, rigOptions{})
	source := r.machine(map[string]any{"branchable": true})
	r.exists("web")
	if text := r.refused("branch-machine", map[string]any{"name": source, "childName": "web"}); !strings.HasPrefix(text, "CONFLICT") {
		t.Errorf("refused with %q", text)
	}
	if r.memory.Count("Branch") > 0 {
		t.Error("the branch was asked for")
	}
}

// A call that does not hear does not cost the session's machines.
func TestDeafCallAtTheEnd(t *testing.T) {
	r := newRig(t, rigOptions{})
	for range 3 {
		r.machine(nil)
	}
	deaf := make(chan struct{})
	defer close(deaf)
	r.memory.Fault(fleettest.Fault{Method: "List", Hook: func(context.Context) { <-deaf }})
	go func() { _, _ = r.client.CallTool(context.Background(), &mcp.CallToolParams{Name: "list-machines"}) }()
	eventually(t, "the deaf call runs", func() bool { return r.memory.Count("List") > 0 })
	ctx, cancel := context.WithTimeout(t.Context(), 7*time.Second)
	defer cancel()
	if err := r.session.Close(ctx); err != nil {
		t.Error(err)
	}
	if left := r.names(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// W20: a caller that goes away is not held by the roll-back.
func TestRollbackDoesNotHoldTheCaller(t *testing.T) {
	r := newRig(t, rigOptions{})
	release := make(chan struct{})
	r.memory.Fault(fleettest.Fault{Method: "Start", Err: &fleet.Error{Code: fleet.CodeInternal, Op: "start", Why: "no room"}})
	r.memory.Fault(fleettest.Fault{Method: "Delete", Hook: func(context.Context) { <-release }})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	var began time.Time
	go func() {
		defer close(done)
		_, _ = r.client.CallTool(ctx, &mcp.CallToolParams{Name: "create-machine", Arguments: map[string]any{"image": "alpine:3.20"}})
	}()
	eventually(t, "the roll-back runs", func() bool { return r.memory.Count("Delete") > 0 })
	began = time.Now()
	cancel()
	<-done
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("the cancel took %v", took)
	}
	close(release)
	eventually(t, "the machine is gone", func() bool { return len(r.names()) == 0 })
}

// W20: the other tools that wait hear a cancel too.
func TestCancelOfEveryWait(t *testing.T) {
	r := newRig(t, rigOptions{})
	name := r.machine(map[string]any{"branchable": true})
	for tool, arguments := range map[string]map[string]any{
		"start-machine":  {"name": name},
		"branch-machine": {"name": name},
		"write-file":     {"name": name, "path": "/root/x", "content": "y"},
		"read-file":      {"name": name, "path": "/root/x"},
		"run-command":    {"name": name, "command": "true"},
	} {
		held := make(chan struct{}, 100)
		r.memory.Fault(fleettest.Fault{Method: "Exec", Hook: func(ctx context.Context) {
			held <- struct{}{}
			<-ctx.Done()
		}})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = r.client.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: arguments})
		}()
		<-held
		before := time.Now()
		cancel()
		<-done
		if took := time.Since(before); took > time.Second {
			t.Errorf("%s: %v", tool, took)
		}
		r.memory.ClearFaults()
	}
}

// A panic in a branch is that branch's error.
func TestPanicInABranch(t *testing.T) {
	r := newRig(t, rigOptions{})
	source := r.machine(map[string]any{"branchable": true})
	r.memory.Fault(fleettest.Fault{Method: "Branch", Times: 1, Hook: func(context.Context) { panic("kaboom") }})
	out := r.call("branch-machine", map[string]any{"name": source, "childNames": []string{"mcp-a", "mcp-b"}})
	failed := 0
	for _, c := range out["children"].([]any) {
		if c.(map[string]any)["error"] != nil {
			failed++
		}
	}
	if failed != 1 {
		t.Errorf("children: %v", out["children"])
	}
}

// The limit holds for wishes at once, for branches, and counts machines to be kept.
func TestMaxMachinesAtOnce(t *testing.T) {
	r := newRig(t, rigOptions{limits: func(l *tools.Limits) { l.MaxMachines = 3 }})
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() { r.try("create-machine", map[string]any{"image": "alpine:3.20", "name": fmt.Sprintf("m%d", i)}) })
	}
	group.Wait()
	if got := r.names(); len(got) != 3 {
		t.Errorf("made %v", got)
	}
	if recs, err := r.store.Records(t.Context()); err != nil || len(recs) > 0 {
		t.Errorf("records %v, %v", recs, err)
	}
	if text := r.refused("branch-machine", map[string]any{"name": r.names()[0]}); !strings.HasPrefix(text, "QUOTA") {
		t.Errorf("a branch: %q", text)
	}
}

// A refused deletion leaves the machine as it was, and one that failed is tried again.
func TestFailedDelete(t *testing.T) {
	r := newRig(t, rigOptions{})
	name := r.machine(nil)
	for _, code := range []fleet.Code{fleet.CodeConflict, fleet.CodeUnavailable} {
		r.memory.Fault(fleettest.Fault{Method: "Delete", Times: 1, Err: &fleet.Error{Code: code, Op: "delete machine", Why: "has branches"}})
		r.refused("delete-machine", map[string]any{"name": name})
		if m := r.call("get-machine", map[string]any{"name": name}); m["owner"] != "this-session" || m["expiresAt"] != nil {
			t.Errorf("after %s: %v", code, m)
		}
	}
	r.memory.Fault(fleettest.Fault{Method: "Delete", Times: 1, Err: &fleet.Error{Code: fleet.CodeInternal, Op: "delete machine", Why: "still alive", MaybeDone: true}})
	if text := r.refused("delete-machine", map[string]any{"name": name}); !strings.Contains(text, "goes on trying") {
		t.Errorf("told %q", text)
	}
	eventually(t, "it is gone", func() bool { return len(r.names()) == 0 })
}

func TestLongDirectories(t *testing.T) {
	r := newRig(t, rigOptions{})
	name := r.machine(nil)
	r.run(name, "mkdir /tmp/d; cd /tmp/d; i=0; while [ $i -lt 1500 ]; do : >file-with-a-rather-long-name-$i; i=$((i+1)); done")
	seen := map[string]bool{}
	for offset, eof := 0.0, false; !eof; {
		res := r.try("read-file", map[string]any{"name": name, "path": "/tmp/d", "offset": offset})
		if len(words(res)) > 50_000 {
			t.Errorf("a result of %d characters", len(words(res)))
		}
		page := decoded(t, res)
		for _, e := range page["entries"].([]any) {
			seen[e.(map[string]any)["name"].(string)] = true
		}
		offset, eof = offset+page["bytes"].(float64), page["eof"].(bool)
	}
	if len(seen) != 1500 {
		t.Errorf("%d entries", len(seen))
	}
	if past := r.call("read-file", map[string]any{"name": name, "path": "/etc/passwd", "offset": 1_000_000}); past["size"].(float64) > 10_000 {
		t.Errorf("past the end the size is %v", past["size"])
	}
}

// An empty allow-list is a list: nothing may be reached, whatever the default.
func TestEmptyAllowList(t *testing.T) {
	r := newRig(t, rigOptions{limits: func(l *tools.Limits) { l.NetworkOpen = true }})
	if got := r.call("create-machine", map[string]any{"image": "alpine:3.20", "allowHosts": []string{}})["machine"].(map[string]any)["network"]; got != "blocked" {
		t.Errorf("network %v", got)
	}
}

// Numbers and nulls as models send them.
func TestLenientArguments(t *testing.T) {
	r := newRig(t, rigOptions{})
	res, err := r.client.CallTool(t.Context(), &mcp.CallToolParams{Name: "create-machine", Arguments: map[string]any{"image": "alpine:3.20", "cpus": fixed("3.0"), "name": nil, "env": nil}})
	if err != nil || res.IsError {
		t.Fatalf("%v %s", err, words(res))
	}
	if m := decoded(t, res)["machine"].(map[string]any); m["cpus"] != 3.0 {
		t.Errorf("made %v", m)
	}
}

// fixed is a number written as it stands.
type fixed string

func (f fixed) MarshalJSON() ([]byte, error) { return []byte(f), nil }

// Uploads that did not get to their place do not stay beside it.
func TestFailedWriteLeavesNothing(t *testing.T) {
	r := newRig(t, rigOptions{})
	name := r.machine(nil)
	r.memory.Fault(fleettest.Fault{Method: "Exec", Times: 1, Err: &fleet.Error{Code: fleet.CodeInternal, Op: "exec", Why: "agent lost"}})
	r.refused("write-file", map[string]any{"name": name, "path": "/root/a", "content": "x"})
	eventually(t, "the upload is gone", func() bool { return r.run(name, "ls -A /root")["stdout"] == "" })
	r.refused("write-file", map[string]any{"name": name, "path": "/new/dir/", "content": "x"})
	if got := r.run(name, "ls -d /new 2>&1; true")["stdout"]; !strings.Contains(got.(string), "No such file") {
		t.Errorf("a refused write made %q", got)
	}
}

// A stopped machine that may be branched may be so again after its next start.
func TestBranchableOutlivesAStop(t *testing.T) {
	r := newRig(t, rigOptions{})
	name := r.machine(map[string]any{"branchable": true})
	r.call("stop-machine", map[string]any{"name": name})
	r.call("start-machine", map[string]any{"name": name})
	r.call("branch-machine", map[string]any{"name": name})
}

// W34: also when standard input had to be uploaded, and after a start without a wait.
func TestStartedMachineInRarerCases(t *testing.T) {
	r := newRig(t, rigOptions{})
	name := r.machine(nil)
	r.call("stop-machine", map[string]any{"name": name})
	_, r.client = r.connect(rigOptions{})
	big := map[string]any{"name": name, "command": "wc -c", "stdin": strings.Repeat("x", 100_000)}
	if ran := r.call("run-command", big); ran["startedMachine"] != true || ran["stdout"] != "100000\n" {
		t.Errorf("with large input: %v", ran)
	}
	r.call("stop-machine", map[string]any{"name": name})
	r.call("start-machine", map[string]any{"name": name, "wait": false})
	if ran := r.run(name, "true"); ran["startedMachine"] != false {
		t.Errorf("started before by start-machine: %v", ran)
	}
}

// What is not known of an owner is said to be so.
func TestUnknownOwner(t *testing.T) {
	r := newRig(t, rigOptions{})
	r.machine(map[string]any{"name": "kept"})
	if err := r.store.Close(); err != nil {
		t.Fatal(err)
	}
	if m := r.call("get-machine", map[string]any{"name": "kept"}); m["owner"] != "unknown" {
		t.Errorf("shown as %v", m)
	}
}

// W23: a call that waits says so again and again.
func TestProgressGoesOn(t *testing.T) {
	heard := make(chan string, 100)
	r := newRig(t, rigOptions{client: &mcp.ClientOptions{ProgressNotificationHandler: func(_ context.Context, p *mcp.ProgressNotificationClientRequest) { heard <- p.Params.Message }}})
	name := r.machine(nil)
	params := &mcp.CallToolParams{Name: "run-command", Arguments: map[string]any{"name": name, "command": "sleep 6"}}
	params.SetProgressToken("t")
	if _, err := r.client.CallTool(t.Context(), params); err != nil {
		t.Fatal(err)
	}
	for {
		select {
		case m := <-heard:
			if strings.Contains(m, "(5 s)") {
				return
			}
		case <-time.After(time.Second):
			t.Fatal("no message after five seconds")
		}
	}
}
