//go:build !failpoints || !unix

package store

// failpoint is where a test build may die, stop, fail or sleep; see
// failpoint_on.go.
func failpoint(string) {}
