package store

import (
	"errors"
	"maps"
	"slices"
)

// again writes into a new state.db what this process knows to be its own: the
// old file was lost, and the ledger tells less.
func (s *Store) again(t *tx) error {
	s.mu.Lock()
	life := s.life
	mine := slices.Collect(maps.Values(s.mine))
	s.mu.Unlock()
	if life == nil {
		return nil
	}
	if err := s.register(t); err != nil {
		return err
	}
	known := make(map[string]bool)
	for _, sess := range mine {
		sess.mu.Lock()
		recs := slices.Collect(maps.Values(sess.recs))
		sess.mu.Unlock()
		if err := t.put(bSessions, []byte(sess.id), sess.row); err != nil {
			return err
		}
		for _, r := range recs {
			known[r.UID] = true
			now, ok, err := t.record(r.Key())
			if err == nil && ok && now.UID != r.UID {
				continue // the name has a newer machine
			}
			if err := t.putRecord(r); err != nil {
				return err
			}
		}
	}
	return errors.Join(s.disown(t, known), t.tidySession(lostSession(s.id)))
}

// disown has machines deleted that the ledger says are ours but that no session
// of ours has: they ended or were deleted, and only the ledger's file was left.
func (s *Store) disown(t *tx, known map[string]bool) error {
	recs, err := t.ofSession(lostSession(s.id))
	if err != nil {
		return err
	}
	for _, r := range recs {
		if held, _ := s.holds(r.UID); held || known[r.UID] || r.Kind == Persistent {
			continue
		}
		r.unsent(t.host.now())
		r.Phase, r.Due = Deleting, t.host.now()
		if err := t.putRecord(r); err != nil {
			return err
		}
	}
	return nil
}

// owned returns the records that this process remembers as its own.
func (s *Store) owned() map[string]*Session {
	s.mu.Lock()
	mine := maps.Clone(s.mine)
	s.mu.Unlock()
	uids := make(map[string]*Session)
	for _, sess := range mine {
		sess.mu.Lock()
		for _, r := range sess.recs {
			uids[r.UID] = sess
		}
		sess.mu.Unlock()
	}
	return uids
}

// refresh forgets those of the records owned before recs were read that are
// not among them any more: another session had them deleted.
func (s *Store) refresh(before map[string]*Session, recs []Record) {
	for _, r := range recs {
		if r.Instance == s.id && (r.Phase == Creating || r.Phase == Ready) {
			delete(before, r.UID)
		}
	}
	for uid, sess := range before {
		sess.mu.Lock()
		maps.DeleteFunc(sess.recs, func(_ Key, r Record) bool { return r.UID == uid })
		sess.mu.Unlock()
	}
}
