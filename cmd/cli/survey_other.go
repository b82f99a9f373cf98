//go:build !linux

package cli

// canMakeIn would say why this user can make nothing in a directory. Here only the attempt
// can tell.
func canMakeIn(string) error { return nil }
