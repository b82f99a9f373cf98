package cli

import (
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// newToken makes a named token.
func (p *httpPlace) newToken(name string) string {
	p.t.Helper()
	out, err := p.run("token", "new", name)
	if err != nil {
		p.t.Fatalf("%v\n%s", err, out)
	}
	first, _, _ := strings.Cut(out, "\n")
	return first
}

// listed are the names of the machines that a client sees.
func listed(t testing.TB, cs *mcp.ClientSession) []string {
	t.Helper()
	var names []string
	for _, m := range must(t, cs, "list-machines", nil)["machines"].([]any) {
		names = append(names, m.(map[string]any)["name"].(string))
	}
	return names
}

// refusal calls a tool, which must fail, and returns what it says.
func refusal(t testing.TB, cs *mcp.ClientSession, tool string, arguments map[string]any) string {
	t.Helper()
	res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: arguments})
	if err != nil || !res.IsError {
		t.Fatalf("%s: %v %+v", tool, err, res)
	}
	return res.Content[0].(*mcp.TextContent).Text
}

// A machine that a token made to be kept is its own: after the end of the server, however it
// ends, and for a new token of the name.
func TestHTTPKept(t *testing.T) {
	p := newHTTPPlace(t)
	alice, bob := p.newToken("alice"), p.newToken("bob")
	s := p.start()
	a, b := s.connect(handshakeEra, alice), s.connect(handshakeEra, bob)
	for cs, name := range map[*mcp.ClientSession]string{a: "of-alice", b: "of-bob"} {
		must(t, cs, "create-machine", map[string]any{"image": "alpine:3.20", "network": "open", "name": name})
	}
	if err := b.Subscribe(t.Context(), &mcp.SubscribeParams{URI: "smol://machine/local/of-alice/logs"}); err == nil || !strings.Contains(err.Error(), "NOT_FOUND") {
		t.Errorf("bob follows a log of alice's: %v", err)
	}
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		s.end(sig)
		s = p.start()
		a, b = s.connect(modernEra, alice), s.connect(handshakeEra, bob)
		if got := listed(t, a); !slices.Equal(got, []string{"of-alice"}) {
			t.Errorf("after %v alice sees %v", sig, got)
		}
		if got := listed(t, b); !slices.Equal(got, []string{"of-bob"}) {
			t.Errorf("after %v bob sees %v", sig, got)
		}
		if text := refusal(t, b, "run-command", map[string]any{"name": "of-alice", "command": "true"}); !strings.HasPrefix(text, "NOT_FOUND") {
			t.Errorf("bob in alice's: %s", text)
		}
		if text := refusal(t, b, "create-machine", map[string]any{"image": "alpine:3.20", "network": "open", "name": "of-alice"}); !strings.HasPrefix(text, "CONFLICT") || strings.Contains(text, "token:") {
			t.Errorf("bob makes alice's: %s", text)
		}
	}
	if out, err := p.run("status"); err != nil || !strings.Contains(out, "token:alice") {
		t.Errorf("status: %v\n%s", err, out)
	}
	if out, err := p.run("token", "remove", "alice"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	again := p.newToken("alice")
	eventually(t, "the new token is known", 20*time.Second, func() bool { return s.raw(again).open() == nil })
	a = s.connect(handshakeEra, again)
	must(t, a, "run-command", map[string]any{"name": "of-alice", "command": "true"})
	must(t, a, "delete-machine", map[string]any{"name": "of-alice"})
	must(t, b, "delete-machine", map[string]any{"name": "of-bob"})
	if out, err := p.run("status"); err != nil || strings.Contains(out, "KEPT") {
		t.Errorf("status: %v\n%s", err, out)
	}
}

// The server is killed while a machine to be kept starts: it is its maker's all the same.
func TestHTTPKeptKilled(t *testing.T) {
	p := newHTTPPlace(t, "SMOLVM_FAKE_BOOT_MS=3000")
	alice, bob := p.newToken("alice"), p.newToken("bob")
	s := p.start()
	r := s.raw(alice)
	if err := r.open(); err != nil {
		t.Fatal(err)
	}
	called := make(chan struct{})
	go func() { // ends with the server
		defer close(called)
		_, _ = r.call(t.Context(), "create-machine", map[string]any{"image": "alpine:3.20", "network": "open", "name": "kept"})
	}()
	eventually(t, "it is there", 20*time.Second, func() bool { return len(p.machines()) == 1 })
	s.end(syscall.SIGKILL)
	<-called
	s = p.start()
	a, b := s.connect(handshakeEra, alice), s.connect(handshakeEra, bob)
	if text := refusal(t, b, "get-machine", map[string]any{"name": "kept"}); !strings.HasPrefix(text, "NOT_FOUND") || len(listed(t, b)) != 0 {
		t.Errorf("bob: %s %v", text, listed(t, b))
	}
	if got := listed(t, a); !slices.Equal(got, []string{"kept"}) {
		t.Errorf("alice sees %v", got)
	}
	must(t, a, "delete-machine", map[string]any{"name": "kept"})
	if out, err := p.run("status"); err != nil || strings.Contains(out, "KEPT") {
		t.Errorf("status: %v\n%s", err, out)
	}
}
