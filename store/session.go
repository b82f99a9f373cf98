package store

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Session is one MCP session and the machines that live as long as it does.
type Session struct {
	st  *Store
	id  string
	row session

	lease func(make bool) *Session // see ShareWith; nil: none

	mu        sync.Mutex
	recs      map[Key]Record // its records as last written, to write them again after a loss
	cursors   map[cursorRef]cursor
	unwritten map[cursorRef]bool // cursors
	done      bool               // ended
}

// NewSession returns a session of this process. kind is stdio, http or
// stateless, client what the client calls itself. Nothing is written before
// its first wish.
func (s *Store) NewSession(kind, client string) *Session {
	return s.NewSessionOf("", kind, client)
}

// NewSessionOf returns a session of a principal: machines that a crashed
// session left are taken over only by sessions of the same one. The user of this computer is
// the empty principal.
func (s *Store) NewSessionOf(principal, kind, client string) *Session {
	return &Session{
		st:   s,
		id:   newID(),
		recs: make(map[Key]Record),
		row: session{
			Instance:  s.id,
			Kind:      kind,
			Principal: principal,
			Client:    client,
			State:     sessionLive,
			Grace:     max(0, int64(s.opts.CrashGrace)),
		},
	}
}

// ID returns the session's id.
func (s *Session) ID() string { return s.id }

// ErrEnded refuses wishes of a session that has ended.
var ErrEnded = errors.New("the session has ended")

// enter writes the rows of the process and the session where they are not
// there: at the first wish, and again after a loss of the file.
func (s *Session) enter(t *tx) error {
	s.mu.Lock()
	done := s.done
	s.mu.Unlock()
	if done { // since begin looked: End may have dropped the row already
		return ErrEnded
	}
	if err := s.st.register(t); err != nil {
		return err
	}
	var row session
	if ok, err := t.get(bSessions, []byte(s.id), &row); err == nil && ok {
		if row.State != sessionLive {
			return ErrEnded
		}
		return nil
	}
	return t.put(bSessions, []byte(s.id), s.row)
}

// begin does what has to come before a session's write.
func (s *Session) begin() error {
	s.mu.Lock()
	done := s.done
	s.mu.Unlock()
	if done {
		return ErrEnded
	}
	if err := s.st.enter(); err != nil {
		return err
	}
	s.st.mu.Lock()
	s.st.mine[s.id] = s
	s.st.mu.Unlock()
	return nil
}

// Intend records that the session is about to ask a fleet for a machine. Only
// after it returned without error may the request be sent. *ExistsError when
// the name has a record in any phase; ErrFull and others mean that nothing was
// recorded and nothing may be created.
func (s *Session) Intend(ctx context.Context, w Wish) (Record, error) {
	if w.Target == "" || w.Name == "" || w.Kind == "" {
		return Record{}, fmt.Errorf("store: wish without target, name or kind: %+v", w)
	}
	if err := s.begin(); err != nil {
		return Record{}, err
	}
	if w.Deadline == 0 {
		w.Deadline = createDeadline
	}
	net, err := s.st.openLedger()
	if err != nil {
		return Record{}, err
	}
	rec := Record{
		UID: newID(), Target: w.Target, Account: w.Account, Name: w.Name, Kind: w.Kind, Phase: Creating,
		Session: s.id, Instance: s.st.id, Parent: w.Parent, Image: w.Image, Network: w.Network, Chosen: w.Chosen,
		Created: time.Now().Round(time.Second), CreateFor: int64(w.Deadline),
	}
	var taken *ExistsError
	err = s.st.update(ctx, func(t *tx) error {
		taken = nil
		old, ok, err := t.bare(rec.Key())
		var bad *badRow
		switch {
		case errors.As(err, &bad): // nothing is known of it, so the name stays taken until gc has looked
			return fmt.Errorf("machine %s has a record that cannot be read: %w", w.Name, err)
		case err != nil:
			return err
		case ok:
			taken = &ExistsError{t.filled(old)}
			return taken
		}
		if err := s.enter(t); err != nil {
			return err
		}
		rec.Deadline = t.host.now() + int64(w.Deadline)
		return t.putRecord(rec)
	})
	if errors.Is(err, errOtherSchema) {
		rec.Deadline = s.st.host.now() + int64(w.Deadline)
		taken, err = s.remembered(rec.Key()), nil
	}
	if taken != nil {
		taken.Record = s.st.judged(taken.Record)
		return Record{}, taken
	}
	if err != nil {
		return Record{}, err
	}
	failpoint("intend-ledger")
	if err := s.noteDown(net, rec); err != nil {
		undo := s.st.update(context.WithoutCancel(ctx), func(t *tx) error { return t.dropRecord(rec) })
		return Record{}, errors.Join(err, unlessOtherSchema(undo))
	}
	rec.owner = ownerLive
	s.remember(rec)
	failpoint("intend-done")
	return rec, nil
}

// Confirm records that the fleet has made the machine: its id there, and its
// word for when. A persistent machine needs no record any more: what is left is
// whose it is.
func (s *Session) Confirm(ctx context.Context, rec Record, fleetID string, created time.Time) error {
	failpoint("confirm")
	if rec.Kind == Persistent {
		if err := s.st.keepOnly(rec); err != nil { // hidden from too many, until it is deleted
			s.st.opts.Log.Warn("whose an earlier machine of this name was is still written down", "machine", rec.Name, "err", err)
		}
		return s.drop(ctx, rec)
	}
	now, err := s.change(ctx, rec, func(r *Record) error {
		if r.Phase != Creating {
			return ErrStale
		}
		r.Phase, r.Deadline, r.Due = Ready, 0, 0
		r.FleetID, r.FleetCreated = fleetID, created
		return nil
	})
	if err != nil {
		return err
	}
	s.remember(now)
	s.st.updateLedger(now)
	return nil
}

// Abandon forgets a wish that the fleet has definitely refused, or that was
// never sent. After an answer that leaves doubt use [Session.Withdraw]. [ErrStale]: it is
// to be deleted by now.
func (s *Session) Abandon(ctx context.Context, rec Record) error {
	if err := s.drop(context.WithoutCancel(ctx), rec); err != nil || rec.Kind != Persistent {
		return err
	}
	return s.st.unkeep(rec)
}

func (s *Session) drop(ctx context.Context, rec Record) error {
	err := s.st.update(ctx, func(t *tx) error {
		old, ok, err := t.bare(rec.Key())
		if err != nil || !ok || old.UID != rec.UID {
			return err
		}
		if old.Phase != Creating {
			return ErrStale
		}
		return t.dropRecord(old)
	})
	if err = unlessOtherSchema(err); err != nil {
		return err
	}
	s.forget(rec)
	failpoint("drop-ledger")
	return s.st.dropLedger(rec.UID)
}

// change applies fn to the stored record when it is still the one given.
func (s *Session) change(ctx context.Context, rec Record, fn func(*Record) error) (Record, error) {
	var now Record
	err := s.st.update(ctx, func(t *tx) error {
		old, ok, err := t.record(rec.Key())
		if err != nil {
			return err
		}
		if !ok || old.UID != rec.UID {
			return ErrStale
		}
		if err := fn(&old); err != nil {
			return err
		}
		now = old
		return t.putRecord(now)
	})
	if errors.Is(err, errOtherSchema) {
		now = rec
		err = fn(&now)
	}
	now.owner = ownerLive
	return now, err
}

// End ends the session in one transaction: its machines that must not outlive
// it are to be deleted, and are returned for the reaper's Remove. When it
// fails, they are returned as this process knows them, for a last try to
// delete them.
func (s *Session) End(ctx context.Context) ([]Record, error) {
	s.mu.Lock()
	s.done = true
	known := make([]Record, 0, len(s.recs))
	for _, r := range s.recs {
		if r.Kind != Persistent {
			known = append(known, r)
		}
	}
	s.mu.Unlock()
	s.st.mu.Lock()
	_, wrote := s.st.mine[s.id]
	s.st.mu.Unlock()
	if !wrote {
		return nil, nil
	}
	var recs []Record
	err := s.st.update(ctx, func(t *tx) (err error) {
		recs, err = s.end(t)
		return err
	})
	failpoint("end")
	if err != nil {
		s.st.release(recs...)
		return known, unlessOtherSchema(err)
	}
	s.st.mu.Lock()
	delete(s.st.mine, s.id)
	s.st.mu.Unlock()
	for i := range recs {
		recs[i].owner = ownerEnded
	}
	return recs, nil
}

// end marks the session as ended and returns what has to be deleted.
func (s *Session) end(t *tx) ([]Record, error) {
	row := s.row
	if _, err := t.get(bSessions, []byte(s.id), &row); err != nil {
		return nil, err
	}
	row.State = sessionEnded
	if err := t.put(bSessions, []byte(s.id), row); err != nil {
		return nil, err
	}
	all, err := t.ofSession(s.id)
	if err != nil {
		return nil, err
	}
	var recs []Record
	for _, r := range all {
		if r.Kind == Persistent { // its creator is gone: never deleted, forgotten in time
			r.Due = r.Deadline
			if err := t.putRecord(r); err != nil {
				return nil, err
			}
			continue
		}
		r = s.st.tombstone(t, r)
		if err := t.putRecord(r); err != nil {
			return nil, err
		}
		if r.Phase == Deleting {
			recs = append(recs, r)
		}
	}
	return recs, t.tidySession(s.id)
}
