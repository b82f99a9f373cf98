//go:build unix

package cli

import (
	"errors"
	"os"
	"syscall"
)

// locked reports whether somebody holds the lock of a file. A file that is missing or cannot
// be read has no holder that we know of.
func locked(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close() // this lets go, too
	return errors.Is(syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB), syscall.EWOULDBLOCK)
}
