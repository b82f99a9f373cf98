package store

import "context"

// Owner says whose a record is, as this session sees it.
func (s *Session) Owner(rec Record) Owner {
	switch {
	case rec.UID == "" || rec.Phase == Gone:
		return NoOwner
	case rec.Session == s.id || s.leased(rec):
		return ThisSession
	case rec.owner == ownerDead:
		return CrashedSession
	case rec.owner == ownerEnded:
		return NoOwner
	}
	return AnotherSession
}

// Use returns the record of a machine that a user of this session has named.
// A machine that a crashed session of the same principal left becomes
// this session's by it; one that another session shares with it, their lease's (see
// [Session.ShareWith]). It costs nothing for the session's own machines.
func (s *Session) Use(ctx context.Context, key Key) (Record, bool, error) {
	s.mu.Lock()
	rec, ok := s.recs[key]
	s.mu.Unlock()
	if ok {
		return rec, true, nil
	}
	rec, ok, err := s.st.Find(ctx, key)
	if err != nil || !ok {
		return rec, ok, err
	}
	if heir := s.heir(rec); heir != nil {
		return heir.inherit(ctx, rec)
	}
	return rec, true, nil
}

// inherit makes the machine of rec this session's, unless another was faster.
func (s *Session) inherit(ctx context.Context, rec Record) (Record, bool, error) {
	if err := s.begin(); err != nil {
		return rec, true, err
	}
	heir := rec
	err := s.st.update(ctx, func(t *tx) error {
		now, ok, err := t.record(rec.Key())
		if err != nil {
			return err
		}
		heir = now
		// another may have been faster, or its time was up
		if !ok || now.UID != rec.UID || now.Instance != rec.Instance || now.Session != rec.Session || !now.adoptable(s.row.Principal) {
			return nil
		}
		if err := s.enter(t); err != nil {
			return err
		}
		heir.Session, heir.Instance, heir.Due = s.id, s.st.id, 0
		if err := t.inheritCursors(heir.UID, now.Session, s.id); err != nil {
			return err
		}
		if err := t.putRecord(heir); err != nil {
			return err
		}
		return t.tidySession(now.Session)
	})
	if err != nil {
		return rec, true, err
	}
	failpoint("adopt")
	if heir.Session != s.id {
		return s.st.Find(ctx, rec.Key())
	}
	heir.owner, heir.sess = ownerLive, s.row
	s.st.forget(rec)
	s.remember(heir)
	s.st.updateLedger(heir)
	return heir, true, nil
}

// remembered returns what this session knows of its own machine, as the error
// of a second wish.
func (s *Session) remembered(key Key) *ExistsError {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r, ok := s.recs[key]; ok {
		return &ExistsError{r}
	}
	return nil
}

func (s *Session) remember(r Record) {
	r.sess = s.row
	s.mu.Lock()
	s.recs[r.Key()] = r
	s.mu.Unlock()
}

func (s *Session) forget(r Record) {
	s.mu.Lock()
	if s.recs[r.Key()].UID == r.UID {
		delete(s.recs, r.Key())
	}
	s.mu.Unlock()
}

// forget drops a record from whichever session of this process has it.
func (s *Store) forget(r Record) {
	s.mu.Lock()
	owner := s.mine[r.Session]
	s.mu.Unlock()
	if owner != nil {
		owner.forget(r)
	}
}
