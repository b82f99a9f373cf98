package store

import (
	"context"
	"errors"
)

// Tombstone records that a user wants a machine deleted, whoever owns it, and
// returns its record for the reaper's Remove. It reports false when there is
// no record: then the machine is nobody's, and its deletion is the fleet's affair alone.
//
// When it fails, delete the machine all the same if it is this session's: a
// later sweep finds it gone.
func (s *Session) Tombstone(ctx context.Context, key Key) (Record, bool, error) {
	return s.mark(ctx, key, func(Record) bool { return true }, false)
}

// Withdraw is Tombstone for a wish of this session, and leaves a later one of the same name
// alone, unless rec has no UID. answered tells that its create call is over: when the machine
// is not there it will not appear either, and its name is free.
func (s *Session) Withdraw(ctx context.Context, rec Record, answered bool) (Record, bool, error) {
	return s.mark(ctx, rec.Key(), func(now Record) bool { return rec.UID == "" || now.UID == rec.UID }, answered)
}

// mark records that the machine of key has to be deleted, if its record is the one that is meant.
func (s *Session) mark(ctx context.Context, key Key, meant func(Record) bool, answered bool) (Record, bool, error) {
	if err := s.begin(); err != nil && !errors.Is(err, ErrEnded) {
		return Record{}, false, err
	}
	var rec Record
	var found bool
	err := s.st.update(ctx, func(t *tx) (err error) {
		now, ok, err := t.record(key)
		if rec, found = (Record{}), ok && meant(now); err != nil || !found {
			return err
		}
		rec = now
		if err := s.st.register(t); err != nil {
			return err
		}
		if rec = s.st.tombstone(t, rec); answered && rec.Phase == Deleting {
			rec.Deadline, rec.Due = 0, t.host.now()
		}
		return t.putRecord(rec)
	})
	if errors.Is(err, errOtherSchema) {
		if own := s.remembered(key); own != nil && meant(own.Record) {
			s.forget(own.Record)
			own.Record.Phase = Deleting
			own.Record.unsent(s.st.host.now())
			return own.Record, true, nil
		}
	}
	if err != nil || !found {
		s.st.release(rec)
		return Record{}, false, err
	}
	failpoint("tombstone")
	s.forget(rec)
	s.st.forget(rec)
	return s.st.judged(rec), true, nil
}

// Restore takes back a tombstone of this session when the fleet has definitely
// refused to delete the machine, as one that has branches. It reports nothing when
// the record has changed hands: then its deletion is another's affair.
func (s *Session) Restore(ctx context.Context, rec Record) error {
	now, err := s.change(context.WithoutCancel(ctx), rec, func(r *Record) error {
		if r.Phase != Deleting || r.Claimer != s.st.id || r.sess.State != sessionLive {
			return ErrStale
		}
		r.Phase, r.Due, r.Claimer, r.Claimed = Ready, 0, "", 0
		if !r.Confirmed() {
			r.Phase = Creating
		}
		return nil
	})
	s.st.release(rec)
	if errors.Is(err, ErrStale) {
		return nil
	}
	if err == nil && now.Session == s.id {
		s.remember(now)
	}
	return err
}

// tombstone returns rec as one that has to go, claimed for this process unless
// another is at it.
func (s *Store) tombstone(t *tx, rec Record) Record {
	if rec.Phase == Gone {
		return rec
	}
	if rec.Phase != Deleting {
		rec.unsent(t.host.now())
		rec.Phase, rec.Due, rec.Attempts, rec.Error = Deleting, t.host.now(), 0, ""
	}
	if rec.Claimer == "" {
		rec.Claimer, rec.Claimed = s.id, t.host.now()
		s.hold(rec.UID, false)
	}
	return rec
}
