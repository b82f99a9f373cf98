package httpd

import (
	"crypto/rand"
	"encoding/hex"
	mathrand "math/rand/v2"
	"net/http"
	"strings"
	"time"
)

// maxRefused is how many wrong tokens wait for their answer at once. Those beyond are
// answered at once: they must not fill the server.
const maxRefused = 64

// maxCandidates is how many tokens of one request are tried.
const maxCandidates = 4

// TokenHeader carries a token where Authorization is taken by somebody else.
const TokenHeader = "X-Smol-Mcp-Token"

// candidates are the tokens that a request shows: one that is right is enough.
func candidates(h http.Header) []string {
	var all []string
	for _, v := range h.Values(TokenHeader) {
		all = append(all, strings.TrimSpace(v))
	}
	for _, v := range h.Values("Authorization") {
		scheme, token, _ := strings.Cut(strings.TrimSpace(v), " ")
		if strings.EqualFold(scheme, "Bearer") {
			all = append(all, strings.TrimSpace(token))
		}
	}
	shown := all[:0]
	for _, token := range all {
		if token != "" && len(token) <= maxToken && len(shown) < maxCandidates {
			shown = append(shown, token)
		}
	}
	return shown
}

// authorize finds the token of a request. Without one it answers, after a while, and
// lets go of the connection without reading any more of it.
func (s *Server) authorize(w http.ResponseWriter, r *http.Request) (Token, bool) {
	s.opts.Tokens.refresh(s.opts.Log)
	shown := candidates(r.Header)
	token, ok := s.opts.Tokens.find(shown)
	if !ok && len(shown) > 0 {
		s.opts.Tokens.renew(s.opts.Log)
		token, ok = s.opts.Tokens.find(shown)
	}
	if ok && !s.agree(shown, token) {
		s.refuse(w, r, http.StatusBadRequest, codeInvalid, "two tokens", "the request shows tokens of two clients of this server: send only one of them, as Authorization: Bearer or "+TokenHeader)
		return Token{}, false
	}
	if ok {
		return token, true
	}
	why := "no token"
	if len(shown) > 0 {
		why = "wrong token"
	}
	s.delay(r)
	w.Header().Set("Connection", "close")
	w.Header().Set("WWW-Authenticate", `Bearer realm="smol-mcp"`)
	s.refuse(w, r, http.StatusUnauthorized, codeUnauthorized, why, "unauthorized: send a token of this server as Authorization: Bearer or "+TokenHeader)
	return Token{}, false
}

// agree reports whether all tokens of a request that are right are the same one. A request
// of two clients has nobody whose machines it could be about.
func (s *Server) agree(shown []string, token Token) bool {
	for _, text := range shown {
		if other, ok := s.opts.Tokens.find([]string{text}); ok && other.Name != token.Name {
			return false
		}
	}
	return true
}

// delay makes guessing slow, for as many as there are places.
func (s *Server) delay(r *http.Request) {
	select {
	case s.refused <- struct{}{}:
	default:
		return
	}
	defer func() { <-s.refused }()
	// How long is not told by whether the token was nearly right.
	timer := time.NewTimer(s.opts.FailDelay/2 + mathrand.N(s.opts.FailDelay))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-r.Context().Done():
	}
}

// requestID is the client's name for a request, where it is a plain one, else a new one.
func requestID(h http.Header) string {
	id := h.Get("X-Request-Id")
	odd := func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("._-", r)
	}
	if id != "" && len(id) <= 64 && !strings.ContainsFunc(id, odd) {
		return id
	}
	b := make([]byte, 8)
	if _, err := rand.Read(b); err != nil {
		panic("httpd: the system gives no random bytes: " + err.Error())
	}
	return hex.EncodeToString(b)
}
