package store

// Known reports whether anything was ever recorded here since the computer was
// booted. It creates nothing, so it may be asked on the way to a session's first answer.
func (s *Store) Known() bool {
	known, err := s.known()
	return known && err == nil
}
