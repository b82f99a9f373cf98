package httpd_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"smol-mcp/httpd"
)

func (r *rig) modern() *client { return &client{rig: r, token: right, version: modern} }

const discover = `{"jsonrpc":"2.0","id":1,"method":"server/discover","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`

// All requests of a principal that come without a session share its lease; it ends when
// the principal is idle, and not by the end of a session.
func TestLease(t *testing.T) {
	r := newRig(t, func(o *httpd.Options) { o.Idle = idleTime })
	c, other := r.modern(), &client{rig: r, token: "the-right-token-of-b", version: modern}
	for _, who := range []*client{c, c, other} {
		if p := who.call("echo", `{"x":1}`); p.status != 200 || p.header.Get("Mcp-Session-Id") != "" {
			t.Fatalf("%d %s", p.status, p.body)
		}
	}
	if n := r.count(); n != 2 {
		t.Errorf("%d leases, want one for each principal", n)
	}
	lease := r.opened[0]
	if lease.Kind != "stateless" || lease.Lease != nil {
		t.Errorf("a lease is opened as %+v", lease.Opening)
	}
	session := r.client().open()
	shared := r.opened[2]
	if shared.Kind != "http" || shared.Lease(false) != httpd.Session(lease) || shared.Lease(true) != httpd.Session(lease) {
		t.Error("a session does not get at its principal's lease")
	}
	// The lease lives as long as anything of its principal does.
	for begin := time.Now(); time.Since(begin) < 3*idleTime; time.Sleep(idleTime / 10) {
		session.post(ping)
	}
	if lease.ended.Load() {
		t.Error("the lease ended while a session of its principal was at work")
	}
	if p := session.do("DELETE", ""); p.status != 204 {
		t.Fatal(p.status)
	}
	ended := map[*fake]bool{}
	for range 3 {
		ended[within(t, "an end", r.cleaned)] = true
	}
	if !ended[lease] || shared.Lease(false) != nil {
		t.Error("the lease has not ended")
	}
	if p := c.call("echo", `{}`); p.status != 200 {
		t.Errorf("with a new lease: %d %s", p.status, p.body)
	}
}

// A listening stream does not keep a lease, and ends with it.
func TestListen(t *testing.T) {
	r := newRig(t, func(o *httpd.Options) { o.Idle = idleTime })
	c := r.modern()
	lines, _ := c.stream("POST", `{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{"notifications":{"toolsListChanged":true},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`,
		"Mcp-Method", "subscriptions/listen")
	awaitLine(t, lines, "acknowledged")
	lease := r.opened[0]
	lease.server.AddTool(&mcp.Tool{Name: "new", InputSchema: map[string]any{"type": "object"}}, nil)
	awaitLine(t, lines, "list_changed")
	if got := within(t, "the end of the lease", r.cleaned); got != lease {
		t.Error("another session ended")
	}
}

// The end of the connection is the cancellation of a call, in the revisions that say so.
func TestDisconnectCancels(t *testing.T) {
	r := newRig(t)
	c := r.modern()
	_, cancel := c.stream("POST", c.body("work", `{}`), c.named("work")...)
	within(t, "the call", r.started)
	cancel()
	if err := within(t, "the end of the call", r.stopped); err == nil {
		t.Error("the call was carried out to its end")
	}
}

// What is wrong with a request is said in the words of its revision.
func TestModernErrors(t *testing.T) {
	r := newRig(t)
	c := r.modern()
	for what, x := range map[string]struct {
		body    string
		headers []string
		status  int
		code    int
	}{
		"good":            {discover, []string{"Mcp-Method", "server/discover"}, 200, 0},
		"no header":       {discover, []string{"Mcp-Protocol-Version", ""}, 400, -32020},
		"no method":       {discover, nil, 400, -32020},
		"another method":  {discover, []string{"Mcp-Method", "tools/list"}, 400, -32020},
		"unknown method":  {strings.Replace(discover, "server/discover", "no/such", 1), []string{"Mcp-Method", "no/such"}, 404, -32601},
		"unknown version": {strings.Replace(discover, modern, "2099-01-01", 1), []string{"Mcp-Method", "server/discover", "Mcp-Protocol-Version", "2099-01-01"}, 400, -32022},
		"ping":            {strings.Replace(discover, "server/discover", "ping", 1), []string{"Mcp-Method", "ping"}, 404, -32601},
		"no JSON":         {"{", nil, 400, -32700},
	} {
		if p := c.post(x.body, x.headers...); p.status != x.status || p.code(t) != x.code {
			t.Errorf("%s: %d %s, want %d %d", what, p.status, p.body, x.status, x.code)
		}
	}
	for _, method := range []string{"GET", "DELETE", "PUT"} {
		if p := c.do(method, ""); p.status != 405 || p.header.Get("Allow") != "POST" {
			t.Errorf("%s: %d %s", method, p.status, p.body)
		}
	}
}

// What is no revision at all is refused in a session as one that is not served; without a session the
// body tells which revision is meant, and the answer is as that has it.
func TestNoRevision(t *testing.T) {
	r := newRig(t)
	session := r.client().open()
	for _, version := range []string{"bogus", "2026-07-28x", "2026-99-99", "9", "zzzz-zz-zz", "2026-07-28, 2025-11-25"} {
		p := session.post(ping, "Mcp-Protocol-Version", version)
		if p.status != 400 || p.code(t) != -32600 || !strings.Contains(p.body, "Unsupported protocol version (supported versions: 2026-07-28,2025-11-25,") {
			t.Errorf("%q in a session: %d %s", version, p.status, p.body)
		}
		p = r.client().post(strings.ReplaceAll(discover, "2026-07-28", version), "Mcp-Protocol-Version", version, "Mcp-Method", "server/discover")
		if p.status != 400 || p.code(t) != -32022 || !strings.Contains(p.body, `"supported":["2026-07-28"`) {
			t.Errorf("%q without one: %d %s", version, p.status, p.body)
		}
	}
	if p := session.post(ping); p.status != 200 {
		t.Errorf("the session afterwards: %d %s", p.status, p.body)
	}
}

// Both revisions at one address, by the SDK's own client: what it asks for, progress, a
// session's end.
func TestClients(t *testing.T) {
	for _, version := range []string{"2025-06-18", legacy, modern, ""} {
		t.Run(version, func(t *testing.T) {
			r := newRig(t)
			progress := make(chan string, 10)
			c := mcp.NewClient(&mcp.Implementation{Name: "sdk", Version: "1"}, &mcp.ClientOptions{
				ProgressNotificationHandler: func(_ context.Context, req *mcp.ProgressNotificationClientRequest) { progress <- req.Params.Message },
			})
			cs, err := c.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: r.url, HTTPClient: withToken(right)}, &mcp.ClientSessionOptions{ProtocolVersion: version})
			if err != nil {
				t.Fatal(err)
			}
			p := &mcp.CallToolParams{Name: "work", Arguments: map[string]any{}}
			p.SetProgressToken("p")
			done := make(chan error, 1)
			go func() { _, err := cs.CallTool(t.Context(), p); done <- err }()
			if word := within(t, "progress", progress); word != "at work" {
				t.Error(word)
			}
			close(r.release)
			if err := within(t, "the result", done); err != nil {
				t.Error(err)
			}
			if err := cs.Close(); err != nil {
				t.Error(err)
			}
			if version != modern && version != "" {
				within(t, "the end that the client asks for", r.cleaned)
			}
		})
	}
}

// withToken is a client that sends a token with each request.
func withToken(token string) *http.Client { return &http.Client{Transport: bearer(token)} }

type bearer string

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+string(b))
	return http.DefaultTransport.RoundTrip(r)
}
