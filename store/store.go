// Package store records who owns which machine. (Being written.)
package store

// Store is the transactional record of machines and sessions.
type Store struct{}

// Record is one machine's row.
type Record struct{}
