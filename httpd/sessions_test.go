package httpd_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"smol-mcp/httpd"
)

const ping = `{"jsonrpc":"2.0","id":1,"method":"ping"}`

// A session is there from its handshake to its DELETE, for its principal alone.
func TestSessionLife(t *testing.T) {
	r := newRig(t)
	c := r.client().open()
	other := &client{rig: r, token: "the-right-token-of-b", session: c.session, version: legacy}
	unknown := &client{rig: r, token: right, session: "AAAA", version: legacy}
	for what, who := range map[string]*client{"another principal's": other, "unknown": unknown} {
		for _, method := range []string{"POST", "GET", "DELETE"} {
			if p := who.do(method, ping); p.status != 404 || p.code(t) != -32001 || !strings.Contains(p.body, "send initialize") {
				t.Errorf("%s session, %s: %d %s", what, method, p.status, p.body)
			}
		}
	}
	if p := c.call("echo", `{"x":1}`); p.status != 200 || p.code(t) != 0 || p.header.Get("X-Accel-Buffering") != "no" {
		t.Errorf("a call: %d %v %s", p.status, p.header, p.body)
	}
	if p := c.post(initialize); p.status != 400 || p.code(t) != -32600 {
		t.Errorf("initialize, again: %d %s", p.status, p.body)
	}
	if p := c.do("DELETE", ""); p.status != 204 {
		t.Errorf("DELETE: %d %s", p.status, p.body)
	}
	within(t, "the clean-up", r.cleaned)
	for _, method := range []string{"POST", "GET", "DELETE"} {
		if p := c.do(method, ping); p.status != 404 {
			t.Errorf("%s after the end: %d %s", method, p.status, p.body)
		}
	}
	if p := (&client{rig: r, token: right}).do("DELETE", ""); p.status != 400 {
		t.Errorf("DELETE of nothing: %d %s", p.status, p.body)
	}
	if lines := r.log.lines("session ended", "principal=a", `why="its client"`); len(lines) != 1 || strings.Contains(r.log.String(), c.session) {
		t.Errorf("log: %v", lines)
	}
}

// What cannot become a session leaves none, and no room taken.
func TestNotOpened(t *testing.T) {
	r := newRig(t, func(o *httpd.Options) { o.MaxSessions = 2 })
	c := r.client()
	c.version = ""
	for body, status := range map[string]int{
		`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`: 400,
		`[` + initialize + `]`:                           400,
		`[]`:                                             400,
		`{"jsonrpc":"2.0","id":1,"method":"initialize","params":[]}`:   0,
		`{"jsonrpc":"2.0","id":1,"method":"initialize"}`:               0,
		`{"jsonrpc":"2.0","method":"initialize","params":{}}`:          400,
		`{"jsonrpc":"1.0","id":1,"method":"initialize","params":{}}`:   400,
		`{"jsonrpc":"2.0","id":{},"method":"initialize","params":{}}`:  400,
		`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}} x`: 400,
		`{"jsonrpc":"2.0","id":1,"method":7}`:                          400,
		`null`:                                                         400, `7`: 400, ``: 400, ` `: 400, `{`: 400, "\x00": 400,
	} {
		p := c.post(body)
		if status != 0 && p.status != status || p.message(t)["error"] == nil {
			t.Errorf("%s: %d %s", body, p.status, p.body)
		}
	}
	for what, headers := range map[string][]string{
		"text": {"Content-Type", "text/plain"}, "no events": {"Accept", "application/json"}, "no accept": {"Accept", ""}, "an old version": {"Mcp-Protocol-Version", "2020-01-01"},
	} {
		if p := c.post(initialize, headers...); p.status < 400 || p.code(t) == 0 {
			t.Errorf("%s: %d %s", what, p.status, p.body)
		}
	}
	c.open()
	r.client().open()
	eventually(t, "all but two have ended", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		open := 0
		for _, f := range r.opened {
			if !f.ended.Load() {
				open++
			}
		}
		return open == 2
	})
}

// A principal for which there is nothing is told so, in both eras.
func TestNothingToOpen(t *testing.T) {
	r := newRig(t, func(o *httpd.Options) {
		o.Open = func(httpd.Opening) (httpd.Session, error) { return nil, errors.New("forbidden: not here") }
	})
	if p := r.client().post(initialize, "Mcp-Protocol-Version", ""); p.status != 403 || p.code(t) != -32003 || !strings.Contains(p.body, "not here") {
		t.Errorf("a session: %d %s", p.status, p.body)
	}
	c := &client{rig: r, token: right, version: modern}
	if p := c.call("echo", `{}`); p.status != 403 || p.code(t) != -32003 || !strings.Contains(p.body, "not here") {
		t.Errorf("a call without one: %d %s", p.status, p.body)
	}
}

// idleTime is short enough to wait for, and long enough for this computer to get to its work.
const idleTime = 300 * time.Millisecond

// W24: a session ends when nothing of it runs; a long call, a busy job and requests in
// between keep it, an open stream does not.
func TestIdle(t *testing.T) {
	r := newRig(t, func(o *httpd.Options) { o.Idle = idleTime })
	fakeOf := func(i int) *fake { r.mu.Lock(); defer r.mu.Unlock(); return r.opened[i] }
	idle := r.client().open()
	watching := r.client().open()
	stream, _ := watching.stream("GET", "")
	working := r.client().open()
	busy := r.client().open()
	fakeOf(3).busy.Store(true)

	lines, _ := working.stream("POST", working.body("work", `{}`))
	within(t, "the call", r.started)
	for begin := time.Now(); time.Since(begin) < 3*idleTime; {
		if p := working.post(ping); p.status != 200 { // its end must not free the call
			t.Fatalf("a request beside the call: %d %s", p.status, p.body)
		}
	}
	for range stream { // ends with its session
	}
	within(t, "the end of the idle ones", r.cleaned)
	within(t, "the end of the idle ones", r.cleaned)
	for what, c := range map[string]*client{"idle": idle, "with a stream": watching} {
		if p := c.post(ping); p.status != 404 {
			t.Errorf("%s: %d %s", what, p.status, p.body)
		}
	}
	close(r.release)
	awaitLine(t, lines, "done")
	if err := within(t, "the end of the call", r.stopped); err != nil {
		t.Errorf("the long call was cut short: %v", err)
	}
	if p := busy.post(ping); p.status != 200 {
		t.Errorf("busy: %d %s", p.status, p.body)
	}
	fakeOf(3).busy.Store(false)
	within(t, "the end of the others", r.cleaned)
	within(t, "the end of the others", r.cleaned)
	if n := len(r.log.lines("session ended", "why=idle")); n != 4 {
		t.Errorf("%d sessions ended idle, want 4", n)
	}
}

// A client that goes away in the middle of a call of an older revision does not end it:
// the session is kept as long as it runs.
func TestVanishedClient(t *testing.T) {
	r := newRig(t, func(o *httpd.Options) { o.Idle = idleTime })
	c := r.client().open()
	_, cancel := c.stream("POST", c.body("work", `{}`))
	within(t, "the call", r.started)
	f := r.opened[0]
	f.busy.Store(true) // as a session is in which a call runs
	cancel()
	select {
	case err := <-r.stopped:
		t.Fatalf("the call ended: %v", err)
	case <-time.After(2 * idleTime):
	}
	close(r.release)
	if err := within(t, "the end of the call", r.stopped); err != nil {
		t.Error(err)
	}
	f.busy.Store(false)
	if got := within(t, "the clean-up", r.cleaned); got != f {
		t.Error("another session ended")
	}
}

// At the limit the session that is idle for the longest makes room, unless it would be
// missed; when all would be, the new one is refused.
func TestMaxSessions(t *testing.T) {
	r := newRig(t, func(o *httpd.Options) { o.MaxSessions = 3 })
	owner, first, second := r.client().open(), r.client().open(), r.client().open()
	owner.call("own", `{}`)
	if p := first.post(ping); p.status != 200 {
		t.Fatal(p.status)
	}
	third := r.client().open()
	if p := second.post(ping); p.status != 404 {
		t.Errorf("the one idle for the longest: %d", p.status)
	}
	for what, c := range map[string]*client{"owner": owner, "first": first, "third": third} {
		if p := c.call("own", `{}`); p.status != 200 {
			t.Errorf("%s: %d %s", what, p.status, p.body)
		}
	}
	c := r.client()
	c.version = ""
	if p := c.post(initialize); p.status != 429 || p.header.Get("Retry-After") == "" || !strings.Contains(p.body, "3 sessions") {
		t.Errorf("one too many: %d %s", p.status, p.body)
	}
	b := &client{rig: r, token: "the-right-token-of-b"}
	b.open()
	if p := owner.do("DELETE", ""); p.status != 204 {
		t.Fatal(p.status)
	}
	c.open()
}

func TestMaxRequests(t *testing.T) {
	r := newRig(t, func(o *httpd.Options) { o.MaxRequests = 2 })
	c := r.client().open()
	for i := range 2 {
		c.stream("POST", strings.Replace(c.body("work", `{}`), `"id":7`, fmt.Sprintf(`"id":%d`, 10+i), 1))
		within(t, "a call", r.started)
	}
	if p := c.post(ping); p.status != 429 || p.header.Get("Retry-After") == "" {
		t.Errorf("a third: %d %s", p.status, p.body)
	}
	lines, _ := c.stream("GET", "") // news are no work
	awaitLine(t, lines, ":")
	other := &client{rig: r, token: "the-right-token-of-b"}
	other.open()
	close(r.release)
	eventually(t, "there is room again", func() bool { return c.post(ping).status == 200 })
}

// Bodies that are large together are refused before they are read.
func TestMaxBodies(t *testing.T) {
	r := newRig(t, func(o *httpd.Options) { o.MaxBody, o.MaxBodies = 1000, 2500 })
	c := r.client().open()
	for i := range 2 {
		body := strings.Replace(c.body("work", `{}`), `"id":7`, fmt.Sprintf(`"id":%d`, 10+i), 1)
		c.stream("POST", body+strings.Repeat(" ", 1000-len(body)))
		within(t, "a call", r.started)
	}
	if p := c.post(ping + strings.Repeat(" ", 800)); p.status != 429 {
		t.Errorf("a third: %d %s", p.status, p.body)
	}
	if p := c.post(ping); p.status != 200 {
		t.Errorf("a small one: %d %s", p.status, p.body)
	}
	close(r.release)
	eventually(t, "there is room again", func() bool { return c.post(ping+strings.Repeat(" ", 800)).status == 200 })
}

// slowly is a session whose leftovers are gone when gate is closed.
type slowly struct {
	httpd.Session
	gate chan struct{}
}

func (s slowly) End(ctx context.Context) (func(context.Context) error, error) {
	clean, err := s.Session.End(ctx)
	return func(ctx context.Context) error {
		<-s.gate
		return clean(ctx)
	}, err
}

// A DELETE is answered when the end is known, and not only when all is cleared up.
func TestDeleteDoesNotWait(t *testing.T) {
	gate := make(chan struct{})
	r := newRig(t, func(o *httpd.Options) {
		open := o.Open
		o.Open = func(in httpd.Opening) (httpd.Session, error) {
			s, err := open(in)
			return slowly{s, gate}, err
		}
	})
	c := r.client().open()
	if p := c.do("DELETE", ""); p.status != 204 || !r.opened[0].ended.Load() {
		t.Errorf("%d %s", p.status, p.body)
	}
	if len(r.cleaned) != 0 {
		t.Error("the clean-up did not wait")
	}
	close(gate)
	within(t, "the clean-up", r.cleaned)
}

// The end of the server ends sessions, streams and calls, also those that hear nothing, in time.
func TestClose(t *testing.T) {
	r := newRig(t)
	var streams []<-chan string
	for range 20 {
		c := r.client().open()
		lines, _ := c.stream("GET", "")
		streams = append(streams, lines)
	}
	c := r.client().open()
	lines, _ := c.stream("POST", c.body("work", `{}`))
	within(t, "the call", r.started)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if err := r.server.Close(ctx); err != nil {
		t.Fatal(err)
	}
	for _, s := range append(streams, lines) {
		for range s { // until it ends
		}
	}
	if err := within(t, "the end of the call", r.stopped); err == nil || err.Error() != "over" {
		t.Errorf("the call ended with %v", err)
	}
	if n := len(r.cleaned); n != 21 {
		t.Errorf("%d sessions were cleared up, want 21", n)
	}
	if p := c.post(ping); p.status != 503 {
		t.Errorf("after the end: %d %s", p.status, p.body)
	}
}

// A panic is the end of its own request, is told, and leaves nothing counted.
func TestPanic(t *testing.T) {
	r := newRig(t, func(o *httpd.Options) {
		o.MaxRequests, o.MaxSessions = 1, 1
		open, tries := o.Open, 0
		o.Open = func(in httpd.Opening) (httpd.Session, error) {
			if tries++; tries <= 3 {
				panic("of a test")
			}
			return open(in)
		}
	})
	for range 3 {
		if _, err := http.DefaultClient.Do(r.client().request(t.Context(), "POST", initialize, "Mcp-Protocol-Version", "")); err == nil {
			t.Error("it was answered")
		}
	}
	if n := len(r.log.lines("panic in a handler", "of a test", "httpd.(*Server)")); n != 3 {
		t.Errorf("%d lines of log", n)
	}
	r.client().open()
}

func TestCloseDeaf(t *testing.T) {
	r := newRig(t)
	c := r.client().open()
	c.stream("POST", c.body("work", `{"deaf":true}`))
	within(t, "the call", r.started)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := r.server.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("with a deaf call: %v", err)
	}
	close(r.release)
}

// What keeps a session that nobody uses is looked at now and then, so that it does not
// keep it for longer than it goes on.
func TestReview(t *testing.T) {
	r := newRig(t, func(o *httpd.Options) { o.Idle = idleTime })
	r.client().open()
	r.modern().call("echo", `{}`)
	for _, f := range r.opened {
		f.brief.Store(true)
		f.busy.Store(true)
	}
	begin := time.Now()
	for range 2 {
		f := within(t, "the end", r.cleaned)
		if n := f.reviewed.Load(); n != 2 || time.Since(begin) < 2*idleTime {
			t.Errorf("%s: ended after %v and %d looks", f.Kind, time.Since(begin), n)
		}
	}
}
