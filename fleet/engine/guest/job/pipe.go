//go:build linux

package job

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// mostInPipe is how many bytes a pipe holds at most, unless somebody with privileges has made it larger.
const mostInPipe = 1 << 20

// Rest gives each what is in a pipe, and reports whether all who write to it have closed their
// ends. It reads no more than the pipe can hold, since they may write on for ever. A read
// deadline of the pipe is taken away.
func Rest(pipe *os.File, buf []byte, each func([]byte)) (over bool) {
	conn, err := pipe.SyscallConn()
	if err != nil {
		return true
	}
	_ = pipe.SetReadDeadline(time.Time{})
	left := mostInPipe
	_ = conn.Control(func(fd uintptr) {
		if n, err := unix.FcntlInt(fd, unix.F_GETPIPE_SZ, 0); err == nil {
			left = n
		}
	})
	for more := true; more && left > 0; {
		err := conn.Read(func(fd uintptr) bool {
			n, err := unix.Read(int(fd), buf)
			if n > 0 {
				each(buf[:n])
				left -= n
			}
			more, over = n > 0 || err == unix.EINTR, n == 0 && err == nil
			return true
		})
		if err != nil {
			return true
		}
	}
	return over
}
