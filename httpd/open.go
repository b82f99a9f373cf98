package httpd

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// An opening is a session with a handshake that may come of a request. The SDK may ask
// for its server several times, or not at all.
type opening struct {
	server *Server
	token  Token

	once    sync.Once
	session Session
	err     error

	mu      sync.Mutex
	entered bool // in the table of sessions
	settled bool // its request is over: it can be entered no more
}

// get makes the session at the first call.
func (o *opening) get() (Session, error) {
	o.once.Do(func() {
		o.session, o.err = o.server.opts.Open(Opening{Token: o.token, Kind: "http", Current: o.server.current(o.token), Lease: o.server.leaseOf(o.token)})
		if o.err == nil {
			o.session.Server().AddReceivingMiddleware(o.server.watch(o.token, o.session), o.enter)
		}
	})
	return o.session, o.err
}

// enter enters the session in the table once its handshake has succeeded: then it has
// an id.
func (o *opening) enter(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		res, err := next(ctx, method, req)
		if method != "initialize" || err != nil {
			return res, err
		}
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.entered {
			return res, nil
		}
		client, ok := req.GetSession().(*mcp.ServerSession)
		if !ok || o.settled || !o.server.sessions.add(&entry{token: o.token, session: o.session, id: client.ID(), client: client}) {
			return nil, errClosing
		}
		o.entered = true
		o.server.opts.Log.Info("session opened", "principal", o.token.Name, "session", short(client.ID()), "client", clientName(client))
		return res, nil
	}
}

var errClosing = errors.New("the server is shutting down")

// settle gives back the room for a session, and drops what was made of it, unless there
// is one now. A client that left may have left its handshake behind, still at work.
func (o *opening) settle() {
	o.mu.Lock()
	o.settled = true
	entered := o.entered
	o.mu.Unlock()
	if entered {
		return
	}
	o.server.sessions.free(o.token.Name)
	if o.session == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if _, err := o.session.End(ctx); err != nil {
		o.server.opts.Log.Warn("end of a session that was not opened", "err", err)
	}
}

// current is how sessions of a token get at its limits: those of its last state when it
// is gone, since its sessions are about to end.
func (s *Server) current(token Token) func() Token {
	return func() Token {
		if now, ok := s.opts.Tokens.named(token.Name); ok {
			return now
		}
		return token
	}
}

// leaseOf is how sessions of a principal get at its lease.
func (s *Server) leaseOf(token Token) func(make bool) Session {
	current := s.current(token)
	return func(make bool) Session {
		e, err := s.lease(current(), make)
		if err != nil {
			s.opts.Log.Warn("no lease", "principal", token.Name, "err", err)
		}
		if e == nil {
			return nil
		}
		return e.session
	}
}

// lease is the lease of a token's principal; nil without an error when there is none
// and none is to be made. One that began with other targets is ended.
func (s *Server) lease(token Token, make bool) (*entry, error) {
	t := &s.sessions
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.of(token.Name)
	if old := p.lease; old != nil && !t.closed && old.token.moved(token) {
		old.why = "token"
		t.remove(old)
		t.server.ending.Add(1)
		go func() { _ = s.end(context.Background(), old) }() // counted above; it tells the log
	}
	switch {
	case t.closed:
		return nil, errClosing
	case p.lease != nil || !make:
		return p.lease, nil
	}
	session, err := s.opts.Open(Opening{Token: token, Kind: "stateless", Current: s.current(token)})
	if err != nil {
		return nil, err
	}
	session.Server().AddReceivingMiddleware(s.watch(token, session))
	p.used = time.Now()
	p.lease = &entry{token: token, principal: p, session: session, asked: p.used}
	return p.lease, nil
}

// end ends a session that was taken out of the table. It returns when its end is known
// and clears up in the background.
func (s *Server) end(ctx context.Context, e *entry) error {
	clean, err := s.finish(ctx, e)
	go func() { // counted by whoever took it out
		defer s.ending.Done()
		ctx, cancel := context.WithTimeout(context.Background(), s.opts.CleanTime)
		defer cancel()
		s.clear(ctx, e, clean)
	}()
	return err
}

// clear clears up what a session left, together with few others at a time.
func (s *Server) clear(ctx context.Context, e *entry, clean func(context.Context) error) error {
	select {
	case s.clearing <- struct{}{}:
		defer func() { <-s.clearing }()
	case <-ctx.Done():
	}
	err := clean(ctx)
	if err != nil {
		s.opts.Log.Warn("not all that a session left is gone yet", "principal", e.token.Name, "session", e.label(), "err", err)
	}
	return err
}

// finish makes the end of a session known, and closes its streams.
func (s *Server) finish(ctx context.Context, e *entry) (clean func(context.Context) error, err error) {
	clean, err = e.session.End(ctx)
	s.opts.Log.Info("session ended", "principal", e.token.Name, "session", e.label(), "why", e.why)
	if err != nil {
		s.opts.Log.Error("the end of a session is not on record", "principal", e.token.Name, "session", e.label(), "err", err)
	}
	if e.client != nil {
		s.ending.Go(func() { _ = e.client.Close() }) // says only how the streams ended
	}
	return clean, err
}

// endAll ends all sessions at once: first their ends are made known, then what they left is
// cleared up.
func (s *Server) endAll(ctx context.Context) error {
	all := s.sessions.takeAll()
	cleans := make([]func(context.Context) error, len(all))
	errs := make([]error, len(all))
	var ends sync.WaitGroup
	for i, e := range all {
		ends.Go(func() { cleans[i], errs[i] = s.finish(ctx, e) })
	}
	ends.Wait()
	for i, clean := range cleans {
		ends.Go(func() { errs[i] = errors.Join(errs[i], s.clear(ctx, all[i], clean)) })
	}
	ends.Wait()
	s.ending.Wait()
	return errors.Join(errs...)
}

// label is the entry's name in a log.
func (e *entry) label() string {
	if e.client == nil {
		return "lease"
	}
	return short(e.id)
}

// short is enough of a session's id to tell it from others in a log, and not enough to
// use it.
func short(id string) string { return id[:min(len(id), 8)] }

func clientName(client *mcp.ServerSession) string {
	if p := client.InitializeParams(); p != nil && p.ClientInfo != nil {
		name := p.ClientInfo.Name + " " + p.ClientInfo.Version
		return name[:min(len(name), 80)]
	}
	return ""
}
