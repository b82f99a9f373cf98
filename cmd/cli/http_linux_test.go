package cli

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// The worked example over HTTP, in both eras, by clients that ask for progress.
func TestHTTPWorkedExample(t *testing.T) {
	p := newHTTPPlace(t)
	s := p.start()
	for _, era := range []string{handshakeEra, modernEra} {
		t.Run(era, func(t *testing.T) {
			cs := s.connect(era, theToken)
			name := newMachine(t, cs)
			must(t, cs, "write-file", map[string]any{"name": name, "path": "/root/hello.sh", "content": "echo hello $1; exit 3"})
			if out := must(t, cs, "run-command", map[string]any{"name": name, "command": "sh /root/hello.sh there"}); out["exitCode"] != 3.0 || out["stdout"] != "hello there\n" {
				t.Errorf("ran: %v", out)
			}
			must(t, cs, "delete-machine", map[string]any{"name": name})
			if left := p.machines(); len(left) != 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
	// The end of a session is the end of its machines; the end of the server that of all.
	cs := s.connect(handshakeEra, theToken)
	newMachine(t, cs)
	if err := cs.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the machine of the ended session is gone", 10*time.Second, func() bool { return len(p.machines()) == 0 })
	newMachine(t, s.connect(handshakeEra, theToken))
	newMachine(t, s.connect(modernEra, theToken))
	s.end(syscall.SIGTERM)
	if left := p.machines(); len(left) != 0 {
		t.Errorf("left after the end: %v", left)
	}
	for _, word := range []string{`"principal":"default"`, `"tool":"run-command","target":"local"`, `"outcome":"ok"`, `"ms":`, `"why":"the server ends"`} {
		if !strings.Contains(s.log.String(), word) {
			t.Errorf("the log has no %s", word)
		}
	}
	for _, word := range []string{theToken, "hello"} {
		if strings.Contains(s.log.String(), word) {
			t.Errorf("the log tells %q", word)
		}
	}
}

// A client that opens a session for each call, and closes none, finishes its task, although
// each of these sessions ends long before: what several sessions of a principal use lives as long
// as the principal works. Nor does the death of the server stop it.
func TestHTTPSessionPerCall(t *testing.T) {
	p := newHTTPPlace(t, "SMOL_MCP_HTTP_SESSION_IDLE_SECS=1")
	s := p.start()
	call := func(tool string, arguments map[string]any) string {
		t.Helper()
		r := s.raw(theToken)
		if err := r.open(); err != nil {
			t.Fatal(err)
		}
		out, err := r.call(t.Context(), tool, arguments)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	call("create-machine", map[string]any{"image": "alpine:3.20", "network": "open", "name": "mcp-task"})
	begin := time.Now()
	for i := range 20 {
		if i == 10 {
			s.end(syscall.SIGKILL)
			s = p.start()
		}
		out := call("run-command", map[string]any{"name": "mcp-task", "command": fmt.Sprintf("echo %d >> /root/steps; wc -l < /root/steps", i)})
		if want := fmt.Sprintf(`\"stdout\":\"%d\\n\"`, i+1); !strings.Contains(out, want) {
			t.Fatalf("step %d: %s", i, out)
		}
		time.Sleep(200 * time.Millisecond) // the model thinks
	}
	if took := time.Since(begin); took < 3*time.Second {
		t.Errorf("the task took only %v, which shows nothing", took)
	}
	eventually(t, "the machine goes when nobody works any more", 10*time.Second, func() bool { return len(p.machines()) == 0 })
}

// 200 sessions with machines end at once, and the server is killed in the middle of
// that: the next one leaves nothing.
func TestHTTPKilledInTheMiddle(t *testing.T) {
	if testing.Short() {
		t.Skip("200 machines")
	}
	const n = 200
	p := newHTTPPlace(t, "SMOL_MCP_CRASH_GRACE_SECS=0")
	s := p.start()
	sessions := make([]*rawSession, n)
	var work sync.WaitGroup
	places := make(chan struct{}, 16)
	for i := range sessions {
		places <- struct{}{}
		work.Go(func() {
			defer func() { <-places }()
			sessions[i] = s.raw(theToken)
			if err := sessions[i].open(); err != nil {
				t.Error(err)
			}
			if _, err := sessions[i].call(t.Context(), "create-machine", map[string]any{"image": "alpine:3.20", "network": "open"}); err != nil {
				t.Error(err)
			}
		})
	}
	work.Wait()
	if got := len(p.machines()); got != n {
		t.Fatalf("%d machines, want %d", got, n)
	}
	ctx, stop := context.WithCancel(t.Context())
	for _, r := range sessions {
		work.Go(func() { _, _, _ = r.do(ctx, "DELETE", "") }) // the server dies under it
	}
	eventually(t, "some are gone", 20*time.Second, func() bool { return len(p.machines()) < n*9/10 })
	s.end(syscall.SIGKILL)
	stop()
	work.Wait()
	if left := len(p.machines()); left == 0 {
		t.Error("nothing was left to do: the kill came too late")
	} else {
		t.Logf("killed with %d machines left", left)
	}
	s = p.start()
	eventually(t, "nothing is left", 60*time.Second, func() bool { return len(p.machines()) == 0 })
	eventually(t, "nothing is recorded but names, which stay taken for a minute after an interrupted deletion", 60*time.Second, func() bool {
		out, err := p.run("status")
		for line := range strings.Lines(out) {
			if strings.HasPrefix(line, "mcp-") && !strings.Contains(line, " gone ") {
				return false
			}
		}
		return err == nil
	})
	s.end(syscall.SIGTERM)
}

// A DELETE is answered when the end is on record: the machines go although the server is killed
// right after it, and although a crashed session's would be kept for a while.
func TestHTTPDeleteIsOnRecord(t *testing.T) {
	p := newHTTPPlace(t)
	s := p.start()
	r := s.raw(theToken)
	if err := r.open(); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := r.call(t.Context(), "create-machine", map[string]any{"image": "alpine:3.20", "network": "open"}); err != nil {
			t.Fatal(err)
		}
	}
	_, _, err := r.do(t.Context(), "DELETE", "")
	s.end(syscall.SIGKILL)
	if err != nil {
		t.Fatal(err)
	}
	p.start()
	eventually(t, "the machines are gone", 30*time.Second, func() bool { return len(p.machines()) == 0 })
}

// Named tokens: each has machines of its own, what limits it holds, and one that is
// removed is of no use.
func TestHTTPNamedTokens(t *testing.T) {
	p := newHTTPPlace(t)
	token := func(args ...string) string {
		t.Helper()
		out, err := p.run(append([]string{"token"}, args...)...)
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		first, _, _ := strings.Cut(out, "\n")
		return first
	}
	alice, bob, reader := token("new", "alice", "--machines", "1"), token("new", "bob"), token("new", "reader", "--read-only")
	s := p.start()
	a, b, r := s.connect(handshakeEra, alice), s.connect(modernEra, bob), s.connect(handshakeEra, reader)
	name := newMachine(t, a)
	must(t, b, "create-machine", map[string]any{"image": "alpine:3.20", "network": "open", "name": "kept"})
	for who, c := range map[string]struct {
		cs       *mcp.ClientSession
		tool     string
		argument map[string]any
		want     string
	}{
		"alice's second":      {a, "create-machine", map[string]any{"image": "alpine:3.20", "network": "open"}, "QUOTA"},
		"bob in alice's":      {b, "run-command", map[string]any{"name": name, "command": "true"}, "NOT_FOUND"},
		"reader looks":        {r, "get-machine", map[string]any{"name": "kept"}, "NOT_FOUND"},
		"reader runs":         {r, "run-command", map[string]any{"name": "kept", "command": "true"}, "UNSUPPORTED"},
		"the settings' token": {s.connect(modernEra, theToken), "stop-machine", map[string]any{"name": name}, "NOT_FOUND"},
	} {
		res, err := c.cs.CallTool(t.Context(), &mcp.CallToolParams{Name: c.tool, Arguments: c.argument})
		if err != nil || !res.IsError || !strings.HasPrefix(res.Content[0].(*mcp.TextContent).Text, c.want) {
			t.Errorf("%s: %v %+v", who, err, res)
		}
	}
	if list, err := r.ListTools(t.Context(), nil); err != nil || slices.ContainsFunc(list.Tools, func(t *mcp.Tool) bool { return !t.Annotations.ReadOnlyHint }) {
		t.Errorf("the reader's tools: %v %+v", err, list)
	}
	// A limit that is written into the file holds in the sessions that are open, and takes nothing away.
	tokens := filepath.Join(p.setting("XDG_CONFIG_HOME"), "smol-mcp", "tokens")
	text, err := os.ReadFile(tokens)
	if err != nil {
		t.Fatal(err)
	}
	limited := strings.Replace(string(text), "machines=1", "machines=1 read-only", 1)
	if err := os.WriteFile(tokens, []byte(limited), 0o600); err != nil {
		t.Fatal(err)
	}
	eventually(t, "alice may only look", 10*time.Second, func() bool {
		res, err := a.CallTool(t.Context(), &mcp.CallToolParams{Name: "run-command", Arguments: map[string]any{"name": name, "command": "true"}})
		return err == nil && res.IsError && strings.HasPrefix(res.Content[0].(*mcp.TextContent).Text, "UNSUPPORTED")
	})
	must(t, a, "get-machine", map[string]any{"name": name})
	token("remove", "alice")
	eventually(t, "alice's machine is gone", 30*time.Second, func() bool { return slices.Equal(p.machines(), []string{"kept"}) })
	if err := s.raw(alice).open(); err == nil || !strings.Contains(err.Error(), "401") {
		t.Errorf("alice: %v", err)
	}
	must(t, b, "delete-machine", map[string]any{"name": "kept"})
}

// A call that takes longer than a session may be idle is carried to its end, and what is
// idle meanwhile ends (W24).
func TestHTTPLongCall(t *testing.T) {
	p := newHTTPPlace(t, "SMOL_MCP_HTTP_SESSION_IDLE_SECS=1")
	s := p.start()
	idle, busy := s.raw(theToken), s.raw(theToken)
	for _, r := range []*rawSession{idle, busy} {
		if err := r.open(); err != nil {
			t.Fatal(err)
		}
		if _, err := r.call(t.Context(), "create-machine", map[string]any{"image": "alpine:3.20", "network": "open", "name": map[*rawSession]string{idle: "mcp-idle", busy: "mcp-busy"}[r]}); err != nil {
			t.Fatal(err)
		}
	}
	out, err := busy.call(t.Context(), "run-command", map[string]any{"name": "mcp-busy", "command": "sleep 4; echo done"})
	if err != nil || !strings.Contains(out, "done") {
		t.Errorf("the long call: %v %s", err, out)
	}
	if got := p.machines(); !slices.Equal(got, []string{"mcp-busy"}) {
		t.Errorf("afterwards there are %v", got)
	}
	// A command goes on after its call has answered, and keeps the session as well.
	if out, err = busy.call(t.Context(), "run-command", map[string]any{"name": "mcp-busy", "command": "sleep 3; echo late > /root/late", "waitSecs": 0, "timeoutSecs": 600}); err != nil || !strings.Contains(out, `\"running\":true`) {
		t.Fatalf("%v %s", err, out)
	}
	time.Sleep(2 * time.Second) // longer than the session may be idle
	if out, err = busy.call(t.Context(), "get-machine", map[string]any{"name": "mcp-busy"}); err != nil {
		t.Errorf("while the command goes on: %v", err)
	}
	eventually(t, "all is gone in the end", 20*time.Second, func() bool { return len(p.machines()) == 0 })
}
