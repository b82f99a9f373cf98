package tools

import (
	"context"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"smol-mcp/fleet"
	"smol-mcp/store"
)

// consoleStream is the name under which the store keeps how far a console is read.
const consoleStream = "console"

// longestFollowPause bounds the pause between looks at a log that cannot be read.
const longestFollowPause = time.Minute

// followers are the logs that the clients of a session have subscribed to, each
// with one goroutine, so looks never overlap. A lease has several clients.
type followers struct {
	mu      sync.Mutex
	running map[string]*follower // by address
}

type follower struct {
	target  string
	cancel  context.CancelFunc
	clients map[*mcp.ServerSession]bool // who is told
}

// begin reports whether uri is not followed yet, and notes that it is by new from
// now on. Either way client is told.
func (f *followers) begin(uri string, new *follower, client *mcp.ServerSession) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now := f.running[uri]; now != nil {
		now.clients[client] = true
		return false
	}
	if f.running == nil {
		f.running = map[string]*follower{}
	}
	new.clients = map[*mcp.ServerSession]bool{client: true}
	f.running[uri] = new
	return true
}

// end ends following uri by that follower.
func (f *followers) end(uri string, that *follower) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.running[uri] == that {
		that.cancel()
		delete(f.running, uri)
	}
}

// leave ends following uri when client was the last to be told.
func (f *followers) leave(uri string, client *mcp.ServerSession) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.running[uri]
	if now == nil {
		return
	}
	if delete(now.clients, client); len(now.clients) == 0 {
		now.cancel()
		delete(f.running, uri)
	}
}

// endOthers ends following what is not in that fleet.
func (f *followers) endOthers(target string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for uri, now := range f.running {
		if now.target != target {
			now.cancel()
			delete(f.running, uri)
		}
	}
}

// subscribe begins to follow a machine's log. It fails where the log cannot be
// read; what fails later is tried again.
func (s *Session) subscribe(ctx context.Context, req *mcp.SubscribeRequest) error {
	uri := req.Params.URI
	one, machine, rest, err := s.parseURI(uri)
	if err == nil && rest != "logs" {
		err = &fleet.Error{Code: fleet.CodeUnsupported, Op: "subscribe to " + fleet.Quote(uri), Why: "only logs can be followed", Next: "subscribe to " + logsTemplate}
	}
	if err != nil {
		return resourceError(err)
	}
	rec, cursor, err := s.place(ctx, one, machine)
	if err != nil {
		return resourceError(err)
	}
	following, cancel := context.WithCancel(s.over)
	if !s.follows.begin() {
		cancel()
		return resourceError(errSessionOver)
	}
	this := &follower{target: one.fleet.Target(), cancel: cancel}
	if !s.followed.begin(uri, this, req.Session) {
		s.follows.done()
		cancel()
		return nil
	}
	go func() {
		defer s.follows.done()
		defer s.followed.end(uri, this)
		_ = s.guard(func() error { s.follow(following, one, uri, rec, machine, cursor); return nil })
	}()
	return nil
}

func (s *Session) unsubscribe(_ context.Context, req *mcp.UnsubscribeRequest) error {
	s.followed.leave(req.Params.URI, req.Session)
	return nil
}

// place is where following a log begins: where the session, or the one that it
// took the machine over from, has stopped; else its end.
func (s *Session) place(ctx context.Context, one *site, machine string) (store.Record, string, error) {
	f := one.fleet
	key, err := s.keyOf(ctx, one, machine)
	if err != nil {
		return store.Record{}, "", err
	}
	rec, _, err := s.records.Use(ctx, key)
	if err == nil {
		cursor, ok, err := s.records.Cursor(ctx, rec, consoleStream)
		if err == nil && ok {
			_, err := f.Logs(ctx, machine, fleet.LogQuery{Cursor: cursor, Tail: 1})
			return rec, cursor, err
		}
	}
	page, err := f.Logs(ctx, machine, fleet.LogQuery{Tail: 1})
	return rec, page.Cursor, err
}

// follow tells the client of new lines until the subscription or the machine ends.
func (s *Session) follow(ctx context.Context, one *site, uri string, rec store.Record, machine, cursor string) {
	f := one.fleet
	pause := s.opts.Limits.LogsPoll
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		page, err := f.Logs(ctx, machine, fleet.LogQuery{Cursor: cursor, Tail: 1})
		switch {
		case ctx.Err() != nil:
			return
		case fleet.CodeOf(err) == fleet.CodeNotFound && isGone(ctx, f, machine):
			s.announce(ctx, uri, mcp.Meta{"gone": true})
			return
		case fleet.CodeOf(err) == fleet.CodeCloudUnauthorized, fleet.CodeOf(err) == fleet.CodeCloudNotConfigured:
			// Looking on cannot help: reading the log tells the client why.
			s.opts.Log.Warn("a log is not followed any longer", "machine", machine, "err", err)
			s.announce(ctx, uri, nil)
			return
		case err != nil:
			s.opts.Log.Debug("a followed log could not be read", "machine", machine, "err", err)
			pause = min(2*pause, longestFollowPause)
			continue
		}
		pause = s.opts.Limits.LogsPoll
		if len(page.Lines) == 0 && !page.Gap {
			continue
		}
		cursor = page.Cursor
		s.announce(ctx, uri, nil)
		if err := s.records.SetCursor(ctx, rec, consoleStream, cursor); err != nil {
			s.opts.Log.Warn("the place in a followed log is not written down", "machine", machine, "err", err)
		}
	}
}

// isGone tells a machine that does not exist from one without a log.
func isGone(ctx context.Context, f fleet.Fleet, machine string) bool {
	_, err := f.Get(ctx, machine)
	return fleet.CodeOf(err) == fleet.CodeNotFound
}

func (s *Session) announce(ctx context.Context, uri string, meta mcp.Meta) {
	if err := s.server.ResourceUpdated(ctx, &mcp.ResourceUpdatedNotificationParams{Meta: meta, URI: uri}); err != nil {
		s.opts.Log.Warn("an update was not sent", "uri", uri, "err", err)
	}
}
