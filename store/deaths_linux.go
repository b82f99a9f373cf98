package store

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Deaths calls notice when a process of this user may have died, until ctx
// ends: its lock file was closed. It only saves waiting for the next sweep, and
// may be wrong in both directions. It reports false at once when there is
// nothing to watch yet.
func (s *Store) Deaths(ctx context.Context, notice func()) (bool, error) {
	known, err := s.known()
	if err != nil || !known {
		return false, err
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return false, err
	}
	f := os.NewFile(uintptr(fd), "inotify")
	defer f.Close()
	_, err = unix.InotifyAddWatch(fd, filepath.Join(s.runDir(), instDir), unix.IN_CLOSE_WRITE|unix.IN_ONLYDIR)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer context.AfterFunc(ctx, func() { f.Close() })()
	events := make([]byte, 4096)
	for {
		n, err := f.Read(events)
		if ctx.Err() != nil {
			return true, nil
		}
		if err != nil {
			return true, err
		}
		notice()
		if ended(events[:n]) {
			return true, nil
		}
	}
}

// ended reports whether the watch is over: its directory was removed.
func ended(events []byte) bool {
	for len(events) >= unix.SizeofInotifyEvent {
		mask, name := binary.NativeEndian.Uint32(events[4:]), int(binary.NativeEndian.Uint32(events[12:]))
		if mask&unix.IN_IGNORED != 0 {
			return true
		}
		events = events[min(len(events), unix.SizeofInotifyEvent+name):]
	}
	return false
}
