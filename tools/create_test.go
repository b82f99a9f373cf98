package tools_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"smol-mcp/fleet"
	"smol-mcp/fleet/fleettest"
	"smol-mcp/store"
	"smol-mcp/tools"
)

// The record comes first: whatever happens during the create call, it is written
// down that the machine may exist.
func TestRecordPrecedesCreate(t *testing.T) {
	r := newRig(t, rigOptions{})
	var seen store.Record
	r.memory.Fault(fleettest.Fault{Method: "Create", Hook: func(ctx context.Context) {
		recs, err := r.store.Records(ctx)
		if err != nil || len(recs) != 1 {
			t.Errorf("during create: %d records, %v", len(recs), err)
			return
		}
		seen = recs[0]
	}})
	name := r.machine(nil)
	if seen.Name != name || seen.Phase != store.Creating {
		t.Errorf("the record during create: %+v", seen)
	}
	rec, found, err := r.store.Find(t.Context(), store.Key{Target: "local", Name: name})
	if err != nil || !found || rec.Phase != store.Ready {
		t.Errorf("the record after create: %+v %v %v", rec, found, err)
	}
}

// W17: a start that fails leaves no machine, and the name can be used again.
func TestFailedStartIsTakenBack(t *testing.T) {
	r := newRig(t, rigOptions{})
	r.memory.Fault(fleettest.Fault{Method: "Start", Times: 1, Err: &fleet.Error{Code: fleet.CodeInternal, Op: "start machine mine", Why: "image pull denied"}})
	text := r.refused("create-machine", map[string]any{"image": "alpine:3.20", "name": "mine"})
	if !strings.Contains(text, "image pull denied") || !strings.Contains(text, "deleted again") {
		t.Errorf("refused with %q", text)
	}
	if left := r.names(); len(left) > 0 {
		t.Fatalf("left: %v", left)
	}
	r.call("create-machine", map[string]any{"image": "alpine:3.20", "name": "mine"})
}

func TestNotReadyIsTakenBack(t *testing.T) {
	r := newRig(t, rigOptions{limits: func(l *tools.Limits) { l.ReadyTimeout = 300 * time.Millisecond }})
	r.memory.Fault(fleettest.Fault{Method: "Exec", Err: &fleet.Error{Code: fleet.CodeInternal, Op: "exec", Why: "agent not connected"}})
	text := r.refused("create-machine", map[string]any{"image": "alpine:3.20"})
	if !strings.HasPrefix(text, "NOT_READY: ") || !strings.Contains(text, "agent not connected") {
		t.Errorf("refused with %q", text)
	}
	if left := r.names(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// A rollback that fails too says so and names the machine; the record stays.
func TestFailedRollbackIsRecorded(t *testing.T) {
	r := newRig(t, rigOptions{})
	r.memory.Fault(fleettest.Fault{Method: "Start", Err: &fleet.Error{Code: fleet.CodeInternal, Op: "start", Why: "no room"}})
	r.memory.Fault(fleettest.Fault{Method: "Delete", Err: &fleet.Error{Code: fleet.CodeInternal, Op: "delete", Why: "still alive after shutdown"}})
	text := r.refused("create-machine", map[string]any{"image": "alpine:3.20"})
	name := r.names()[0]
	if !strings.Contains(text, name) || !strings.Contains(text, "no room") || !strings.Contains(text, "still alive") {
		t.Errorf("refused with %q", text)
	}
	rec, found, err := r.store.Find(t.Context(), store.Key{Target: "local", Name: name})
	if err != nil || !found || rec.Phase != store.Deleting {
		t.Errorf("record %+v %v %v", rec, found, err)
	}
}

// A create whose reply is lost may have made the machine: it is deleted.
func TestLostCreateReply(t *testing.T) {
	r := newRig(t, rigOptions{})
	r.memory.Fault(fleettest.Fault{Method: "Create", Times: 1, LostReply: true})
	r.refused("create-machine", map[string]any{"image": "alpine:3.20"})
	eventually(t, "the machine is gone", func() bool { return len(r.names()) == 0 })
}

// A lost answer to a chosen name does not cost a machine that was there before.
func TestLostReplyKeepsForeignMachine(t *testing.T) {
	r := newRig(t, rigOptions{})
	if _, err := r.memory.Create(t.Context(), fleet.Spec{Name: "mine", Image: "theirs"}); err != nil {
		t.Fatal(err)
	}
	if text := r.refused("create-machine", map[string]any{"image": "alpine:3.20", "name": "mine"}); !strings.HasPrefix(text, "CONFLICT") {
		t.Errorf("a taken name: %q", text)
	}
	r.memory.Change("mine", func(m *fleet.Machine) { m.CreatedAt = time.Now().Add(-time.Hour) })
	r.memory.Fault(fleettest.Fault{Method: "Get", Machine: "mine", Times: 1, Err: &fleet.Error{Code: fleet.CodeNotFound, Op: "get"}})
	r.memory.Fault(fleettest.Fault{Method: "Create", Times: 1, Err: &fleet.Error{Code: fleet.CodeUnreachable, Op: "create machine mine", Why: "connection reset", MaybeDone: true}})
	r.refused("create-machine", map[string]any{"image": "alpine:3.20", "name": "mine"})
	if left := r.names(); !slices.Equal(left, []string{"mine"}) {
		t.Errorf("left: %v", left)
	}
}

// W20: a cancelled create is heard at once, and what it made goes.
func TestCancelledCreate(t *testing.T) {
	r := newRig(t, rigOptions{})
	r.memory.Fault(fleettest.Fault{Method: "Exec", Err: &fleet.Error{Code: fleet.CodeInternal, Op: "exec", Why: "booting"}})
	ctx, cancel := context.WithCancel(t.Context())
	began := make(chan struct{})
	r.memory.Fault(fleettest.Fault{Method: "Get", Times: 1, Hook: func(context.Context) { close(began) }})
	go func() { <-began; cancel() }()
	begin := time.Now()
	_, err := r.client.CallTool(ctx, &mcp.CallToolParams{Name: "create-machine", Arguments: map[string]any{"image": "alpine:3.20"}})
	if err == nil {
		t.Fatal("the call was not cancelled")
	}
	eventually(t, "the machine is gone", func() bool { return len(r.names()) == 0 })
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("took %v", took)
	}
	before := r.memory.Count("Exec")
	eventually(t, "the call is over", func() bool { return r.memory.Count("Delete") > 0 })
	if after := r.memory.Count("Exec"); after > before+1 {
		t.Errorf("the wait went on: %d probes, then %d", before, after)
	}
}

// W21: what waiting cannot mend ends the wait at once.
func TestPermanentErrorsEndTheWait(t *testing.T) {
	for _, code := range []fleet.Code{fleet.CodeCloudUnauthorized, fleet.CodeUnavailable, fleet.CodeNotFound, fleet.CodeInvalid} {
		t.Run(string(code), func(t *testing.T) {
			r := newRig(t, rigOptions{})
			r.memory.Fault(fleettest.Fault{Method: "Exec", Err: &fleet.Error{Code: code, Op: "exec", Why: "never"}})
			text := r.refused("create-machine", map[string]any{"image": "alpine:3.20"})
			if !strings.HasPrefix(text, string(code)) || r.memory.Count("Exec") != 1 {
				t.Errorf("after %d probes: %q", r.memory.Count("Exec"), text)
			}
		})
	}
}

// A machine that goes down while it is waited for does not use up the wait.
func TestExitBeforeReady(t *testing.T) {
	r := newRig(t, rigOptions{})
	r.memory.Fault(fleettest.Fault{Method: "Exec", Err: &fleet.Error{Code: fleet.CodeInternal, Op: "exec", Why: "connection refused"}, Hook: func(context.Context) {
		for _, m := range r.memory.Machines() {
			r.memory.Change(m.Name, func(m *fleet.Machine) { m.State = fleet.Stopped })
		}
	}})
	text := r.refused("create-machine", map[string]any{"image": "alpine:3.20"})
	if !strings.HasPrefix(text, "NOT_READY") || !strings.Contains(text, "stopped") {
		t.Errorf("refused with %q", text)
	}
}

// W23: a client that gave a token hears what a slow create waits for.
func TestProgress(t *testing.T) {
	heard := make(chan string, 100)
	r := newRig(t, rigOptions{client: &mcp.ClientOptions{ProgressNotificationHandler: func(_ context.Context, p *mcp.ProgressNotificationClientRequest) { heard <- p.Params.Message }}})
	params := &mcp.CallToolParams{Name: "create-machine", Arguments: map[string]any{"image": "alpine:3.20"}}
	params.SetProgressToken("t1")
	if _, err := r.client.CallTool(t.Context(), params); err != nil {
		t.Fatal(err)
	}
	var all []string
	for range 3 {
		select {
		case m := <-heard:
			all = append(all, m)
		case <-time.After(5 * time.Second):
			t.Fatalf("heard only %q", all)
		}
	}
	for i, word := range []string{"creating", "starting", "waiting"} {
		if !strings.HasPrefix(all[i], word) {
			t.Errorf("stage %d: %q", i, all[i])
		}
	}
}

// W35: an image with neither sh nor echo is ready when its workload runs.
func TestImageWithoutShell(t *testing.T) {
	for _, image := range []bool{false, true} {
		r := newRig(t, rigOptions{guest: fleettest.GuestOptions{NoShell: true, Image: image}})
		name := r.machine(nil)
		ran := r.call("run-command", map[string]any{"name": name, "command": []string{"echo", "hi"}})
		if ran["stdout"] != "hi\n" || ran["exitCode"] != 0.0 {
			t.Errorf("image %v: %v", image, ran)
		}
		if text := r.refused("run-command", map[string]any{"name": name, "command": "echo hi"}); !strings.HasPrefix(text, "UNSUPPORTED") {
			t.Errorf("a shell line: %q", text)
		}
		r.call("write-file", map[string]any{"name": name, "path": "/data/a", "content": "abcdef"})
		read := r.call("read-file", map[string]any{"name": name, "path": "/data/a", "offset": 2, "length": 3})
		if read["content"] != "cde" || read["size"] != 6.0 || read["eof"] != false {
			t.Errorf("read: %v", read)
		}
		if text := r.refused("write-file", map[string]any{"name": name, "path": "/data/a", "content": "x", "append": true}); !strings.HasPrefix(text, "UNSUPPORTED") {
			t.Errorf("append: %q", text)
		}
	}
}

// An engine with words of its own for a missing shell is asked for true.
func TestShellMissingInOtherWords(t *testing.T) {
	r := newRig(t, rigOptions{memory: fleettest.MemoryOptions{Exec: func(_ context.Context, _ string, cmd fleet.Command) (fleet.Result, error) {
		if cmd.Argv[0] == "sh" {
			return fleet.Result{ExitCode: 1, Stderr: []byte("crun: sh gibt es nicht")}, nil
		}
		return fleet.Result{Stdout: []byte(strings.Join(cmd.Argv[1:], " "))}, nil
	}}})
	name := r.machine(nil)
	if ran := r.call("run-command", map[string]any{"name": name, "command": []string{"echo", "hi"}}); ran["stdout"] != "hi" {
		t.Errorf("ran: %v", ran)
	}
}

// W38: host paths are refused outside the allowed roots, also through links.
func TestMountsStayBelowTheRoots(t *testing.T) {
	root, outside := t.TempDir(), t.TempDir()
	for _, dir := range []string{filepath.Join(root, "in"), filepath.Join(outside, "secret")} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(outside, filepath.Join(root, "link")); err != nil {
		t.Fatal(err)
	}
	mount := func(source string) map[string]any {
		return map[string]any{"image": "alpine:3.20", "mounts": []map[string]any{{"source": source, "target": "/mnt"}}}
	}
	closed := newRig(t, rigOptions{})
	if text := closed.refused("create-machine", mount(filepath.Join(root, "in"))); !strings.Contains(text, "SMOL_MCP_MOUNT_ROOTS") {
		t.Errorf("without roots: %q", text)
	}
	r := newRig(t, rigOptions{limits: func(l *tools.Limits) { l.MountRoots = []string{root} }})
	for _, source := range []string{"/", outside, filepath.Join(root, "link", "secret"), root + "/../" + filepath.Base(outside), "in", filepath.Join(root, "none")} {
		r.refused("create-machine", mount(source))
	}
	for _, image := range []string{"/etc/shadow", "./x.tar", "oci-archive:/etc/x", filepath.Join(root, "link", "a.tar")} {
		if text := r.refused("create-machine", map[string]any{"image": image}); !strings.HasPrefix(text, "INVALID") {
			t.Errorf("image %s: %q", image, text)
		}
	}
	if n := r.memory.Count("Create") + closed.memory.Count("Create"); n > 0 {
		t.Errorf("%d creates were sent", n)
	}
	r.call("create-machine", mount(filepath.Join(root, "in")))
}

// W47: using a machine does not make it this session's, whatever it is called.
func TestForeignMachinesAreKept(t *testing.T) {
	r := newRig(t, rigOptions{})
	if _, err := r.memory.Create(t.Context(), fleet.Spec{Name: "mcp-theirs", Image: "alpine"}); err != nil {
		t.Fatal(err)
	}
	r.call("start-machine", map[string]any{"name": "mcp-theirs"})
	r.run("mcp-theirs", "true")
	stopped := r.call("stop-machine", map[string]any{"name": "mcp-theirs"})
	if stopped["owner"] != "none" || stopped["ephemeral"] != false {
		t.Errorf("shown as %v", stopped)
	}
	mine := r.call("create-machine", map[string]any{"image": "alpine:3.20", "name": "mcp-mine"})
	if mine["ephemeral"] != true {
		t.Errorf("a chosen ephemeral name is not said to be ephemeral: %v", mine)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
	defer cancel()
	if err := r.session.Close(ctx); err != nil {
		t.Error(err)
	}
	if left := r.names(); !slices.Equal(left, []string{"mcp-theirs"}) {
		t.Errorf("left: %v", left)
	}
}

func TestMaxMachines(t *testing.T) {
	r := newRig(t, rigOptions{limits: func(l *tools.Limits) { l.MaxMachines = 2 }})
	first := r.machine(nil)
	r.machine(nil)
	text := r.refused("create-machine", map[string]any{"image": "alpine:3.20"})
	if !strings.HasPrefix(text, "QUOTA") || !strings.Contains(text, first) {
		t.Errorf("refused with %q", text)
	}
	r.call("delete-machine", map[string]any{"name": first})
	r.machine(nil)
}

// What an engine cannot do is refused before anything is sent or recorded.
func TestUnsupportedIsRefusedFirst(t *testing.T) {
	r := newRig(t, rigOptions{memory: fleettest.MemoryOptions{Info: &fleet.Info{Engine: "smolvm", Version: "1.14.5"}}})
	for what, arguments := range map[string]map[string]any{
		"allowHosts":     {"image": "alpine:3.20"},
		"overlayGb":      {"image": "alpine:3.20", "network": "open", "overlayGb": 3},
		"branchable":     {"image": "alpine:3.20", "network": "open", "branchable": true},
		"cmd out":        {"image": "alpine:3.20", "network": "open", "cmd": []string{"x"}},
		"no branches":    nil,
		`network "open"`: {"image": "alpine:3.20", "network": "blocked"},
	} {
		text := ""
		if arguments == nil {
			text = r.refused("branch-machine", map[string]any{"name": "x"})
		} else {
			text = r.refused("create-machine", arguments)
		}
		if !strings.HasPrefix(text, "UNSUPPORTED") || !strings.Contains(text, what) || !strings.Contains(text, "1.14.5") {
			t.Errorf("%s: %q", what, text)
		}
	}
	if recs, err := r.store.Records(t.Context()); r.memory.Count("Create") > 0 || len(recs) > 0 || err != nil {
		t.Errorf("%d creates, %d records, %v", r.memory.Count("Create"), len(recs), err)
	}
}

func TestEgress(t *testing.T) {
	r := newRig(t, rigOptions{})
	for want, arguments := range map[string]map[string]any{
		"blocked":          {},
		"open":             {"network": "open"},
		"allow(a.example)": {"network": "open", "allowHosts": []string{"a.example"}},
	} {
		arguments["image"] = "alpine:3.20"
		if got := r.call("create-machine", arguments)["machine"].(map[string]any)["network"]; got != want {
			t.Errorf("%v gives %v", arguments, got)
		}
	}
	open := newRig(t, rigOptions{limits: func(l *tools.Limits) { l.NetworkOpen = true }})
	if got := open.call("create-machine", map[string]any{"image": "alpine:3.20"})["machine"].(map[string]any)["network"]; got != "open" {
		t.Errorf("the setting gives %v", got)
	}
}

// A panic is the error of its own call, and the session goes on.
func TestPanicIsOneCallsError(t *testing.T) {
	r := newRig(t, rigOptions{})
	r.memory.Fault(fleettest.Fault{Method: "List", Times: 1, Hook: func(context.Context) { panic("kaboom") }})
	_, err := r.client.CallTool(t.Context(), &mcp.CallToolParams{Name: "list-machines"})
	if err == nil || strings.Contains(err.Error(), "kaboom") {
		t.Errorf("the panicking call: %v", err)
	}
	r.call("list-machines", nil)
}
