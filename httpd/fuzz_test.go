package httpd_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// handle has the server answer a request without a network. One that streams ends soon.
func (r *rig) handle(req *http.Request) *httptest.ResponseRecorder {
	ctx, cancel := context.WithTimeout(req.Context(), 100*time.Millisecond)
	defer cancel()
	rec := httptest.NewRecorder()
	r.server.Handler().ServeHTTP(rec, req.WithContext(ctx))
	return rec
}

// sound fails the test when an answer is none of this protocol.
func sound(t *testing.T, rec *httptest.ResponseRecorder) {
	t.Helper()
	switch rec.Code {
	case 200, 202, 204, 400, 401, 403, 404, 405, 406, 408, 409, 413, 415, 429, 503:
	default:
		t.Fatalf("status %d: %s", rec.Code, rec.Body)
	}
	if rec.Code < 400 {
		return
	}
	var m struct {
		Version string `json:"jsonrpc"`
		Error   *struct{ Code int }
	}
	if err := json.Unmarshal(rec.Body.Bytes(), &m); err != nil || m.Version != "2.0" || m.Error == nil || m.Error.Code >= 0 {
		t.Fatalf("status %d: no error of JSON-RPC: %s", rec.Code, rec.Body)
	}
}

// Whatever the head of a request says, nobody gets in without a token, and no answer is
// out of order.
func FuzzHead(f *testing.F) {
	f.Add("POST", "/mcp", "Bearer "+right, "", "localhost", "", "", "")
	f.Add("GET", "/mcp", "", right, "evil.example", "http://evil.example", "x", modern)
	f.Add("DELETE", "/healthz", "bearer", " ", "[::1", "null", "AAAA", "9999")
	f.Add("OPTIONS", "*", "Basic x", right+"x", "localhost:1:2", "http://[", "\x00", "2025-03-26, 2026-07-28")
	r := newRig(f)
	f.Fuzz(func(t *testing.T, method, path, authorization, own, host, origin, session, version string) {
		req, err := http.NewRequest(method, "http://localhost/", strings.NewReader(ping))
		if err != nil {
			t.Skip("no method")
		}
		req.URL.Path, req.Host = path, host
		for k, v := range map[string]string{"Authorization": authorization, "X-Smol-Mcp-Token": own, "Origin": origin, "Mcp-Session-Id": session, "Mcp-Protocol-Version": version, "X-Request-Id": path} {
			if v != "" {
				req.Header[http.CanonicalHeaderKey(k)] = []string{v}
			}
		}
		req.Header.Set("Accept", "application/json, text/event-stream")
		req.Header.Set("Content-Type", "application/json")
		shown := strings.Contains(authorization, right) || strings.Contains(own, right) || strings.Contains(authorization+own, "the-right-token-of-b")
		rec := r.handle(req)
		sound(t, rec)
		if !shown && rec.Code != 401 {
			t.Fatalf("without a token: %d %s", rec.Code, rec.Body)
		}
		if id := rec.Header().Get("X-Request-Id"); id == "" || len(id) > 64 || strings.ContainsAny(id, "\r\n\" ") {
			t.Fatalf("the request's id is %q", id)
		}
	})
}

// Whatever is sent, with a session or without, is answered, and the session goes on.
func FuzzBody(f *testing.F) {
	for _, body := range []string{
		ping, initialize, discover, "[" + ping + "," + ping + "]", `{"jsonrpc":"2.0","id":1,"result":{}}`, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":null,"_meta":{"progressToken":1e99}}}`,
		`{"jsonrpc":"2.0","id":"x","method":"resources/subscribe","params":{"uri":"smol://machine/local/x/logs"}}`, `{"jsonrpc":"2.0","id":1,"METHOD":"ping"}`, "", "[", "[[]]", "null", `"x"`, "\xff",
	} {
		for way := range byte(3) {
			f.Add(way, body)
		}
	}
	r := newRig(f)
	c := r.client().open()
	f.Fuzz(func(t *testing.T, way byte, body string) {
		if strings.Contains(body, "work") || strings.Contains(body, "fail") {
			t.Skip("tools that are meant to wait or to panic")
		}
		who := *c
		var headers []string
		switch way % 3 {
		case 1:
			who.session, who.version = "", ""
		case 2:
			who.session, who.version = "", modern
			headers = []string{"Mcp-Method", "tools/call", "Mcp-Name", "echo"}
		}
		sound(t, r.handle(who.request(t.Context(), "POST", body, headers...)))
		if rec := r.handle(c.request(t.Context(), "POST", ping)); rec.Code != 200 {
			t.Fatalf("the session afterwards: %d %s", rec.Code, rec.Body)
		}
	})
}

// Sessions of two principals are opened, used and ended in any order: each is there for its own
// principal, from its handshake to its end.
func FuzzSessions(f *testing.F) {
	f.Add([]byte{0, 1, 16, 33, 50, 17, 0})
	f.Add([]byte{0, 48, 16, 0, 0, 49, 50, 18, 35, 1, 64, 81})
	f.Fuzz(func(t *testing.T, steps []byte) {
		r := newRig(t)
		tokens := []string{right, "the-right-token-of-b"}
		type session struct {
			owner int
			id    string
			ended bool
		}
		var all []*session
		for _, step := range steps[:min(len(steps), 40)] {
			who := int(step) & 1
			c := &client{rig: r, token: tokens[who], version: legacy}
			if step>>4&3 == 0 || len(all) == 0 {
				c.version = ""
				rec := r.handle(c.request(t.Context(), "POST", initialize))
				if rec.Code != 200 {
					t.Fatalf("initialize: %d %s", rec.Code, rec.Body)
				}
				all = append(all, &session{owner: who, id: rec.Header().Get("Mcp-Session-Id")})
				continue
			}
			s := all[int(step>>1&7)%len(all)]
			c.session = s.id
			method, want := []string{"POST", "DELETE", "POST"}[step>>4&3-1], map[string]int{"POST": 200, "DELETE": 204}
			status := want[method]
			if s.owner != who || s.ended {
				status = 404
			}
			rec := r.handle(c.request(t.Context(), method, ping))
			if rec.Code != status {
				t.Fatalf("%s of session %d by %d: %d %s, want %d", method, s.owner, who, rec.Code, rec.Body, status)
			}
			s.ended = s.ended || method == "DELETE" && status == 204
		}
	})
}
