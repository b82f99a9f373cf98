package httpd

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// The headers of the transport.
const (
	sessionHeader = "Mcp-Session-Id"
	versionHeader = "Mcp-Protocol-Version"
	methodHeader  = "Mcp-Method"
	listenMethod  = "subscriptions/listen"
)

// HealthPath answers the holder of a token without a session.
const HealthPath = "/healthz"

// headTime is how long a client may be silent before its request is authorized and
// its body is begun.
const headTime = 5 * time.Second

// Handler answers all requests. Its errors are JSON-RPC errors, each with a status.
func (s *Server) Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() { // net/http would only tell its own log, which is full of clients' mistakes
			if p := recover(); p != nil && p != http.ErrAbortHandler {
				s.opts.Log.Error("panic in a handler", "panic", p, "stack", string(debug.Stack()))
				panic(http.ErrAbortHandler)
			}
		}()
		s.serve(w, r)
	})
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	id := requestID(r.Header)
	r.Header.Set("X-Request-Id", id) // the session's log finds it there
	w.Header().Set("X-Request-Id", id)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	// What is left of a refused request is not waited for.
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(headTime))
	token, ok := s.authorize(w, r)
	if !ok || !s.checkHost(w, r) {
		return
	}
	switch {
	case r.URL.Path == s.opts.Path:
	case r.URL.Path == HealthPath && (r.Method == http.MethodGet || r.Method == http.MethodHead):
		s.health(w)
		return
	default:
		s.refuse(w, r, http.StatusNotFound, codeNotFound, "path", "not found: the MCP endpoint of this server is "+s.opts.Path)
		return
	}
	news := r.Method == http.MethodGet || r.Header.Get(methodHeader) == listenMethod
	size := min(r.ContentLength, s.opts.MaxBody)
	if size < 0 { // it will tell
		size = s.opts.MaxBody
	}
	in, a := s.sessions.begin(token.Name, news, size)
	if a != admitted {
		s.turnAway(w, r, a)
		return
	}
	defer s.sessions.done(in)
	s.route(w, r, token, in)
}

// turnAway answers a request for which there is no room, no session or no server.
func (s *Server) turnAway(w http.ResponseWriter, r *http.Request, a admission) {
	switch a {
	case tooMuch:
		w.Header().Set("Retry-After", "1")
		s.refuse(w, r, http.StatusTooManyRequests, codeBusy, "too many requests",
			"this token has as many requests running as it may, or their bodies are too large together; wait until some have ended")
	case full:
		w.Header().Set("Retry-After", "10")
		s.refuse(w, r, http.StatusTooManyRequests, codeBusy, "too many sessions",
			fmt.Sprintf("this token has %d sessions, which is the limit, and each is at work or has machines; end some with DELETE", s.opts.MaxSessions))
	case notThere:
		s.refuse(w, r, http.StatusNotFound, codeNoSession, "no session", "session not found: it has ended, or was never opened with this token; send initialize to open one")
	case closing:
		w.Header().Set("Connection", "close")
		s.refuse(w, r, http.StatusServiceUnavailable, codeBusy, "closing", errClosing.Error())
	}
}

// health tells that the server lives.
func (s *Server) health(w http.ResponseWriter) {
	sessions, leases := s.sessions.counts()
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_ = json.NewEncoder(w).Encode(struct { // nobody to tell
		Status   string `json:"status"`
		Version  string `json:"version"`
		Sessions int    `json:"sessions"`
		Leases   int    `json:"leases"`
		UpSecs   int    `json:"upSecs"`
	}{"ok", s.opts.Version, sessions, leases, int(time.Since(s.began).Seconds())})
}

// route reads the body and finds out which of the two ways of the protocol a request goes.
func (s *Server) route(w http.ResponseWriter, r *http.Request, token Token, in *passage) {
	var sum summary
	if r.Method == http.MethodPost {
		body, ok := s.readBody(w, r)
		if !ok {
			return
		}
		s.sessions.fit(in, int64(len(body)))
		var code int
		var err error
		if sum, code, err = examine(body); err != nil {
			s.refuse(w, r, http.StatusBadRequest, code, "body", err.Error())
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		if r.Header.Get(versionHeader) == "" && r.Header.Get(sessionHeader) == "" && metaVersion(body) >= FirstModern {
			sum.modern = true // it forgot to say so in the header, and is to hear of that
		}
	} else {
		r.Body = http.NoBody
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	}
	id, version := r.Header.Get(sessionHeader), r.Header.Get(versionHeader)
	switch {
	case version != "" && !isRevision(version) && !sum.modern && id != "": // the body says what a request without a session is of
		s.refuse(w, r, http.StatusBadRequest, codeInvalid, "version",
			"Bad Request: Unsupported protocol version (supported versions: "+strings.Join(mcp.SupportedProtocolVersions(), ",")+")")
	case version >= FirstModern || sum.modern:
		s.serveModern(w, r, token, sum)
	case id != "" && r.Method == http.MethodDelete:
		s.serveDelete(w, r, token, id)
	case id != "":
		s.serveSession(w, r, token, id, sum)
	case r.Method == http.MethodPost:
		s.serveFirst(w, r, token, sum)
	case r.Method == http.MethodGet || r.Method == http.MethodDelete:
		s.refuse(w, r, http.StatusBadRequest, codeInvalid, "no session", sessionHeader+" is missing: send initialize first")
	default:
		w.Header().Set("Allow", "GET, POST, DELETE")
		s.refuse(w, r, http.StatusMethodNotAllowed, codeBusy, "method", "use POST, GET or DELETE")
	}
}

// isRevision reports whether a version has the form of a revision of the protocol: a day.
// Only of those it can be told which of two is the later one.
func isRevision(version string) bool {
	_, err := time.Parse(time.DateOnly, version)
	return err == nil
}

// serveModern serves a request of the revisions without sessions, on the principal's lease.
func (s *Server) serveModern(w http.ResponseWriter, r *http.Request, token Token, sum summary) {
	e, err := s.lease(token, true)
	switch {
	case errors.Is(err, errClosing):
		s.turnAway(w, r, closing)
		return
	case err != nil:
		s.refuse(w, r, http.StatusForbidden, codeForbidden, "not opened", err.Error())
		return
	}
	s.answer(w, bind(r, e.session.Server), s.modern, sum)
}

// serveSession serves a request of an open session.
func (s *Server) serveSession(w http.ResponseWriter, r *http.Request, token Token, id string, sum summary) {
	if sum.method == "initialize" {
		s.refuse(w, r, http.StatusBadRequest, codeInvalid, "initialize", "initialize opens a session, and has no "+sessionHeader)
		return
	}
	counts := r.Method == http.MethodPost
	e, a := s.sessions.use(token, id, counts)
	if a == moved {
		_ = s.end(r.Context(), e) // it tells the log
		a = notThere
	}
	if a != admitted {
		s.turnAway(w, r, a)
		return
	}
	if counts {
		defer s.sessions.leave(e)
	}
	s.answer(w, bind(r, e.session.Server), s.handshake, sum)
}

// serveDelete ends a session at its client's wish. The answer comes when the end is on
// record; what the session owned is cleared up behind it.
func (s *Server) serveDelete(w http.ResponseWriter, r *http.Request, token Token, id string) {
	e, a := s.sessions.take(token.Name, id)
	if a != admitted {
		s.turnAway(w, r, a)
		return
	}
	if err := s.end(r.Context(), e); err != nil {
		s.refuse(w, r, http.StatusInternalServerError, codeBusy, "end", "the session has ended, but that could not be recorded; what it leaves is being deleted all the same")
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// serveFirst serves a request without a session, which has to open one.
func (s *Server) serveFirst(w http.ResponseWriter, r *http.Request, token Token, sum summary) {
	if sum.method != "initialize" {
		s.refuse(w, r, http.StatusBadRequest, codeInvalid, "no session", sessionHeader+" is missing: send initialize first, and then what it answers in that header")
		return
	}
	out, a := s.sessions.reserve(token.Name)
	if out != nil {
		_ = s.end(r.Context(), out) // it tells the log
	}
	if a != admitted {
		s.turnAway(w, r, a)
		return
	}
	o := &opening{server: s, token: token}
	defer o.settle()
	session, err := o.get()
	if err != nil {
		s.refuse(w, r, http.StatusForbidden, codeForbidden, "not opened", err.Error())
		return
	}
	sum.opens = true
	s.answer(w, bind(r, session.Server), s.handshake, sum)
}

// answer lets the SDK answer, by way of a stream. What it says in plain text is said again
// as an error of the protocol.
func (s *Server) answer(w http.ResponseWriter, r *http.Request, sdk http.Handler, sum summary) {
	out := openStream(w, s.opts.WriteTime, s.opts.Log)
	out.opening = sum.opens
	stop := make(chan struct{})
	var beats sync.WaitGroup
	beats.Go(func() { out.keepAlive(s.opts.KeepAlive, stop) })
	sdk.ServeHTTP(out, r)
	close(stop)
	beats.Wait()
	status, text := out.heldError()
	if status == 0 {
		return
	}
	if allow := out.header.Get("Allow"); allow != "" {
		w.Header().Set("Allow", allow)
	}
	code := codeInvalid
	switch {
	case status == http.StatusNotFound:
		code = codeNoSession
	case status == http.StatusBadRequest && sum.method != "" && sum.id != nil && !isKnown(sum.method):
		// The client asked for what is not there; its request is not at fault.
		writeError(w, http.StatusOK, sum.id, codeUnknownMethod, "method not found: "+sum.method[:min(len(sum.method), 200)])
		return
	}
	s.refuse(w, r, status, code, "protocol", strings.ToValidUTF8(text, "?"))
}

// clientOf names the session of a request for a log; empty for one without.
func clientOf(req mcp.Request) string {
	if client, ok := req.GetSession().(*mcp.ServerSession); ok && client != nil {
		return short(client.ID())
	}
	return ""
}
