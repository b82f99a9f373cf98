package store

import (
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/windows"
)

// The lock is on a byte that neither bbolt nor any content reaches; bbolt then
// takes its own on another one.
func lockRange() *windows.Overlapped {
	return &windows.Overlapped{Offset: 0xfffffffe, OffsetHigh: 0x7fffffff}
}

// lockWait takes the exclusive lock of f and waits for it as long as it takes.
func lockWait(f *os.File) error {
	return windows.LockFileEx(windows.Handle(f.Fd()), windows.LOCKFILE_EXCLUSIVE_LOCK, 0, 1, 0, lockRange())
}

// lockTry takes the lock of f, exclusive or shared, and reports false when
// another holds it.
func lockTry(f *os.File, exclusive bool) (bool, error) {
	flags := uint32(windows.LOCKFILE_FAIL_IMMEDIATELY)
	if exclusive {
		flags |= windows.LOCKFILE_EXCLUSIVE_LOCK
	}
	err := windows.LockFileEx(windows.Handle(f.Fd()), flags, 0, 1, 0, lockRange())
	if err == windows.ERROR_LOCK_VIOLATION || err == windows.ERROR_IO_PENDING {
		return false, nil
	}
	return err == nil, err
}

// unlock lets go of the lock of f even when something else, as a mapping,
// keeps the file open.
func unlock(f *os.File) {
	windows.UnlockFileEx(windows.Handle(f.Fd()), 0, 1, 0, lockRange())
}

func checkOwner(fs.FileInfo) error { return nil } // the directory is in the user's profile

func ownedByRoot(fs.FileInfo) bool { return false }

func links(fs.FileInfo) int { return 1 }

// fileID identifies an open file on this computer for as long as it exists.
func fileID(f *os.File) (string, error) {
	var info windows.ByHandleFileInformation
	if err := windows.GetFileInformationByHandle(windows.Handle(f.Fd()), &info); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d:%d:%d", info.VolumeSerialNumber, info.FileIndexHigh, info.FileIndexLow), nil
}

// rename gives the open file f, which is named from, another name. An open file
// cannot be renamed, so f is closed.
func rename(root *os.Root, f *os.File, from, to string) error {
	f.Close()
	return root.Rename(from, to)
}

func syncDir(*os.Root) error { return nil } // the file system's journal does it
