package fleet

import (
	"errors"
	"os"
	"syscall"
	"unsafe"
)

const (
	lockfileFailImmediately = 1
	lockfileExclusive       = 2
	errorLockViolation      = syscall.Errno(33)
)

// A lock of Windows covers bytes; we take the first.
func lockCall(name string, args ...uintptr) error {
	r, _, err := syscall.NewLazyDLL("kernel32.dll").NewProc(name).Call(args...)
	if r == 0 {
		return err
	}
	return nil
}

// tryLock reports whether it got the lock; false without an error means that others have it.
func tryLock(f *os.File, mode lockMode) (bool, error) {
	flags := uintptr(lockfileFailImmediately)
	if mode == exclusive {
		flags |= lockfileExclusive
	}
	err := lockCall("LockFileEx", f.Fd(), flags, 0, 1, 0, uintptr(unsafe.Pointer(new(syscall.Overlapped))))
	switch {
	case errors.Is(err, errorLockViolation), errors.Is(err, syscall.ERROR_IO_PENDING):
		return false, nil
	}
	return err == nil, err
}

// tryUpgrade lets go first: Windows would count the two locks against each other.
func tryUpgrade(f *os.File) (bool, error) {
	unlock(f)
	return tryLock(f, exclusive)
}

func unlock(f *os.File) {
	lockCall("UnlockFileEx", f.Fd(), 0, 1, 0, uintptr(unsafe.Pointer(new(syscall.Overlapped))))
}
