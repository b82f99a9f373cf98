package httpd_test

import (
	"context"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"smol-mcp/httpd"
)

// slowOpening is a session whose handshake waits, once it is answered, for goOn.
type slowOpening struct {
	httpd.Session
	asked       atomic.Int32 // for its server
	begun, over chan struct{}
	goOn        chan struct{}
}

// Server is asked for first by the server under test, which then adds what it does at the end of a
// handshake, and next by the SDK: what is added then is around that.
func (s *slowOpening) Server() *mcp.Server {
	server := s.Session.Server()
	switch s.asked.Add(1) {
	case 1:
		server.AddReceivingMiddleware(afterHandshake(func() { s.begun <- struct{}{}; <-s.goOn }))
	case 2:
		server.AddReceivingMiddleware(afterHandshake(func() { s.over <- struct{}{} }))
	}
	return server
}

func afterHandshake(do func()) mcp.Middleware {
	return func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			res, err := next(ctx, method, req)
			if method == "initialize" {
				do()
			}
			return res, err
		}
	}
}

// A client that leaves while its handshake is carried out leaves no session behind that nobody can
// reach, and neither takes room nor makes any that is not there.
func TestLeftHandshake(t *testing.T) {
	const room, leavers = 2, 10
	begun, over, goOn := make(chan struct{}, 100), make(chan struct{}, 100), make(chan struct{})
	r := newRig(t, func(o *httpd.Options) {
		o.MaxSessions = room
		open := o.Open
		o.Open = func(in httpd.Opening) (httpd.Session, error) {
			s, err := open(in)
			return &slowOpening{Session: s, begun: begun, over: over, goOn: goOn}, err
		}
	})
	for range leavers {
		ctx, cancel := context.WithCancel(t.Context())
		left := make(chan struct{})
		go func() {
			defer close(left)
			r.server.Handler().ServeHTTP(httptest.NewRecorder(), r.client().request(ctx, "POST", initialize, "Mcp-Protocol-Version", ""))
		}()
		within(t, "a handshake", begun)
		cancel()
		within(t, "the end of a request", left)
	}
	close(goOn)
	for range leavers {
		within(t, "the end of a handshake", over)
	}
	if opened := r.log.lines("session opened"); len(opened) > 0 {
		t.Errorf("%d sessions were opened for clients that had left", len(opened))
	}
	for _, f := range r.opened {
		if !f.ended.Load() {
			t.Error("a session has not ended")
		}
	}
	for range room {
		r.client().open().call("own", `{}`)
	}
	if p := r.client().post(initialize, "Mcp-Protocol-Version", ""); p.status != 429 {
		t.Errorf("one more than there is room for: %d %s", p.status, p.body)
	}
}
