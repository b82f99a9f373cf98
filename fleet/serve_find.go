package fleet

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"time"
)

// finder looks for the engine once, with engine.lock held.
type finder struct {
	*Engine
	dir string
}

// patience is how long an engine that listens may take to answer before it
// counts as stuck: it may be starting machines.
const patience = 6 * time.Second

// look finds the engine or starts one.
func (f *finder) look(ctx context.Context) (*serving, error) {
	f.reapChild()
	if err := rotate(f.log()); err != nil {
		f.opts.Log.Warn("engine log not rotated", "file", f.log(), "err", err)
	}
	rec, err := readRecord(f.dir)
	if err != nil {
		f.opts.Log.Warn("engine record not readable", "err", err)
	}
	home, err := f.home(rec)
	if err != nil {
		return nil, err
	}
	if f.opts.URL == "" { // else whoever listens there has managed
		if err := home.fits(); err != nil {
			return nil, err
		}
	}
	found, err := f.meet(ctx, home, rec)
	if found != nil || err != nil {
		return found, err
	}
	if f.opts.URL == "" && f.opts.Kind != "qemu" {
		found, err := f.meetUsual(ctx)
		if found != nil || err != nil {
			return found, err
		}
	}
	if f.opts.URL != "" && home.network == "tcp" {
		return nil, &Error{
			Code: CodeUnavailable, Op: "use the engine at " + home.String(), Why: "nobody answers there, and none is started on a port, which every user of this computer could use",
			Next: "start it yourself, or leave SMOL_LOCAL_URL empty",
		}
	}
	if rec.alive() {
		return nil, &Error{
			Code: CodeUnavailable, Op: "start an engine at " + home.String(), Why: "other sessions use the one at " + rec.URL,
			Next: "set SMOL_LOCAL_URL to that, or leave it empty",
		}
	}
	return f.start(ctx, home)
}

func (f *finder) log() string { return filepath.Join(f.dir, "engine.log") }

// home is where our engine is, or would be.
func (f *finder) home(rec *record) (address, error) {
	switch {
	case f.opts.URL != "":
		at, err := parseAddress(f.opts.URL)
		if err != nil {
			return at, unavailable("read the address of the engine", err)
		}
		return at, nil
	case rec.alive(): // also at an address that another session's settings gave
		return parseAddress(rec.URL)
	case runtime.GOOS != "windows":
		return address{network: "unix", target: filepath.Join(f.dir, "engine.sock")}, nil
	}
	port, err := freePort()
	if err != nil {
		return address{}, unavailable("find a port for the engine", err)
	}
	return address{network: "tcp", target: fmt.Sprintf("127.0.0.1:%d", port)}, nil
}

// meet uses what answers at home. It returns nothing when nobody does, after
// waiting for an engine whose starter was killed before it answered.
func (f *finder) meet(ctx context.Context, home address, rec *record) (*serving, error) {
	if rec.alive() && rec.URL == home.String() && !rec.Ready {
		return f.inherit(ctx, home, rec)
	}
	h, err := probe(ctx, home, patience)
	switch {
	case errors.Is(err, errSilent) && rec.alive() && rec.URL == home.String():
		// It is ending, or its socket was removed: nobody can reach it any more.
		f.opts.Log.Warn("engine no longer listens", "pid", rec.PID, "url", rec.URL)
		if err := rec.stop(f.opts.Log); err != nil {
			return nil, unavailable("start an engine at "+home.String(), err)
		}
		return nil, nil
	case errors.Is(err, errSilent):
		return nil, nil
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil:
		return nil, f.notOurs(home, rec, err)
	}
	s := &serving{at: home, health: h}
	if rec.alive() && rec.URL == home.String() {
		s.started, s.pid = true, rec.PID
	} else if f.opts.URL == "" {
		// Only we listen in our directory: its starter was killed before it wrote
		// the record.
		if rec := recordPeer(ctx, f.dir, home); rec != nil {
			s.started, s.pid = true, rec.PID
		}
	}
	return s, f.accept(s)
}

// inherit waits for an engine that another process started and did not live
// to see answer. One that does not in time is stopped.
func (f *finder) inherit(ctx context.Context, home address, rec *record) (*serving, error) {
	left := max(time.Until(rec.StartedAt.Add(f.opts.StartTimeout)), 0)
	h, err := f.awaitReady(ctx, home, left, rec.alive)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		f.opts.Log.Warn("engine left half started", "pid", rec.PID, "err", err)
		return nil, rec.stop(f.opts.Log)
	}
	rec.Ready = true
	if err := rec.write(f.dir); err != nil {
		return nil, unavailable("record the engine", err)
	}
	s := &serving{at: home, health: h, started: true, pid: rec.PID}
	return s, f.accept(s)
}

// notOurs says what was met at our own address.
func (f *finder) notOurs(home address, rec *record, err error) error {
	e := unavailable("use the engine at "+home.String(), err)
	switch {
	case rec.alive() && rec.URL == home.String():
		e.Why = fmt.Sprintf("it runs as process %d but is stuck: %s", rec.PID, e.Why)
		e.Next = "see " + f.log() + ", or end the process; machines survive that"
	case f.opts.URL != "":
		e.Next = "set SMOL_LOCAL_URL to the address of a smolvm serve, or leave it empty"
	default:
		e.Next = "end what listens there"
	}
	return e
}

// meetUsual uses a smolvm serve that the user runs. What cannot be trusted or
// is none is passed over.
func (f *finder) meetUsual(ctx context.Context) (*serving, error) {
	for _, at := range f.usual() {
		h, err := probe(ctx, at, probeTimeout)
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case err != nil:
			f.opts.Log.Debug("no engine", "url", at.String(), "err", err)
			continue
		}
		s := &serving{at: at, health: h, pid: peerPID(ctx, at)}
		if f.opts.Kind == "auto" || f.opts.Kind == engineOf(h) {
			return s, f.accept(s)
		}
	}
	return nil, nil
}

// accept refuses an engine of another kind than the settings ask for, and a smolvm that is too old.
func (f *finder) accept(s *serving) error {
	kind := engineOf(s.health)
	op := "use the engine at " + s.at.String()
	switch {
	case f.opts.URL == "" && f.opts.Kind != "auto" && f.opts.Kind != kind:
		return &Error{
			Code: CodeUnavailable, Op: op, Why: fmt.Sprintf("it is %s, and the settings ask for %s", kind, f.opts.Kind),
			Next: "end the other sessions that use it, or set SMOL_MCP_ENGINE to auto",
		}
	case kind == "smolvm" && f.opts.MinVersion != "" && !atLeast(s.health.Version, f.opts.MinVersion):
		return &Error{
			Code: CodeUnavailable, Op: op,
			Why:  fmt.Sprintf("it is smolvm %s, and at least %s is needed", Bound(s.health.Version, 64), f.opts.MinVersion),
			Next: "update smolvm, or set SMOL_MCP_MIN_SMOLVM to accept it",
		}
	}
	return nil
}

// awaitReady waits until an engine answered twice in a row: one that dies right
// after its first answer is not ready.
func (f *finder) awaitReady(ctx context.Context, at address, timeout time.Duration, alive func() bool) (health, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("it did not answer within %v", f.opts.StartTimeout))
	defer cancel()
	well := 0
	var last error
	for wait := 5 * time.Millisecond; ; wait = min(2*wait, 100*time.Millisecond) {
		h, err := probe(ctx, at, probeTimeout)
		if well++; err != nil {
			well, last = 0, err
		}
		switch {
		case !alive(): // also when it answers: that was another one
			return h, errDied
		case well == 2:
			return h, nil
		}
		if pause(ctx, wait) != nil {
			if last == nil || errors.Is(last, errSilent) {
				return h, context.Cause(ctx)
			}
			return h, fmt.Errorf("%w: %w", context.Cause(ctx), last)
		}
	}
}

// errDied is an engine that ended while it was waited for.
var errDied = errors.New("it ended before it answered")
