package store

// ShareWith makes s one of several sessions of a principal in this process. A
// machine of another live one that s names passes to the lease: the session that
// lives as long as the principal is at work. So the end of one session does not
// take from another what both use. lease returns that session, and nil when there
// is none and it is not to make one. ShareWith is called before s is used.
func (s *Session) ShareWith(lease func(make bool) *Session) { s.lease = lease }

// heir is the session that the machine of rec passes to when s names it; nil when
// it stays whose it is.
func (s *Session) heir(rec Record) *Session {
	switch {
	case !rec.adoptable(s.row.Principal):
		return nil
	case rec.owner == ownerDead:
		return s
	case rec.owner != ownerLive || rec.Instance != s.st.id || rec.Session == s.id || s.lease == nil:
		return nil
	}
	if lease := s.lease(true); lease != nil && lease.id != rec.Session {
		return lease
	}
	return nil
}

// leased reports whether rec is the lease's that s shares.
func (s *Session) leased(rec Record) bool {
	if s.lease == nil || rec.Session == "" {
		return false
	}
	lease := s.lease(false)
	return lease != nil && lease.id == rec.Session
}

// Owns reports whether s has machines that its end takes with it.
func (s *Session) Owns() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.recs) > 0
}
