package httpd_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"smol-mcp/httpd"
)

const (
	legacy = "2025-11-25"
	modern = "2026-07-28"
	right  = "the-right-token-of-a"
)

// fake is a session of the server under test. Its tools are
//
//	echo   answers
//	own    makes the session one that would be missed
//	work   tells started, and runs until release, its cancellation or, with deaf, release alone
type fake struct {
	httpd.Opening
	rig    *rig
	server *mcp.Server
	owns   atomic.Bool
	busy   atomic.Bool
	ended  atomic.Bool

	reviewed atomic.Int32
	brief    atomic.Bool // what it is busy with ends by itself
	end      context.CancelCauseFunc
	over     context.Context
}

func (f *fake) Server() *mcp.Server { return f.server }
func (f *fake) Target() string      { return "here" }
func (f *fake) Busy() bool          { return f.busy.Load() }
func (f *fake) Review(context.Context) {
	if f.reviewed.Add(1) == 2 && f.brief.Load() { // the second look finds that it is over
		f.busy.Store(false)
	}
}
func (f *fake) Owns() bool { return f.owns.Load() }

func (f *fake) End(context.Context) (func(context.Context) error, error) {
	f.end(errors.New("over"))
	again := f.ended.Swap(true)
	return func(context.Context) error {
		if !again {
			f.rig.cleaned <- f
		}
		return nil
	}, nil
}

// A rig is a server with fake sessions.
type rig struct {
	t       testing.TB
	server  *httpd.Server
	url     string
	log     *logBuffer
	started chan string   // by work
	stopped chan error    // by work: why
	release chan struct{} // for work
	cleaned chan *fake

	mu     sync.Mutex
	opened []*fake
}

func newRig(t testing.TB, change ...func(*httpd.Options)) *rig {
	t.Helper()
	r := &rig{
		t: t, log: new(logBuffer),
		started: make(chan string, 1000), stopped: make(chan error, 1000), release: make(chan struct{}), cleaned: make(chan *fake, 10000),
	}
	tokens, err := httpd.NewTokens("", httpd.Vocabulary{},
		httpd.Token{Name: "a", Hash: httpd.Hash(right)}, httpd.Token{Name: "b", Hash: httpd.Hash("the-right-token-of-b")})
	if err != nil {
		t.Fatal(err)
	}
	opts := httpd.Options{
		Path: "/mcp", Hosts: httpd.LoopbackHosts("127.0.0.1"), Tokens: tokens, Version: "test", FailDelay: time.Millisecond,
		Log: slog.New(slog.NewTextHandler(r.log, nil)), Open: r.open,
	}
	for _, f := range change {
		f(&opts)
	}
	r.server = httpd.New(opts)
	ts := httptest.NewServer(r.server.Handler())
	r.url = ts.URL + "/mcp"
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := r.server.Close(ctx); err != nil {
			t.Error("close:", err)
		}
		ts.CloseClientConnections()
		ts.Close()
		if t.Failed() {
			t.Log(r.log.String())
		}
	})
	return r
}

func (r *rig) open(o httpd.Opening) (httpd.Session, error) {
	f := &fake{Opening: o, rig: r}
	f.over, f.end = context.WithCancelCause(context.Background())
	f.server = mcp.NewServer(&mcp.Implementation{Name: "fake", Version: "1"}, &mcp.ServerOptions{
		Capabilities:     &mcp.ServerCapabilities{Tools: &mcp.ToolCapabilities{ListChanged: true}, Resources: &mcp.ResourceCapabilities{Subscribe: true}},
		SubscribeHandler: func(context.Context, *mcp.SubscribeRequest) error { return nil }, UnsubscribeHandler: func(context.Context, *mcp.UnsubscribeRequest) error { return nil },
	})
	object := json.RawMessage(`{"type":"object"}`)
	tool := func(name string, call func(ctx context.Context, req *mcp.CallToolRequest) string) {
		f.server.AddTool(&mcp.Tool{Name: name, Description: name, InputSchema: object}, func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			ctx, cancel := context.WithCancelCause(ctx)
			defer context.AfterFunc(f.over, func() { cancel(context.Cause(f.over)) })()
			defer cancel(nil)
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: call(ctx, req)}}}, nil
		})
	}
	tool("echo", func(_ context.Context, req *mcp.CallToolRequest) string { return string(req.Params.Arguments) })
	tool("own", func(context.Context, *mcp.CallToolRequest) string { f.owns.Store(true); return "" })
	tool("fail", func(context.Context, *mcp.CallToolRequest) string { panic("not for the wire") })
	tool("work", func(ctx context.Context, req *mcp.CallToolRequest) string {
		r.started <- f.Token.Name
		done := ctx.Done()
		if strings.Contains(string(req.Params.Arguments), "deaf") {
			done = nil
		}
		if token := req.Params.GetProgressToken(); token != nil {
			_ = req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: token, Progress: 1, Message: "at work"})
		}
		select {
		case <-done:
			r.stopped <- context.Cause(ctx)
		case <-r.release:
			r.stopped <- nil
		}
		return "done"
	})
	r.mu.Lock()
	r.opened = append(r.opened, f)
	r.mu.Unlock()
	return f, nil
}

func (r *rig) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.opened)
}

// A client speaks the transport by hand.
type client struct {
	rig     *rig
	token   string
	session string
	version string
}

func (r *rig) client() *client { return &client{rig: r, token: right, version: legacy} }

type reply struct {
	status int
	header http.Header
	body   string
}

// message is the JSON of a reply, out of its events if need be.
func (p reply) message(t testing.TB) map[string]any {
	t.Helper()
	text := p.body
	for line := range strings.Lines(p.body) {
		if data, ok := strings.CutPrefix(line, "data: "); ok && strings.Contains(data, `"id"`) {
			text = data
		}
	}
	var m map[string]any
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		t.Fatalf("status %d, no message in %q: %v", p.status, p.body, err)
	}
	return m
}

// code is the code of the error of a reply; 0 without one.
func (p reply) code(t testing.TB) int {
	t.Helper()
	e, _ := p.message(t)["error"].(map[string]any)
	n, _ := e["code"].(float64)
	return int(n)
}

func (c *client) request(ctx context.Context, method, body string, headers ...string) *http.Request {
	req, err := http.NewRequestWithContext(ctx, method, c.rig.url, strings.NewReader(body))
	if err != nil {
		c.rig.t.Fatal(err)
	}
	for k, v := range map[string]string{"Accept": "application/json, text/event-stream", "Content-Type": "application/json", "Mcp-Session-Id": c.session, "Mcp-Protocol-Version": c.version} {
		if v != "" {
			req.Header.Set(k, v)
		}
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	for i := 0; i < len(headers); i += 2 {
		switch {
		case headers[i] == "Host":
			req.Host = headers[i+1]
		case headers[i+1] == "":
			req.Header.Del(headers[i])
		default:
			req.Header.Set(headers[i], headers[i+1])
		}
	}
	return req
}

func (c *client) do(method, body string, headers ...string) reply {
	c.rig.t.Helper()
	res, err := http.DefaultClient.Do(c.request(c.rig.t.Context(), method, body, headers...))
	if err != nil {
		c.rig.t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		c.rig.t.Fatal(err)
	}
	return reply{res.StatusCode, res.Header, string(text)}
}

func (c *client) post(body string, headers ...string) reply {
	c.rig.t.Helper()
	return c.do("POST", body, headers...)
}

const initialize = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"raw","version":"1"}}}`

// open opens a session.
func (c *client) open() *client {
	c.rig.t.Helper()
	c.version = ""
	p := c.post(initialize)
	if p.status != 200 || p.header.Get("Mcp-Session-Id") == "" {
		c.rig.t.Fatalf("initialize: %d %s", p.status, p.body)
	}
	c.session, c.version = p.header.Get("Mcp-Session-Id"), legacy
	if p := c.post(`{"jsonrpc":"2.0","method":"notifications/initialized"}`); p.status != 202 {
		c.rig.t.Fatalf("initialized: %d %s", p.status, p.body)
	}
	return c
}

// body is a tool call in the client's revision.
func (c *client) body(tool, arguments string) string {
	meta := ""
	if c.version == modern {
		meta = `,"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}`
	}
	return `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"` + tool + `","arguments":` + arguments + meta + `}}`
}

func (c *client) call(tool, arguments string) reply {
	c.rig.t.Helper()
	return c.post(c.body(tool, arguments), c.named(tool)...)
}

// named are the headers that newer revisions want.
func (c *client) named(tool string) []string {
	if c.version != modern {
		return nil
	}
	return []string{"Mcp-Method", "tools/call", "Mcp-Name", tool}
}

// stream begins a request whose answer is read line by line until cancel.
func (c *client) stream(method, body string, headers ...string) (lines <-chan string, cancel func()) {
	c.rig.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	c.rig.t.Cleanup(cancel)
	all := make(chan string, 1000)
	res := make(chan error, 1)
	go func() {
		defer close(all)
		answer, err := http.DefaultClient.Do(c.request(ctx, method, body, headers...))
		res <- err
		if err != nil {
			return
		}
		defer answer.Body.Close()
		for in := bufio.NewScanner(answer.Body); in.Scan(); {
			all <- in.Text()
		}
	}()
	if method == "GET" {
		if err := <-res; err != nil {
			c.rig.t.Fatal(err)
		}
	}
	return all, cancel
}

// within fails the test when nothing comes in time.
func within[T any](t testing.TB, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(10 * time.Second):
		t.Fatal("did not come: ", what)
		panic("unreachable")
	}
}

// awaitLine reads lines until one has word in it. Signs of life do not lengthen the wait.
func awaitLine(t testing.TB, lines <-chan string, word string) {
	t.Helper()
	late := time.After(10 * time.Second)
	for {
		select {
		case line, ok := <-lines:
			if !ok {
				t.Fatalf("the stream ended before %q", word)
			}
			if strings.Contains(line, word) {
				return
			}
		case <-late:
			t.Fatalf("no %q", word)
		}
	}
}

// eventually waits until holds reports true.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !holds(); {
		if time.Now().After(end) {
			t.Fatal("never came true: ", what)
		}
		time.Sleep(2 * time.Millisecond) // between two looks
	}
}

type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// lines are the lines of the log with all of the words.
func (b *logBuffer) lines(words ...string) []string {
	return slices.DeleteFunc(strings.Split(b.String(), "\n"), func(line string) bool {
		return slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) })
	})
}
