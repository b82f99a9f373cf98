package httpd

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"
)

// Codes of our own refusals, in the range that is left to implementations, and those
// of JSON-RPC.
const (
	codeBusy         = -32000 // too much at once, or the wrong method
	codeUnauthorized = -32001
	codeNoSession    = -32001 // one is told from the other by the status
	codeForbidden    = -32003
	codeNotFound     = -32004
	codeTooLarge     = -32005

	codeParse         = -32700
	codeInvalid       = -32600
	codeUnknownMethod = -32601
)

var (
	errNoHost   = errors.New("not a host name or address, with or without a port")
	errNoOrigin = errors.New("not an origin, as https://app.example")
)

// refuse answers a request that no session sees, and notes it in the access log with
// a word for why.
func (s *Server) refuse(w http.ResponseWriter, r *http.Request, status, code int, why, message string) {
	if left, ok := s.refusals.pass(time.Now()); ok {
		log := s.opts.Log
		if left > 0 {
			log = log.With("unlogged", left)
		}
		log.Info("refused", "request", w.Header().Get("X-Request-Id"), "remote", r.RemoteAddr, "method", r.Method, "status", status, "why", why)
	}
	writeError(w, status, nil, code, message)
}

// writeError answers with a JSON-RPC error; id is its JSON, null
// when nil.
func writeError(w http.ResponseWriter, status int, id json.RawMessage, code int, message string) {
	if id == nil {
		id = json.RawMessage("null")
	}
	text, _ := json.Marshal(message) // a string never fails
	body := fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"error":{"code":%d,"message":%s}}`+"\n", id, code, text)
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write(body) // nobody to tell
}

// A brake bounds how many lines a second come of what anybody can cause.
type brake struct {
	mu     sync.Mutex
	second time.Time
	passed int
	left   int // not passed since the last that was
}

const linesPerSecond = 20

// pass reports whether one more may be written now, and how many were not before it.
func (b *brake) pass(now time.Time) (left int, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if now.Sub(b.second) >= time.Second {
		b.second, b.passed = now, 0
	}
	if b.passed >= linesPerSecond {
		b.left++
		return 0, false
	}
	b.passed++
	left, b.left = b.left, 0
	return left, true
}
