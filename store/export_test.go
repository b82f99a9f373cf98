package store

// Crash lets go of the lock of this process as its death would, and leaves
// everything as it is.
func (s *Store) Crash() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life != nil {
		s.life.Close()
		s.life = nil
	}
}
