//go:build linux

package job

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// A stream is a command's standard output or error on its way to a file. The command has a pipe,
// and not the file: who opens /dev/stderr anew, as scripts do, would empty it.
type stream struct {
	theirs  int      // the command's end
	pipe    *os.File // our end
	path    string
	as      func(do func() error) error // makes the file, with the first that comes
	file    atomic.Int64                // -1 before
	full    atomic.Bool                 // more found no room
	lost    atomic.Bool                 // more could not be written
	drained chan struct{}
	once    sync.Once
	users   atomic.Int32 // of file; the last closes it

	mu   sync.Mutex
	head []byte // for the answer, which may have more than a full disk
	room int    // of it, in bytes
}

// newStream makes the pipe of a stream.
func newStream(path string, as func(do func() error) error, room int) (*stream, error) {
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		return nil, err
	}
	_ = unix.SetNonblock(ends[0], true)
	s := &stream{theirs: ends[1], pipe: os.NewFile(uintptr(ends[0]), path), path: path, as: as, room: room, drained: make(chan struct{})}
	s.file.Store(-1)
	s.users.Store(2)
	go s.copy()
	return s, nil
}

// letGo is called once by whoever copies, and once by whoever made the stream.
func (s *stream) letGo() {
	if s.users.Add(-1) == 0 {
		if fd := s.file.Load(); fd >= 0 {
			_ = unix.Close(int(fd))
		}
	}
}

// copy moves what comes until everybody has closed their end, which may be long after the
// command's: what it started may write on.
func (s *stream) copy() {
	defer s.pipe.Close()
	defer s.once.Do(func() { close(s.drained) })
	defer s.letGo()
	buf := make([]byte, 4<<10) // most commands print little
	for {
		n, err := s.pipe.Read(buf)
		_, _ = s.Write(buf[:n])
		if n == len(buf) && n < 64<<10 {
			buf = make([]byte, 2*n)
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			if Rest(s.pipe, buf, func(p []byte) { _, _ = s.Write(p) }) {
				return
			}
			s.once.Do(func() { close(s.drained) })
		} else if err != nil {
			return
		}
	}
}

// Write adds to the file. What finds no room is lost, and does not block the command.
func (s *stream) Write(p []byte) (int, error) {
	s.mu.Lock()
	n := min(len(p), s.room)
	s.head, s.room = append(s.head, p[:n]...), s.room-n
	s.mu.Unlock()
	if len(p) > 0 && s.file.Load() < 0 {
		if err := s.create(); err != nil {
			s.fail(err)
			return len(p), nil
		}
	}
	for left := p; len(left) > 0; {
		n, err := unix.Write(int(s.file.Load()), left)
		if err == unix.EINTR {
			continue
		}
		if err != nil || n <= 0 {
			s.fail(err)
			break
		}
		left = left[n:]
	}
	return len(p), nil
}

// said is the beginning of what was written.
func (s *stream) said() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.head
}

// forget is called when no answer will show the beginning.
func (s *stream) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.head, s.room = nil, 0
}

func (s *stream) fail(err error) {
	if err == unix.ENOSPC || err == unix.EDQUOT || err == nil {
		s.full.Store(true)
		return
	}
	s.lost.Store(true)
}

// create makes the file: most commands say nothing on one of their streams.
func (s *stream) create() error {
	return s.as(func() error {
		fd, err := unix.Open(s.path, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_APPEND|unix.O_CLOEXEC, 0o644)
		if err == nil {
			s.file.Store(int64(fd))
		}
		return err
	})
}

// drain waits until all that was written up to now is in the file. It is called once.
func (s *stream) drain() {
	_ = s.pipe.SetReadDeadline(time.Unix(1, 0))
	<-s.drained
}

// gone reports whether there is a file that has no name any more.
func (s *stream) gone() bool {
	var st unix.Stat_t
	fd := s.file.Load()
	return fd >= 0 && unix.Fstat(int(fd), &st) == nil && st.Nlink == 0
}
