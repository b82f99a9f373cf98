//go:build unix

package store

import (
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// lockWait takes the exclusive lock of f and waits for it as long as it takes.
func lockWait(f *os.File) error { return flock(f, unix.LOCK_EX) }

// lockTry takes the lock of f, exclusive or shared, and reports false when
// another holds it.
func lockTry(f *os.File, exclusive bool) (bool, error) {
	how := unix.LOCK_SH
	if exclusive {
		how = unix.LOCK_EX
	}
	err := flock(f, how|unix.LOCK_NB)
	if err == unix.EWOULDBLOCK {
		return false, nil
	}
	return err == nil, err
}

// unlock lets go of the lock of f even when something else, as a mapping,
// keeps the file open.
func unlock(f *os.File) { flock(f, unix.LOCK_UN) }

func flock(f *os.File, how int) error {
	fd := int(f.Fd())
	for {
		err := unix.Flock(fd, how)
		if err != unix.EINTR {
			return err
		}
	}
}

func checkOwner(fi fs.FileInfo) error {
	if st, ok := fi.Sys().(*syscall.Stat_t); ok && int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("belongs to uid %d, not to uid %d", st.Uid, os.Geteuid())
	}
	return nil
}

func ownedByRoot(fi fs.FileInfo) bool {
	st, ok := fi.Sys().(*syscall.Stat_t)
	return ok && st.Uid == 0
}

func links(fi fs.FileInfo) int {
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		return int(st.Nlink)
	}
	return 1
}

// fileID identifies an open file on this computer for as long as it exists.
func fileID(f *os.File) (string, error) {
	fi, err := f.Stat()
	if err != nil {
		return "", err
	}
	st := fi.Sys().(*syscall.Stat_t)
	return strconv.FormatUint(uint64(st.Dev), 10) + ":" + strconv.FormatUint(uint64(st.Ino), 10), nil
}

// syncDir makes the names in a directory survive a power loss.
func syncDir(root *os.Root) error {
	d, err := root.Open(".")
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// rename gives the open file f, which is named from, another name.
func rename(root *os.Root, _ *os.File, from, to string) error { return root.Rename(from, to) }
