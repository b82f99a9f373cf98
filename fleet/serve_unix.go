//go:build unix

package fleet

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strconv"
	"syscall"
)

// ownFile reports whether a file belongs to this user.
func ownFile(fi fs.FileInfo) bool {
	st, ok := fi.Sys().(*syscall.Stat_t)
	return ok && int(st.Uid) == os.Geteuid()
}

// groupOf returns the group of a file.
func groupOf(fi fs.FileInfo) (int, bool) {
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return int(st.Gid), true
}

// detach gives the child a session of its own.
func detach(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} }

// closeOnExec keeps the engine from inheriting what our own parent left open
// in us. What Go opens is marked already.
func closeOnExec() {
	entries, err := os.ReadDir("/dev/fd")
	if err != nil {
		return
	}
	for _, e := range entries {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd > 2 {
			syscall.CloseOnExec(fd)
		}
	}
}

// reap clears up after a child that has ended and says how; empty when it runs
// or was never ours. There is no goroutine that waits for an engine, because it
// may outlive us.
func reap(pid int) string {
	var ws syscall.WaitStatus
	for {
		got, err := syscall.Wait4(pid, &ws, syscall.WNOHANG, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case err != nil || got != pid:
			return ""
		case ws.Signaled():
			return "ended by signal " + strconv.Itoa(int(ws.Signal()))
		}
		return fmt.Sprintf("exit code %d", ws.ExitStatus())
	}
}

func interrupt(p *os.Process) error { return p.Signal(syscall.SIGTERM) }
