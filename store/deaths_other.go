//go:build !linux

package store

import "context"

// Deaths would call notice when a process of this user may have died; here
// nothing says so, and sweeps have to find out.
func (s *Store) Deaths(context.Context, func()) (bool, error) { return false, nil }
