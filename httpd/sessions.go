package httpd

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// sessions are those that are open, and what each principal has going on.
//
// A session ends when no request of it runs, it is not busy, and that has been so
// for the idle time. An open stream of news, which is a GET or a listen, is no request
// in this sense: it shows that a client is connected, not that it wants something.
// A principal's lease ends when that holds for all that the principal has.
type sessions struct {
	server *Server

	mu         sync.Mutex
	byID       map[string]*entry // of sessions with a handshake
	principals map[string]*principal
	closed     bool
}

// An entry is an open session.
type entry struct {
	token     Token
	principal *principal
	session   Session
	id        string             // of the protocol; empty for a lease
	client    *mcp.ServerSession // nil for a lease
	why       string             // it ends

	// guarded by sessions.mu
	open  int       // requests that run
	used  time.Time // when the last one ended, or what it left to do was last seen to go on
	asked time.Time // when its client last asked for something, or it was reviewed
}

// A principal is all that one token has.
type principal struct {
	name  string
	lease *entry
	count int   // sessions with a handshake, also those that are being opened
	open  int   // requests that keep the lease
	news  int   // requests that only wait for news
	bytes int64 // of the bodies of requests
	used  time.Time
}

func newSessions(s *Server) sessions {
	return sessions{server: s, byID: map[string]*entry{}, principals: map[string]*principal{}}
}

// of is the principal of that name. sessions.mu is held.
func (t *sessions) of(name string) *principal {
	p := t.principals[name]
	if p == nil {
		p = &principal{name: name, used: time.Now()}
		t.principals[name] = p
	}
	return p
}

// admission is what a request is answered with in place of its admission.
type admission int

const (
	admitted admission = iota
	tooMuch            // of the principal's requests at once
	notThere           // the session, or not the principal's
	closing            // the server ends
	full               // no room for another session
	moved              // the session is out, since its token is for other targets now
)

// A passage is a request of a principal that has been let in.
type passage struct {
	principal *principal
	news      bool  // it only waits for news
	size      int64 // of its body, in bytes
}

// begin counts a request of a principal, with a body of so many bytes, until done. One that
// only waits for news keeps nothing, and is counted apart.
func (t *sessions) begin(name string, news bool, size int64) (*passage, admission) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.of(name)
	switch {
	case t.closed:
		return nil, closing
	case news && p.news >= t.server.opts.MaxSessions, !news && p.open >= t.server.opts.MaxRequests, p.bytes+size > t.server.opts.MaxBodies:
		return nil, tooMuch
	case news:
		p.news++
	default:
		p.open++
	}
	p.bytes += size
	return &passage{p, news, size}, admitted
}

// fit corrects the size of a body that is known by now.
func (t *sessions) fit(in *passage, size int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	in.principal.bytes += size - in.size
	in.size = size
}

func (t *sessions) done(in *passage) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := in.principal
	p.bytes -= in.size
	if in.news {
		p.news--
		return
	}
	p.open--
	p.used = time.Now()
}

// use finds a session of the principal of a token. With counts the request keeps it until
// leave. One that is answered with moved is taken out, to be ended.
func (t *sessions) use(token Token, id string, counts bool) (*entry, admission) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.byID[id]
	switch {
	case t.closed:
		return nil, closing
	case e == nil || e.principal.name != token.Name:
		return nil, notThere
	case e.token.moved(token):
		e.why = "token"
		t.remove(e)
		t.server.ending.Add(1)
		return e, moved
	}
	if counts {
		e.open++
	}
	return e, admitted
}

func (t *sessions) leave(e *entry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e.open--
	e.used = time.Now()
	e.asked = e.used
}

// reserve makes room for one more session of a principal: at the limit, by the end of the one
// that is idle for the longest and that nobody would miss. That one is returned, to be ended.
func (t *sessions) reserve(name string) (out *entry, a admission) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.of(name)
	if t.closed {
		return nil, closing
	}
	if p.count >= t.server.opts.MaxSessions {
		for _, e := range t.byID {
			if e.principal == p && e.open == 0 && !e.session.Owns() && !e.session.Busy() && (out == nil || e.used.Before(out.used)) {
				out = e
			}
		}
		if out == nil {
			return nil, full
		}
		out.why = "room for another"
		t.remove(out)
		t.server.ending.Add(1)
	}
	p.count++
	return out, admitted
}

// free gives back the room of a session that was not opened.
func (t *sessions) free(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.of(name).count--
}

// add enters a session for which there is room; false when the server ends.
func (t *sessions) add(e *entry) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return false
	}
	e.principal = t.of(e.token.Name)
	e.used = time.Now()
	e.asked = e.used
	t.byID[e.id] = e
	return true
}

// take takes out the session of a principal that its client ends. Like all that are
// taken out one by one, it is counted in [Server.ending] until it is ended.
func (t *sessions) take(name, id string) (*entry, admission) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.byID[id]
	switch {
	case t.closed:
		return nil, closing
	case e == nil || e.principal.name != name:
		return nil, notThere
	}
	e.why = "its client"
	t.remove(e)
	t.server.ending.Add(1)
	return e, admitted
}

// remove takes a session out of the table, in which it is.
func (t *sessions) remove(e *entry) {
	if e.client == nil {
		e.principal.lease = nil
		return
	}
	delete(t.byID, e.id)
	e.principal.count--
}

// due takes out the sessions whose time is up, and those whose token is gone or for other
// targets than before. Beside them it returns those that would be due if they were not busy: it is
// time to look whether they are. Both are counted in [Server.ending].
func (t *sessions) due(now time.Time) (due, doubtful []*entry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	idle := t.server.opts.Idle
	busy := func(e *entry) {
		e.used, e.principal.used = now, now
		if e.open == 0 && now.Sub(e.asked) >= idle {
			e.asked = now
			doubtful = append(doubtful, e)
			t.server.ending.Add(1)
		}
	}
	for _, e := range t.byID {
		if e.session.Busy() {
			busy(e)
		}
		switch {
		case t.revoked(e):
			e.why = "token"
		case e.open == 0 && now.Sub(e.used) >= idle:
			e.why = "idle"
		default:
			continue
		}
		due = append(due, e)
	}
	for name, p := range t.principals {
		e := p.lease
		if e != nil && e.session.Busy() {
			busy(e)
		}
		quiet := p.open == 0 && now.Sub(p.used) >= idle
		switch {
		case e != nil && t.revoked(e):
			e.why = "token"
		case e != nil && quiet:
			e.why = "idle"
		case e == nil && quiet && p.count == 0 && p.news == 0:
			delete(t.principals, name)
			continue
		default:
			continue
		}
		due = append(due, e)
	}
	for _, e := range due {
		t.remove(e)
		t.server.ending.Add(1)
	}
	return due, doubtful
}

// revoked reports whether a session's token is gone, or for other targets.
func (t *sessions) revoked(e *entry) bool {
	now, ok := t.server.opts.Tokens.named(e.token.Name)
	return !ok || e.token.moved(now)
}

// takeAll takes out all sessions for good.
func (t *sessions) takeAll() []*entry {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	all := slices.Collect(maps.Values(t.byID))
	for _, p := range t.principals {
		if p.lease != nil {
			all = append(all, p.lease)
		}
	}
	for _, e := range all {
		e.why = "the server ends"
		t.remove(e)
	}
	return all
}

// counts are the numbers of sessions and of leases.
func (t *sessions) counts() (sessions, leases int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.principals {
		if p.lease != nil {
			leases++
		}
	}
	return len(t.byID), leases
}
