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
	"smol-mcp/store"
	"smol-mcp/tools"
)

// Commands that run do not keep the places of a machine: as many as one likes run at
// once, those that come last begin soon, and looking is never held up.
func TestMoreCommandsThanPlaces(t *testing.T) {
	r := newRig(t, rigOptions{smolvm: true})
	name := r.machine(map[string]any{"network": "open"})
	var group sync.WaitGroup
	begin := time.Now()
	for i := range 20 {
		group.Go(func() {
			res := r.try("run-command", map[string]any{"name": name, "command": fmt.Sprintf("while [ ! -e /root/go ]; do sleep 0.1; done; echo %d", i), "waitSecs": 60})
			if res.IsError || decoded(t, res)["stdout"] != fmt.Sprintf("%d\n", i) || decoded(t, res)["exitCode"] != 0.0 {
				t.Errorf("%d: %s", i, words(res))
			}
		})
	}
	eventually(t, "all run", func() bool {
		list, _ := r.call("get-machine", map[string]any{"name": name})["commands"].([]any)
		return len(list) == 20
	})
	look := time.Now()
	if read := r.call("read-file", map[string]any{"name": name, "path": "/etc/passwd"}); read["bytes"] == 0.0 || time.Since(look) > 3*time.Second {
		t.Errorf("a read beside them took %v", time.Since(look))
	}
	if ran := r.run(name, "touch /root/go; echo one more"); ran["stdout"] != "one more\n" {
		t.Errorf("one more: %v", ran)
	}
	group.Wait()
	t.Logf("after %v", time.Since(begin))
}

// hold runs a command whose request is held on its way to the guest. cancel ends its call, and
// release lets the request through.
func (r *rig) hold(name, line string) (cancel, release func()) {
	held, through := make(chan struct{}, 10), make(chan struct{})
	r.memory.Fault(fleettest.Fault{Method: "Exec", Times: 1, Hook: func(context.Context) { held <- struct{}{}; <-through }})
	ctx, stop := context.WithCancel(r.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = r.client.CallTool(ctx, &mcp.CallToolParams{Name: "run-command", Arguments: map[string]any{"name": name, "command": line}})
	}()
	<-held
	return func() { stop(); <-done }, func() { close(through) }
}

// A command that is cancelled before it begins never does.
func TestCancelBeforeTheBeginning(t *testing.T) {
	r := newRig(t, rigOptions{})
	name := r.machine(nil)
	cancel, release := r.hold(name, "touch /root/ran")
	stops := r.memory.Count("Exec")
	cancel()
	eventually(t, "the stop was sent", func() bool { return r.memory.Count("Exec") > stops })
	eventually(t, "the stop is there", func() bool { return strings.Contains(r.run(name, "ls -a /tmp/.smol-mcp")["stdout"].(string), ".stop") })
	before := r.memory.Count("Exec")
	release()
	eventually(t, "it was let through", func() bool { return r.memory.Count("Exec") >= before })
	if got := r.run(name, "sleep 0.5; ls /root")["stdout"]; got != "" {
		t.Errorf("it ran: %q", got)
	}
}

// A command whose call is cancelled while the machine starts for it does not run on.
func TestCancelDuringTheStart(t *testing.T) {
	r := newRig(t, rigOptions{})
	name := r.machine(nil)
	r.call("stop-machine", map[string]any{"name": name})
	cancel, release := r.hold(name, "while :; do echo >>/root/beat; sleep 0.1; done")
	asked := r.memory.Count("Get")
	cancel()
	eventually(t, "a stop was tried", func() bool { return r.memory.Count("Get") > asked })
	if m := r.call("get-machine", map[string]any{"name": name}); m["state"] != "stopped" {
		t.Errorf("the stop started it: %v", m["state"])
	}
	release()
	eventually(t, "it does not run", func() bool {
		ran := r.run(name, "a=$(cat /root/beat 2>/dev/null | wc -c); sleep 0.5; b=$(cat /root/beat 2>/dev/null | wc -c); [ $a = $b ] && echo still")
		return ran["startedMachine"] == false && ran["stdout"] == "still\n"
	})
}

// Output whose files the command removed is not told as empty.
func TestRemovedOutput(t *testing.T) {
	r := newRig(t, rigOptions{})
	name := r.machine(nil)
	if ran := r.run(name, "echo x; rm -rf /tmp/.smol* /tmp/*; true"); ran["note"] == nil || !strings.Contains(ran["note"].(string), "removed") {
		t.Errorf("ran: %v", ran)
	}
}

// What reaches the engine is checked first.
func TestCheckedArguments(t *testing.T) {
	r := newRig(t, rigOptions{})
	for _, arguments := range []map[string]any{
		{"image": "  "}, {"image": "--help"}, {"image": "alpine\n"}, {"image": ""},
		{"image": "a", "allowHosts": []string{"http://x"}}, {"image": "a", "allowHosts": []string{"a b"}}, {"image": "a", "allowHosts": []string{""}},
		{"image": "a", "allowHosts": []string{"10.0.0.1"}}, {"image": "a", "allowCidrs": []string{"10.0.0.0/99"}}, {"image": "a", "allowCidrs": []string{"example.com"}},
	} {
		for _, tool := range []string{"create-machine", "run-once"} {
			if tool == "run-once" {
				arguments["command"] = "true"
			}
			if text := r.refused(tool, arguments); !strings.HasPrefix(text, "INVALID") || strings.Contains(text, "anonymous") {
				t.Errorf("%s %v: %q", tool, arguments, text)
			}
			delete(arguments, "command")
		}
	}
	name := r.machine(nil)
	if text := r.refused("run-command", map[string]any{"name": name, "command": strings.Fields(strings.Repeat("word-of-thirty-characters-or-so ", 20_000))}); !strings.HasPrefix(text, "INVALID") {
		t.Errorf("many words: %.200q", text)
	}
}

// A cancelled branch call leaves none of what it had finished.
func TestCancelledBranches(t *testing.T) {
	r := newRig(t, rigOptions{})
	source := r.machine(map[string]any{"branchable": true})
	held := make(chan struct{}, 10)
	r.memory.Fault(fleettest.Fault{Method: "Branch", Machine: source, Nth: 3, Hook: func(ctx context.Context) { held <- struct{}{}; <-ctx.Done() }})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = r.client.CallTool(ctx, &mcp.CallToolParams{Name: "branch-machine", Arguments: map[string]any{"name": source, "childNames": []string{"k1", "k2", "k3"}}})
	}()
	<-held
	eventually(t, "two are finished", func() bool { return len(r.names()) >= 3 })
	cancel()
	eventually(t, "only the source stays", func() bool { return len(r.names()) == 1 })
}

// W14: what one engine was asked for is not looked for on another, which would not
// know it and so seem to have lost it.
func TestEnginesAreToldApart(t *testing.T) {
	r := newRig(t, rigOptions{account: "a", dir: t.TempDir()})
	name := r.machine(nil)
	other := newRig(t, rigOptions{account: "b", dir: r.dir})
	if _, found, err := other.store.Find(t.Context(), store.Key{Target: "local", Account: "a", Name: name}); err != nil || !found {
		t.Fatalf("not the same records: %v %v", found, err)
	}
	if out := other.call("list-machines", nil); len(out["machines"].([]any))+len(out["problems"].([]any)) > 0 {
		t.Errorf("the other engine's sessions see %v", out)
	}
	if err := r.session.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if left := r.names(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// The variables of our scripts are not the command's, nor the other way round.
func TestVariablesDoNotMix(t *testing.T) {
	r := newRig(t, rigOptions{})
	name := r.machine(nil)
	env := map[string]any{"name": "bob", "z": "1", "id": "I", "stdin": "S", "limit": "L", "dir": "D", "f": "F", "up": "U", "end": "E", "smol": "X"}
	ran := r.call("run-command", map[string]any{"name": name, "command": "echo $name $z $id $stdin $limit $dir $f $up $end $smol; env | grep -c '^smol_'", "env": env})
	if ran["stdout"] != "bob 1 I S L D F U E X\n0\n" || ran["exitCode"] != 1.0 {
		t.Errorf("ran: %v", ran)
	}
	if ran := r.call("run-command", map[string]any{"name": name, "command": "echo runs", "env": map[string]any{"PATH": "/opt/bin"}}); ran["stdout"] != "runs\n" {
		t.Errorf("with a PATH of its own: %v", ran)
	}
	if text := r.refused("run-command", map[string]any{"name": name, "command": "true", "env": map[string]any{"UID": "1"}}); !strings.Contains(text, "UID") {
		t.Errorf("UID: %q", text)
	}
	if ran := r.run(name, "mv /tmp /tmpx; mkdir /tmp; echo moved"); ran["stderr"] != "" {
		t.Errorf("our own trouble is told as the command's: %v", ran)
	}
}

// Looking at a command does not start a machine that was stopped under it.
func TestStoppedUnderACommand(t *testing.T) {
	r := newRig(t, rigOptions{})
	name := r.machine(map[string]any{"name": "kept"})
	done := make(chan map[string]any, 1)
	client := r.client
	go func() {
		res, err := client.CallTool(t.Context(), &mcp.CallToolParams{Name: "run-command", Arguments: map[string]any{"name": name, "command": "touch /root/on; sleep 60"}})
		if err != nil || res.IsError {
			t.Errorf("the command: %v %v", err, words(res))
			done <- nil
			return
		}
		done <- decoded(t, res)
	}()
	eventually(t, "it runs", func() bool { return r.run(name, "ls /root")["stdout"] == "on\n" })
	r.call("stop-machine", map[string]any{"name": name})
	ran := <-done
	if ran["exitCode"] != nil || ran["running"] != false || ran["note"] == nil {
		t.Errorf("told %v", ran)
	}
	if m := r.call("get-machine", map[string]any{"name": name}); m["state"] != "stopped" {
		t.Errorf("the machine is %v", m["state"])
	}
}

// A quota counts machines, not wishes that were taken back.
func TestQuotaForgetsWhatIsGone(t *testing.T) {
	r := newRig(t, rigOptions{limits: func(l *tools.Limits) { l.MaxMachines = 1 }})
	r.memory.Fault(fleettest.Fault{Method: "Create", Times: 2, Err: &fleet.Error{Code: fleet.CodeUnreachable, Op: "create", Why: "connection reset", MaybeDone: true}})
	for range 2 {
		r.refused("create-machine", map[string]any{"image": "alpine:3.20"})
	}
	r.machine(nil)
}

// run-once does not wait for an engine that has lost its machine.
func TestRunOnceOfALostMachine(t *testing.T) {
	r := newRig(t, rigOptions{})
	r.memory.Fault(fleettest.Fault{Method: "Exec", Nth: 2, Err: &fleet.Error{Code: fleet.CodeUnreachable, Op: "exec", Why: "connection reset", MaybeDone: true}, Hook: func(ctx context.Context) {
		for _, m := range r.memory.Machines() {
			_, _ = r.memory.Delete(ctx, m.Name)
		}
	}})
	begin := time.Now()
	if text := r.refused("run-once", map[string]any{"image": "alpine:3.20", "command": "true", "timeoutSecs": 600}); !strings.HasPrefix(text, "NOT_FOUND") {
		t.Errorf("refused with %q", text)
	}
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("after %v", took)
	}
}
