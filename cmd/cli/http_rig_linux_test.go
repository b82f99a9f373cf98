package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"smol-mcp/fleet/fleettest"
)

const (
	handshakeEra = "2025-11-25"
	modernEra    = "2026-07-28"
	theToken     = "the-token-of-the-settings"
)

// An httpPlace is where HTTP servers of one user run, one after the other, over the fake engine.
type httpPlace struct {
	t       testing.TB
	program string
	env     []string
	data    string // of the engine
}

func newHTTPPlace(t testing.TB, env ...string) *httpPlace {
	t.Helper()
	p := &httpPlace{t: t, program: build(t, "../smol-mcp"), data: fleettest.SmolvmData(t)}
	p.env = append(append(privatePlaces(t), "SMOLVM="+fleettest.BuildSmolvm(t), "SMOLVM_DATA_DIR="+p.data, "SMOL_MCP_AUTH_TOKEN="+theToken), env...)
	t.Cleanup(func() { killEngines(p.data) })
	return p
}

// setting is a variable of its environment.
func (p *httpPlace) setting(name string) string {
	var value string
	for _, line := range p.env {
		if v, ok := strings.CutPrefix(line, name+"="); ok {
			value = v
		}
	}
	return value
}

// machines are the names of the machines that the engine has.
func (p *httpPlace) machines() []string {
	p.t.Helper()
	dirs, err := os.ReadDir(filepath.Join(p.data, "machines"))
	if err != nil {
		p.t.Fatal(err)
	}
	var names []string
	for _, d := range dirs {
		names = append(names, d.Name())
	}
	return names
}

// run runs a command of the program to its end.
func (p *httpPlace) run(args ...string) (string, error) {
	cmd := exec.Command(p.program, args...)
	cmd.Env = append(os.Environ(), p.env...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// An httpServer is a running one.
type httpServer struct {
	place *httpPlace
	cmd   *exec.Cmd
	url   string
	log   *lockedBuffer
	http  *http.Client // to reach it
	done  chan error
}

// start starts a server, by way of another program where one is given.
func (p *httpPlace) start(through ...string) *httpServer {
	p.t.Helper()
	argv := append(through, p.program, "http", "--port=0", "--log-format", "json")
	s := &httpServer{place: p, cmd: exec.Command(argv[0], argv[1:]...), log: new(lockedBuffer), http: http.DefaultClient, done: make(chan error, 1)}
	s.cmd.Env = append(os.Environ(), p.env...)
	errors, err := s.cmd.StderrPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	listening := make(chan string, 1)
	go func() { // ends with the program
		for lines := bufio.NewScanner(errors); lines.Scan(); {
			fmt.Fprintln(s.log, lines.Text())
			var line struct{ Msg, URL string }
			if json.Unmarshal(lines.Bytes(), &line) == nil && line.Msg == "listening" {
				listening <- line.URL
			}
		}
		s.done <- s.cmd.Wait()
	}()
	p.t.Cleanup(func() {
		_ = s.cmd.Process.Kill() // it may have ended
		for _, word := range []string{"panic in a handler", "DATA RACE"} {
			if strings.Contains(s.log.String(), word) {
				p.t.Errorf("the log tells of a %s", word)
			}
		}
		if p.t.Failed() {
			p.t.Logf("log of the server:\n%s", s.log.tail(12))
		}
	})
	select {
	case s.url = <-listening:
	case err := <-s.done:
		p.t.Fatalf("it ended: %v\n%s", err, s.log.tail(12))
	case <-time.After(20 * time.Second):
		p.t.Fatal("it does not listen")
	}
	return s
}

// end asks the server to end and waits for that.
func (s *httpServer) end(sig syscall.Signal) {
	s.place.t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.place.t.Fatal(err)
	}
	select {
	case <-s.done:
	case <-time.After(20 * time.Second):
		s.place.t.Fatal("it does not end")
	}
	if code := s.cmd.ProcessState.ExitCode(); sig == syscall.SIGTERM && code != 143 {
		s.place.t.Errorf("exit code %d after SIGTERM", code)
	}
}

// connect opens a session by the SDK's client.
func (s *httpServer) connect(era, token string, change ...func(*mcp.ClientOptions)) *mcp.ClientSession {
	s.place.t.Helper()
	opts := &mcp.ClientOptions{}
	for _, f := range change {
		f(opts)
	}
	transport := &mcp.StreamableClientTransport{Endpoint: s.url, HTTPClient: &http.Client{Transport: withToken{token, s.http.Transport}}, MaxRetries: -1}
	cs, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, opts).Connect(s.place.t.Context(), transport, &mcp.ClientSessionOptions{ProtocolVersion: era})
	if err != nil {
		s.place.t.Fatal(err)
	}
	s.place.t.Cleanup(func() { _ = cs.Close() })
	return cs
}

type withToken struct {
	token string
	next  http.RoundTripper
}

func (w withToken) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+w.token)
	if w.next == nil {
		return http.DefaultTransport.RoundTrip(r)
	}
	return w.next.RoundTrip(r)
}

// must calls a tool and returns its result; the test fails on an error.
func must(t testing.TB, cs *mcp.ClientSession, tool string, arguments map[string]any) map[string]any {
	t.Helper()
	res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: arguments})
	if err != nil {
		t.Fatalf("%s: %v", tool, err)
	}
	text := res.Content[0].(*mcp.TextContent).Text
	var out map[string]any
	if err := json.Unmarshal([]byte(text), &out); res.IsError || err != nil {
		t.Fatalf("%s: %s", tool, text)
	}
	return out
}

// newMachine creates a machine and returns its name.
func newMachine(t testing.TB, cs *mcp.ClientSession) string {
	t.Helper()
	return must(t, cs, "create-machine", map[string]any{"image": "alpine:3.20", "network": "open"})["machine"].(map[string]any)["name"].(string)
}

// A rawSession speaks the transport by hand, and never says goodbye.
type rawSession struct {
	server *httpServer
	token  string
	id     string
	count  *atomic.Int64 // of its requests: each has an id of its own
	modern bool          // it has no session, and is of the revisions that have none
}

func (s *httpServer) raw(token string) *rawSession {
	return &rawSession{server: s, token: token, count: new(atomic.Int64)}
}

// open opens the session.
func (r *rawSession) open() error {
	_, header, err := r.post(context.Background(), initialize)
	r.id = header.Get("Mcp-Session-Id")
	if err == nil && r.id == "" {
		err = fmt.Errorf("no session")
	}
	return err
}

// call calls a tool and returns the JSON of its result.
func (r *rawSession) call(ctx context.Context, tool string, arguments map[string]any) (string, error) {
	call := map[string]any{"name": tool, "arguments": arguments}
	if r.modern {
		call["_meta"] = map[string]any{"io.modelcontextprotocol/protocolVersion": modernEra, "io.modelcontextprotocol/clientCapabilities": map[string]any{}}
	}
	params, err := json.Marshal(call)
	if err != nil {
		return "", err
	}
	if r.modern {
		ctx = context.WithValue(ctx, toolKey{}, tool)
	}
	body, _, err := r.post(ctx, fmt.Sprintf(`{"jsonrpc":"2.0","id":"call-%d","method":"tools/call","params":%s}`, r.count.Add(1), params))
	if err == nil && (strings.Contains(body, `"isError":true`) || strings.Contains(body, `"error":{"code"`)) {
		err = fmt.Errorf("%s: %s", tool, body)
	}
	return body, err
}

func (r *rawSession) post(ctx context.Context, body string) (string, http.Header, error) {
	return r.do(ctx, http.MethodPost, body)
}

// request is a request of the session.
func (r *rawSession) request(ctx context.Context, method, body string) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, method, r.server.url, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+r.token)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	if tool, ok := ctx.Value(toolKey{}).(string); ok {
		req.Header.Set("Mcp-Protocol-Version", modernEra)
		req.Header.Set("Mcp-Method", "tools/call")
		req.Header.Set("Mcp-Name", tool)
	}
	if r.id != "" {
		req.Header.Set("Mcp-Session-Id", r.id)
		req.Header.Set("Mcp-Protocol-Version", handshakeEra)
	}
	return req, nil
}

func (r *rawSession) do(ctx context.Context, method, body string) (string, http.Header, error) {
	req, err := r.request(ctx, method, body)
	if err != nil {
		return "", nil, err
	}
	res, err := r.server.http.Do(req)
	if err != nil {
		return "", nil, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode >= 300 {
		err = fmt.Errorf("status %d: %s", res.StatusCode, text)
	}
	return string(text), res.Header, err
}

type toolKey struct{} // of the tool that a request of a newer revision has to name in its head

type lockedBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// tail is the last n lines.
func (b *lockedBuffer) tail(n int) string {
	lines := strings.Split(b.String(), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// eventually waits until holds reports true, for so long.
func eventually(t testing.TB, what string, limit time.Duration, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); !holds(); {
		if time.Now().After(end) {
			t.Fatal("never came true: ", what)
		}
		time.Sleep(10 * time.Millisecond) // between two looks
	}
}
