package fleet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"sync"
	"time"
)

// EngineOptions say which process serves the local fleet, and how to get it.
type EngineOptions struct {
	Kind         string                 // auto, smolvm or qemu
	Smolvm       string                 // program; with a slash a path, else looked up on PATH
	MinVersion   string                 // oldest smolvm to accept, as 1.14.0; empty accepts any
	URL          string                 // unix:///abs.sock or http://127.0.0.1:port of a running one; empty: find or start it
	Dir          func() (string, error) // runtime directory, private to this user; called at the first Dial
	StartTimeout time.Duration          // from spawn to the second healthy answer
	Log          *slog.Logger
}

// Engine finds, starts, shares and stops the process that answers the smolvm
// API on this computer. Nothing is spawned before the first Dial.
//
// What answers at the URL of the options, at our own socket or at smolvm's
// usual one is used as it is; else one is started. The processes of a user
// agree on it through files in the runtime directory:
//
//	engine.lock   locked by who looks for, starts or stops the engine
//	engine.users  locked, shared, by each process that uses an engine of ours
//	engine.json   which process the engine is, to know it again before a signal
//	engine.log    what it prints; engine.log.1 is what it printed before
//	engine.sock   where it answers
//
// The last user stops the engine, whichever of us started it. An engine that
// none of us started is never stopped.
type Engine struct {
	opts  EngineOptions
	usual func() []address // where smolvm serve is when it was not told where
	life  context.Context  // ends with Close
	end   context.CancelFunc

	mu     sync.Mutex
	closed bool
	now    *serving // what answered last; nil before the first
	search *search  // the one that is going on
	users  *fileLock

	// child is the engine that this process started and has not cleared up
	// after; only the search and, after it, Close use it.
	child int
}

// serving is an engine that answered.
type serving struct {
	at      address
	health  health
	started bool // by one of us, so that the last of us stops it
	pid     int  // 0 when it is not known
}

// search is one attempt to find or start the engine, shared by all who wait for it.
type search struct {
	done  chan struct{}
	found *serving
	err   error
}

// EngineStatus describes the engine that answered last.
type EngineStatus struct {
	Kind    string // smolvm or qemu; empty before the first
	URL     string
	Version string
	Started bool // by smol-mcp; else it was there, and is left alone
	PID     int  // 0 when not known
}

// closeWait bounds how long Close waits for another process that finds or
// starts the engine; that one stays a user, and will be the last.
const closeWait = 5 * time.Second

// NewEngine returns an engine that has done nothing yet.
func NewEngine(opts EngineOptions) *Engine {
	if opts.Kind == "" {
		opts.Kind = "auto"
	}
	if opts.Smolvm == "" {
		opts.Smolvm = "smolvm"
	}
	if opts.StartTimeout <= 0 {
		opts.StartTimeout = time.Minute
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	e := &Engine{opts: opts, usual: usualAddresses}
	e.life, e.end = context.WithCancel(context.Background())
	return e
}

// Dial connects to the engine and finds or starts it first where needed, again
// when the one that answered is gone. Errors are *Error with CodeUnavailable, or
// say that ctx ended.
func (e *Engine) Dial(ctx context.Context) (net.Conn, error) {
	e.mu.Lock()
	now, closed := e.now, e.closed
	e.mu.Unlock()
	var err error
	for range 3 { // an engine may die between its answer and our call
		if now != nil && !closed {
			var c net.Conn
			if c, err = now.at.dial(ctx); err == nil {
				return c, nil
			}
		}
		if now, err = e.find(ctx, now); err != nil {
			return nil, err
		}
	}
	return nil, unavailable("reach the engine at "+now.at.String(), err)
}

// find returns an engine other than the one that is gone.
func (e *Engine) find(ctx context.Context, gone *serving) (*serving, error) {
	e.mu.Lock()
	switch {
	case e.closed:
		e.mu.Unlock()
		return nil, ended(nil)
	case e.now != gone:
		defer e.mu.Unlock()
		return e.now, nil
	case e.search == nil:
		e.search = &search{done: make(chan struct{})}
		go e.run(e.search) // Close ends it and waits
	}
	s := e.search
	e.mu.Unlock()
	select {
	case <-s.done:
		return s.found, s.err
	case <-ctx.Done():
		return nil, &Error{
			Code: CodeOf(ctx.Err()), Op: "reach the engine", Why: "it is still being looked for or started", Err: ctx.Err(),
			Next: "try again; a start that fails says why",
		}
	}
}

// run carries out a search. What fails is not remembered: the next Dial tries again.
func (e *Engine) run(s *search) {
	found, err := e.locked(e.life)
	if e.life.Err() != nil && err != nil {
		err = ended(err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if s.found, s.err = found, err; err == nil {
		e.now = found
	}
	e.search = nil
	close(s.done)
}

// locked looks for the engine while no other process does, as a user from
// before the first look, so that nobody takes itself for the last meanwhile.
func (e *Engine) locked(ctx context.Context) (*serving, error) {
	dir, err := e.opts.Dir()
	if err != nil {
		return nil, unavailable("prepare the runtime directory", err)
	}
	lock, err := lockFile(ctx, filepath.Join(dir, "engine.lock"), exclusive)
	if err != nil {
		return nil, unavailable("lock "+filepath.Join(dir, "engine.lock"), err)
	}
	defer lock.unlock()
	users := e.users
	if users == nil {
		if users, err = lockFile(ctx, filepath.Join(dir, "engine.users"), shared); err != nil {
			return nil, unavailable("lock "+filepath.Join(dir, "engine.users"), err)
		}
	}
	found, err := (&finder{Engine: e, dir: dir}).look(ctx)
	if e.users == nil && (err != nil || !found.started) {
		users.unlock() // nothing of ours is used
		return found, err
	}
	e.mu.Lock()
	e.users = users
	e.mu.Unlock()
	return found, err
}

// Status describes the engine that answered last.
func (e *Engine) Status() EngineStatus {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.now == nil {
		return EngineStatus{}
	}
	return EngineStatus{
		Kind: engineOf(e.now.health), URL: e.now.at.String(), Version: e.now.health.Version, Started: e.now.started, PID: e.now.pid,
	}
}

// Close lets go of the engine; the last process to do so stops it. Machines go on.
func (e *Engine) Close() error {
	e.mu.Lock()
	first := !e.closed
	e.closed = true
	s := e.search
	e.mu.Unlock()
	e.end()
	if s != nil {
		<-s.done
	}
	if !first || e.users == nil {
		return nil
	}
	defer e.reapChild()
	defer e.users.unlock()
	dir := filepath.Dir(e.users.path)
	ctx, cancel := context.WithTimeout(context.Background(), closeWait)
	defer cancel()
	lock, err := lockFile(ctx, filepath.Join(dir, "engine.lock"), exclusive)
	if err != nil {
		return nil
	}
	defer lock.unlock()
	if last, err := e.users.upgrade(); err != nil || !last {
		return err
	}
	rec, err := readRecord(dir)
	if err != nil {
		return fmt.Errorf("stop the engine: %w", err)
	}
	return rec.stop(e.opts.Log)
}

// reapChild clears up after an engine of this process that has ended, and says
// how it did; empty when none has.
func (e *Engine) reapChild() string {
	if e.child == 0 {
		return ""
	}
	for deadline := time.Now().Add(time.Second); ; time.Sleep(time.Millisecond) {
		status := reap(e.child)
		if status != "" {
			e.child = 0
		}
		if status != "" || processBegun(e.child) != "" || time.Now().After(deadline) {
			return status
		}
	}
}

func ended(err error) *Error {
	return &Error{Code: CodeCancelled, Op: "reach the engine", Why: "the session has ended", Err: err}
}

// unavailable says that the engine cannot be had.
func unavailable(op string, err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return &Error{Code: CodeUnavailable, Op: op, Why: Bound(err.Error(), MaxWhy), Err: err}
}
