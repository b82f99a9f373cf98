package tools_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"smol-mcp/fleet/fleettest"
	"smol-mcp/store"
)

// More commands than there are places: what was begun is told as running, what was
// not is told as such, and looking is never held up.
func TestMoreCommandsThanPlaces(t *testing.T) {
	r := newRig(t, rigOptions{smolvm: true})
	name := r.machine(map[string]any{"network": "open"})
	var group sync.WaitGroup
	var mu sync.Mutex
	running, refused := 0, 0
	begin := time.Now()
	for range 10 {
		group.Go(func() {
			res := r.try("run-command", map[string]any{"name": name, "command": "echo begun; sleep 20", "waitSecs": 1})
			mu.Lock()
			defer mu.Unlock()
			switch {
			case !res.IsError && decoded(t, res)["running"] == true && decoded(t, res)["stdout"] == "begun\n":
				running++
			case strings.HasPrefix(words(res), "NOT_READY") && strings.Contains(words(res), "not begun"):
				refused++
			default:
				t.Errorf("neither running nor refused: %s", words(res))
			}
		})
	}
	group.Wait()
	if took := time.Since(begin); running < 1 || running > 4 || running+refused != 10 || took > 10*time.Second {
		t.Errorf("%d running, %d refused after %v", running, refused, took)
	}
	begin = time.Now()
	if read := r.call("read-file", map[string]any{"name": name, "path": "/etc/passwd"}); read["bytes"] == 0.0 || time.Since(begin) > 5*time.Second {
		t.Errorf("a read beside them took %v", time.Since(begin))
	}
}

// A command that is cancelled before it begins never does.
func TestCancelBeforeTheBeginning(t *testing.T) {
	r := newRig(t, rigOptions{})
	name := r.machine(nil)
	held, release := make(chan struct{}, 10), make(chan struct{})
	r.memory.Fault(fleettest.Fault{Method: "Exec", Times: 1, Hook: func(context.Context) { held <- struct{}{}; <-release }})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = r.client.CallTool(ctx, &mcp.CallToolParams{Name: "run-command", Arguments: map[string]any{"name": name, "command": "touch /root/ran"}})
	}()
	<-held
	stops := r.memory.Count("Exec")
	cancel()
	<-done
	eventually(t, "the stop was sent", func() bool { return r.memory.Count("Exec") > stops })
	eventually(t, "the stop is there", func() bool { return strings.Contains(r.run(name, "ls -a /tmp")["stdout"].(string), ".stop") })
	close(release)
	eventually(t, "it was let through", func() bool { return strings.Contains(r.run(name, "ls -a /tmp")["stdout"].(string), ".pid") })
	if got := r.run(name, "sleep 0.5; ls /root")["stdout"]; got != "" {
		t.Errorf("it ran: %q", got)
	}
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
	<-done
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
