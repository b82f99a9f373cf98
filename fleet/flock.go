package fleet

import (
	"context"
	"os"
	"time"
)

// lockMode is how a file is locked.
type lockMode int

const (
	shared lockMode = iota
	exclusive
)

// fileLock is a lock between processes, which ends with them at the latest.
type fileLock struct {
	path string
	file *os.File
}

// lockFile locks a file, which it makes where it is missing, and waits for
// others until ctx ends. It asks again and again: a blocked system call could
// not be called off.
func lockFile(ctx context.Context, path string, mode lockMode) (*fileLock, error) {
	if err := regular(path); err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	l := &fileLock{path, f}
	for wait := time.Millisecond; ; wait = min(2*wait, 25*time.Millisecond) {
		got, err := tryLock(f, mode)
		if got {
			return l, nil
		}
		if err == nil {
			err = pause(ctx, wait)
		}
		if err != nil {
			f.Close()
			return nil, err
		}
	}
}

// upgrade turns a shared lock into an exclusive one where nobody else holds one.
func (l *fileLock) upgrade() (bool, error) { return tryUpgrade(l.file) }

// unlock lets go, also for children that have not reached their own program yet.
func (l *fileLock) unlock() {
	unlock(l.file)
	l.file.Close()
}
