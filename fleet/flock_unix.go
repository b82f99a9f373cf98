//go:build unix

package fleet

import (
	"errors"
	"os"
	"syscall"
)

// tryLock reports whether it got the lock; false without an error means that others have it.
func tryLock(f *os.File, mode lockMode) (bool, error) {
	how := syscall.LOCK_SH
	if mode == exclusive {
		how = syscall.LOCK_EX
	}
	for {
		err := syscall.Flock(int(f.Fd()), how|syscall.LOCK_NB)
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case errors.Is(err, syscall.EWOULDBLOCK):
			return false, nil
		}
		return err == nil, err
	}
}

func tryUpgrade(f *os.File) (bool, error) { return tryLock(f, exclusive) }

func unlock(f *os.File) { syscall.Flock(int(f.Fd()), syscall.LOCK_UN) }
