package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// script is a smolvm server made of one handler, over pipes within the test's
// process, so that it also runs in a synctest bubble.
type script struct {
	*Smolvm
	conns chan net.Conn
	dials atomic.Int64
	delay time.Duration // of a dial

	mu   sync.Mutex
	seen []string // "METHOD uri body", in order
}

func serve(t *testing.T, handler http.HandlerFunc) *script {
	t.Helper()
	s := &script{conns: make(chan net.Conn)}
	var busy sync.WaitGroup
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body []byte
		if r.Method == http.MethodPost {
			body, _ = io.ReadAll(r.Body)
			r.Body = io.NopCloser(strings.NewReader(string(body)))
		}
		s.mu.Lock()
		s.seen = append(s.seen, strings.TrimSpace(r.Method+" "+r.RequestURI+" "+string(body)))
		s.mu.Unlock()
		w.Header().Set("X-Trace-Id", "00112233aabbccdd")
		handler(w, r)
	}), ConnState: func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			busy.Add(1)
		case http.StateClosed, http.StateHijacked:
			busy.Done()
		}
	}}
	listener := &pipes{conns: s.conns, closed: make(chan struct{})}
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(listener) }()
	s.Smolvm = NewSmolvm(func(ctx context.Context) (net.Conn, error) {
		if err := pause(ctx, s.delay); err != nil {
			return nil, err
		}
		s.dials.Add(1)
		mine, theirs := net.Pipe()
		select {
		case s.conns <- theirs:
			return mine, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}, SmolvmOptions{})
	t.Cleanup(func() {
		s.Close()
		server.Close()
		<-done
		busy.Wait()
	})
	return s
}

type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}
func (p *pipes) Close() error   { p.once.Do(func() { close(p.closed) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }

func (s *script) requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.seen...)
}

// says answers every request alike.
func says(status int, kind, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { reply(w, status, kind, body) }
}

func reply(w http.ResponseWriter, status int, kind, body string) {
	w.Header().Set("Content-Type", kind)
	if status != 200 {
		w.WriteHeader(status)
	}
	_, _ = io.WriteString(w, body)
}

// routes answers by "METHOD path"; anything else is refused as axum does.
func routes(table map[string]string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if body, ok := table[r.Method+" "+r.URL.Path]; ok {
			reply(w, 200, "application/json", body)
			return
		}
		w.WriteHeader(404)
	}
}

const vm = `{"name":"vm","state":"running","cpus":1,"memoryMb":512,"network":false,"createdAt":1760000000,"pid":7,"ports":[],"mounts":[]}`

func wantErr(t *testing.T, err error, code Code, maybe bool, why ...string) {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) {
		t.Errorf("got %v, want %s", err, code)
		return
	}
	if e.Code != code || e.MaybeDone != maybe || len(e.Why) > MaxWhy || e.Op == "" {
		t.Errorf("got %s (maybe done %v) %v, want %s (%v)", e.Code, e.MaybeDone, e, code, maybe)
	}
	for _, w := range why {
		if !strings.Contains(e.Why, w) {
			t.Errorf("%q does not say %q", e.Why, w)
		}
	}
}

// Every shape in which smolvm refuses has a code and keeps the server's words,
// status and trace.
func TestRefusals(t *testing.T) {
	const jsonKind, text = "application/json", "text/plain; charset=utf-8"
	for _, c := range []struct {
		what         string
		status       int
		kind, body   string
		read, create Code // by a call that only reads, and by one with an effect
		maybe        bool // of the one with an effect
		why          string
	}{
		{"not found", 404, jsonKind, `{"error":"machine 'vm' not found","code":"NOT_FOUND"}`, CodeNotFound, CodeNotFound, false, "machine 'vm' not found (HTTP 404, NOT_FOUND, trace 00112233aabbccdd)"},
		{"no route", 404, "", "", CodeUnsupported, CodeUnsupported, false, "HTTP 404"},
		{"no method", 405, "", "", CodeUnsupported, CodeUnsupported, false, "HTTP 405"},
		{"conflict", 409, jsonKind, `{"error":"machine 'vm' already exists","code":"CONFLICT"}`, CodeConflict, CodeConflict, false, "already exists"},
		{"port word", 409, jsonKind, `{"error":"port 8080 busy","code":"PORT_IN_USE"}`, CodePortInUse, CodePortInUse, false, "8080"},
		{"port text", 500, jsonKind, `{"error":"bind 127.0.0.1:8080: Address already in use (os error 98)","code":"INTERNAL_ERROR"}`, CodePortInUse, CodePortInUse, false, "8080"},
		{"bad request", 400, jsonKind, `{"error":"cpus must be at least 1","code":"BAD_REQUEST"}`, CodeInvalid, CodeInvalid, false, "cpus"},
		{"bad query", 400, text, "Failed to deserialize query string", CodeInvalid, CodeInvalid, false, "query string"},
		{"unknown field", 422, text, "unknown field `x`, expected one of `command`", CodeInvalid, CodeInvalid, false, "unknown field `x`"},
		{"media type", 415, text, "Expected request with `Content-Type: application/json`", CodeInvalid, CodeInvalid, false, "Content-Type"},
		{"too large", 413, text, "length limit exceeded", CodeInvalid, CodeInvalid, false, "too large: length limit exceeded"},
		{"route limit", 408, "", "", CodeTimeout, CodeTimeout, true, "HTTP 408"},
		{"unavailable", 503, text, "runtime stalled", CodeUnreachable, CodeUnreachable, true, "runtime stalled"},
		{"not us", 401, jsonKind, `{"error":"who","code":"UNAUTHORIZED"}`, CodeUnavailable, CodeUnavailable, false, "who"},
		{"proxy page", 502, "text/html", "<html><body>Bad Gateway</body></html>", CodeUnreachable, CodeUnreachable, true, "web page"},
		{"internal", 500, jsonKind, `{"error":"KVM is not there","code":"INTERNAL_ERROR"}`, CodeInternal, CodeInternal, true, "KVM is not there (HTTP 500, INTERNAL_ERROR"},
		{"missing on the host", 500, jsonKind, `{"error":"rootfs: No such file or directory","code":"INTERNAL_ERROR"}`, CodeInternal, CodeInternal, true, "rootfs"},
		{"nested", 500, jsonKind, `{"error":{"message":"deep"}}`, CodeInternal, CodeInternal, true, "deep"},
		{"garbage", 500, jsonKind, "\x00\xff{]", CodeInternal, CodeInternal, true, "HTTP 500"},
		{"long", 500, text, strings.Repeat("ä", 5000), CodeInternal, CodeInternal, true, "[cut] (HTTP 500, trace 00112233aabbccdd)"},
		{"redirect", 301, text, "moved", CodeInternal, CodeInternal, false, "moved"},
	} {
		t.Run(c.what, func(t *testing.T) {
			s := serve(t, says(c.status, c.kind, c.body))
			_, err := s.Get(t.Context(), "vm")
			wantErr(t, err, c.read, false, c.why)
			_, err = s.Create(t.Context(), Spec{Name: "vm"})
			wantErr(t, err, c.create, c.maybe, c.why)
			if s.dials.Load() != 1 || len(s.requests()) != 2 {
				t.Errorf("%d connections and the requests %q", s.dials.Load(), s.requests())
			}
		})
	}
	s := serve(t, says(409, jsonKind, `{"error":"cannot publish 127.0.0.1:8080","code":"PORT_IN_USE"}`))
	var e *Error
	if _, err := s.Start(t.Context(), "vm", StartOptions{}); !errors.As(err, &e) || !strings.Contains(e.Next, "port 8080 ") {
		t.Errorf("the next step is %q", e.Next)
	}
}

// Guest failures all come as 500, and only their text tells them apart.
func TestGuestRefusals(t *testing.T) {
	for _, c := range []struct {
		text  string
		after time.Duration
		want  Code
		maybe bool // of an exec
	}{
		{"agent operation failed: read: No such file or directory (os error 2)", 0, CodeNotFound, false},
		{"failed to spawn command 'x': No such file or directory", 0, CodeNotFound, false},
		{"agent operation failed: read: not a regular file", 0, CodeInvalid, false},
		{"Is a directory (os error 21)", 0, CodeInvalid, false},
		{"command output exceeded 11534336 bytes", 0, CodeInvalid, true},
		{"agent operation failed: exec: Resource temporarily unavailable (os error 11)", 15 * time.Second, CodeTimeout, true},
		{"Resource temporarily unavailable (os error 35)", 15 * time.Second, CodeTimeout, true},
		{"failed to spawn command: Resource temporarily unavailable (os error 11)", 0, CodeInternal, true},
		{"agent operation failed: connection timed out", 0, CodeTimeout, true},
		{"agent operation failed: write: No space left on device (os error 28)", 0, CodeConflict, false},
		{"guest hung", 0, CodeInternal, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := serve(t, func(w http.ResponseWriter, r *http.Request) {
				time.Sleep(c.after) // in the bubble's time
				body, _ := json.Marshal(map[string]string{"error": c.text, "code": "INTERNAL_ERROR"})
				reply(w, 500, "application/json", string(body))
			})
			_, err := s.Exec(t.Context(), "vm", Command{Argv: []string{"x"}, Timeout: 10 * time.Second})
			wantErr(t, err, c.want, c.maybe, c.text)
			_, err = s.Download(t.Context(), "vm", "/x", io.Discard, 0)
			wantErr(t, err, c.want, false, c.text)
		})
	}
}

// W46: a broken connection keeps its cause, and says whether the request may have
// been carried out.
func TestConnectionBreaks(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err == nil {
			conn.Close()
		}
	})
	_, err := s.List(t.Context())
	wantErr(t, err, CodeUnreachable, false, "EOF")
	_, err = s.Create(t.Context(), Spec{Name: "vm"})
	wantErr(t, err, CodeUnreachable, true, "EOF")
	_, err = s.Exec(t.Context(), "vm", Command{Argv: []string{"x"}, Timeout: time.Second})
	wantErr(t, err, CodeUnreachable, true, "EOF")
	_, err = s.Delete(t.Context(), "vm")
	wantErr(t, err, CodeUnreachable, true, "EOF")
	if got := len(s.requests()); got != 4 {
		t.Errorf("%d requests for 4 calls: %q", got, s.requests())
	}
}

// An error of the engine reaches the caller as it is; any other one from dialling
// means that nothing was sent.
func TestDialFails(t *testing.T) {
	own := &Error{Code: CodeUnavailable, Op: "start smolvm", Why: "it is not installed", Next: "install it"}
	for _, cause := range []error{own, errors.New("connection refused")} {
		s := NewSmolvm(func(context.Context) (net.Conn, error) { return nil, cause }, SmolvmOptions{})
		defer s.Close()
		_, err := s.Create(t.Context(), Spec{Name: "vm"})
		wantErr(t, err, CodeUnavailable, false)
		if cause == own && err != error(own) || !errors.Is(err, cause) {
			t.Errorf("%v became %v", cause, err)
		}
	}
}

// W22: a deadline is one from the start to the last byte, however steadily bytes
// drip in.
func TestDeadlines(t *testing.T) {
	drip := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		for r.Context().Err() == nil {
			if _, err := io.WriteString(w, " "); err != nil {
				return
			}
			_ = http.NewResponseController(w).Flush()
			time.Sleep(time.Second) // in the bubble's time
		}
	}
	hang := func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // the server hears of the end only behind the body
		<-r.Context().Done()
	}
	for _, c := range []struct {
		what  string
		wait  time.Duration
		maybe bool
		call  func(ctx context.Context, s *Smolvm) error
	}{
		{"list", readWait, false, func(ctx context.Context, s *Smolvm) error { _, err := s.List(ctx); return err }},
		{"health", healthWait, false, func(ctx context.Context, s *Smolvm) error { _, err := s.Info(ctx); return err }},
		{"create", createWait, true, func(ctx context.Context, s *Smolvm) error { _, err := s.Create(ctx, Spec{Name: "vm"}); return err }},
		{"start", startWait, true, func(ctx context.Context, s *Smolvm) error { _, err := s.Start(ctx, "vm", StartOptions{}); return err }},
		{"stop", stopWait, true, func(ctx context.Context, s *Smolvm) error { _, err := s.Stop(ctx, "vm", StopOptions{}); return err }},
		{"delete", stopWait, true, func(ctx context.Context, s *Smolvm) error { _, err := s.Delete(ctx, "vm"); return err }},
		{"exec", 7*time.Second + execSlack, true, func(ctx context.Context, s *Smolvm) error {
			_, err := s.Exec(ctx, "vm", Command{Argv: []string{"x"}, Timeout: 6500 * time.Millisecond})
			return err
		}},
		{"pull", pullWait, true, func(ctx context.Context, s *Smolvm) error { _, err := s.Pull(ctx, "vm", "alpine"); return err }},
		{"upload", fileWait, true, func(ctx context.Context, s *Smolvm) error {
			return s.Upload(ctx, "vm", "/x", strings.NewReader("x"), 1)
		}},
	} {
		for how, handler := range map[string]http.HandlerFunc{"drip": drip, "hang": hang} {
			t.Run(c.what+"/"+how, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := serve(t, handler)
					s.delay = 90 * time.Second // an engine starts: not the request's time
					begun := time.Now()
					err := c.call(t.Context(), s.Smolvm)
					wantErr(t, err, CodeTimeout, c.maybe)
					if took := time.Since(begun) - s.delay; took > c.wait+time.Second || took < c.wait-time.Second {
						t.Errorf("it ended after %v, not %v", took, c.wait)
					}
				})
			})
		}
	}
}

// Every wait hears the end of its caller at once: for a connection, for the head
// of an answer, and for its rest.
func TestCancelIsHeard(t *testing.T) {
	half := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}
	hang := func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // the server hears of the end only behind the body
		<-r.Context().Done()
	}
	for what, c := range map[string]struct {
		handler http.HandlerFunc
		delay   time.Duration
		maybe   bool
	}{"dial": {hang, time.Minute, false}, "head": {hang, 0, true}, "body": {half, 0, true}} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := serve(t, c.handler)
				s.delay = c.delay
				ctx, cancel := context.WithCancel(t.Context())
				time.AfterFunc(10*time.Second, cancel)
				begun := time.Now()
				_, err := s.Create(ctx, Spec{Name: "vm"})
				wantErr(t, err, CodeCancelled, c.maybe)
				if took := time.Since(begun) - 10*time.Second; took > time.Second {
					t.Errorf("heard after %v", took)
				}
			})
		})
	}
}

// An answer past its bound is an error, and never kept whole.
func TestAnswersAreBounded(t *testing.T) {
	flood := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		spaces := strings.Repeat(" ", 1<<20)
		for range 70 {
			if _, err := io.WriteString(w, spaces); err != nil {
				return
			}
		}
	}
	s := serve(t, flood)
	_, err := s.List(t.Context())
	wantErr(t, err, CodeInternal, false, "larger than 4194304 bytes")
	_, err = s.Exec(t.Context(), "vm", Command{Argv: []string{"x"}, Timeout: time.Second})
	wantErr(t, err, CodeInternal, true, "larger than")
	refuse := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(500)
		flood(w, r)
	})
	_, err = refuse.List(t.Context())
	wantErr(t, err, CodeInternal, false)
}

// One connection serves one call after the other, whatever their answers are.
func TestConnectionsAreKept(t *testing.T) {
	answers := []http.HandlerFunc{
		says(200, "application/json", vm), says(404, "", ""), says(500, "text/plain", strings.Repeat("x", 100<<10)),
		says(200, "application/json", "no JSON"), says(408, "", ""), says(200, "application/json", vm),
	}
	var n atomic.Int64
	s := serve(t, func(w http.ResponseWriter, r *http.Request) { answers[int(n.Add(1))%len(answers)](w, r) })
	for range 9 {
		_, _ = s.Get(t.Context(), "vm")
		_, _ = s.Download(t.Context(), "vm", "/x", io.Discard, 0)
	}
	if s.dials.Load() != 1 {
		t.Errorf("%d connections", s.dials.Load())
	}
}

// Close ends a dial that nobody waits for any more.
func TestCloseEndsDials(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, says(200, "application/json", vm))
		s.delay = time.Hour
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := s.Get(ctx, "vm")
		wantErr(t, err, CodeTimeout, false)
		begun := time.Now()
		s.Close()
		if took := time.Since(begun); took > 0 {
			t.Errorf("it took %v", took)
		}
	})
}

// The worst that can be on a socket is something that is not smolvm.
func TestSomethingElseAnswers(t *testing.T) {
	for _, body := range []string{"", "hello", "[]", `{"status":"ok"}`, `{"status":"starting","version":"1.2.3"}`, `{"version":"1.2.3"}`} {
		s := serve(t, says(200, "application/json", body))
		_, err := s.Info(t.Context())
		wantErr(t, err, CodeUnavailable, false, "not smolvm")
		_, err = s.Get(t.Context(), "vm")
		if CodeOf(err) != CodeInternal {
			t.Errorf("%q: %v", body, err)
		}
	}
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	s := NewSmolvm(func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "tcp", server.Listener.Addr().String())
	}, SmolvmOptions{})
	defer s.Close()
	if _, err := s.Info(t.Context()); err == nil {
		t.Error("a web server passed for smolvm")
	}
}

func TestPortOf(t *testing.T) {
	for text, want := range map[string]string{
		"port 8080 is already in use": "8080", "bind 127.0.0.1:80: Address already in use": "80", "host port: 443": "443",
		"Port=9 taken": "9", "[::1]:8443": "8443", "exit 98": "", "no port": "", "": "", "port 123456": "",
	} {
		if got := portOf(text); got != want {
			t.Errorf("%q names port %q, want %q", text, got, want)
		}
	}
}
