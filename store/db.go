package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime/debug"
	"syscall"

	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
)

const (
	dbName  = "state.db"
	dbLimit = 8 << 20 // bytes; about ten thousand records
)

// maxWiped bounds how often something is tried again because the directory
// was removed meanwhile.
const maxWiped = 20

// openLocked returns state.db, made if need be, with its lock held. It waits for
// the lock without end: only the committing goroutine calls it.
func (s *Store) openLocked() (*os.File, *os.Root, error) {
	for tries := 0; ; {
		s.placeMu.Lock()
		_, err := s.findLocked()
		root := s.root
		s.placeMu.Unlock()
		if err == nil && root == nil {
			err = errAbsent
		}
		if err != nil {
			return nil, nil, err
		}
		f, err := root.OpenFile(dbName, os.O_RDWR, 0)
		if wiped(err) && !s.opts.ReadOnly {
			err := s.createDB(root)
			if tries++; err != nil && (!wiped(err) || tries > maxWiped) {
				return nil, nil, err
			}
			continue
		}
		if err != nil {
			return nil, nil, fmt.Errorf("%w: %w", ErrPlace, err)
		}
		s.queue.waiting(f)
		err = lockWait(f)
		s.queue.waiting(nil)
		if err != nil {
			f.Close()
			return nil, nil, fmt.Errorf("lock %s: %w", f.Name(), err)
		}
		same, err := s.stillThere(root, f)
		if err != nil {
			f.Close()
			return nil, nil, err
		}
		if same {
			return f, root, nil
		}
		f.Close() // swapped while we waited for it: whoever did that is done with it
	}
}

// stillThere reports whether the locked file is the one that now has the
// name. Without it, writes into a file that was just set aside would be lost.
func (s *Store) stillThere(root *os.Root, f *os.File) (bool, error) {
	fi, err := f.Stat()
	if err != nil {
		return false, err
	}
	now, err := root.Lstat(dbName)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if now.Mode()&fs.ModeSymlink != 0 {
		return false, fmt.Errorf("%w: %s is a symbolic link", ErrPlace, f.Name())
	}
	s.locking = fi
	if !os.SameFile(fi, now) {
		return s.trustName, nil
	}
	if links(now) > 1 {
		dropTwins(root, dbName)
		if now, err = root.Lstat(dbName); err != nil {
			return false, nil
		}
	}
	return true, checkFile(now, f.Name())
}

// useDB opens f as a database for fn. state.db means something within one boot
// only, so it is never synced: a killed process loses nothing that was written.
func useDB(f *os.File, fn func(*bolt.DB) error) error {
	db, err := bolt.Open(f.Name(), 0o600, &bolt.Options{
		NoSync:       true,
		NoStatistics: true,
		MaxSize:      dbLimit,
		FreelistType: bolt.FreelistArrayType,
		OpenFile:     func(string, int, os.FileMode) (*os.File, error) { return f, nil },
	})
	if err != nil {
		return dbError(err)
	}
	if err := fn(db); err != nil {
		db.Close()
		return dbError(err)
	}
	return dbError(db.Close())
}

// errFault: bbolt faulted or gave up on what it read.
var errFault = errors.New("fault")

// withDB opens the locked file f as a database for fn and closes both. A
// fault in the mapped file, which bbolt cannot survive, becomes ErrCorrupt,
// and the lock is let go of in any case.
func withDB(f *os.File, fn func(*bolt.DB) error) error {
	if err := preflight(f); err != nil {
		f.Close()
		return err
	}
	return guarded(f, fn)
}

func guarded(f *os.File, fn func(*bolt.DB) error) (err error) {
	defer f.Close()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			unlock(f) // bbolt's mapping stays, and with it the lock, whatever is closed
			err = fmt.Errorf("%w: %s: %w: %v", ErrCorrupt, f.Name(), errFault, r)
		}
	}()
	return useDB(f, fn)
}

// dbError translates what bbolt and the disk say into the store's errors.
func dbError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, berrors.ErrMaxSizeReached), errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("%w: %w", ErrFull, err)
	case errors.Is(err, berrors.ErrInvalid), errors.Is(err, berrors.ErrVersionMismatch), errors.Is(err, berrors.ErrChecksum):
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return err
}

// createDB makes state.db where there is none: after a boot, after a loss, or
// for the first time. It holds what the ledger knows. Another process may be faster.
func (s *Store) createDB(root *os.Root) error {
	imports, err := s.fromLedger()
	if err != nil {
		return err
	}
	temp, err := s.buildDB(root, func(t *tx) error { return t.importAll(imports) })
	if err != nil {
		return err
	}
	defer root.Remove(temp)
	failpoint("db-link")
	err = root.Link(temp, dbName)
	if errors.Is(err, fs.ErrExist) || errors.Is(err, fs.ErrNotExist) { // another was faster, and may have tidied up
		return nil
	}
	if err == nil {
		s.dropUseless(imports)
	}
	return dbError(err)
}

// buildDB makes a whole database under a temporary name, so that nobody ever
// sees a half-made one, and returns that name.
func (s *Store) buildDB(root *os.Root, fill func(*tx) error) (string, error) {
	f, temp, err := lockedTemp(root, dbName)
	if err != nil {
		return "", dbError(fmt.Errorf("make %s: %w", dbName, err))
	}
	err = withNewDB(f, func(db *bolt.DB) error {
		return db.Update(func(btx *bolt.Tx) error {
			t := &tx{Tx: btx, host: s.host}
			if err := t.init(); err != nil {
				return err
			}
			return fill(t)
		})
	})
	if err != nil {
		root.Remove(temp)
		return "", fmt.Errorf("make %s: %w", dbName, err)
	}
	return temp, nil
}

// withNewDB opens the new file f as a database for fn and closes both. A full
// tmpfs shows itself as a fault in the mapping.
func withNewDB(f *os.File, fn func(*bolt.DB) error) (err error) {
	defer f.Close()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			unlock(f)
			err = fmt.Errorf("%w: %v", ErrFull, r)
		}
	}()
	return useDB(f, fn)
}

// dropTwins removes other names of the file name, which a process that died
// while it made or replaced the file has left.
func dropTwins(root *os.Root, name string) {
	is, err := root.Lstat(name)
	if err != nil {
		return
	}
	files, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return
	}
	for _, f := range files {
		fi, err := f.Info()
		if err == nil && halfMade(f.Name()) && os.SameFile(fi, is) {
			root.Remove(f.Name())
		}
	}
}
