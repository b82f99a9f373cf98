package fleet

import (
	"io/fs"
	"net"
	"os"
	"os/exec"
	"strconv"
	"syscall"
)

// stillActive is the exit code of a process that has none yet.
const stillActive = 259

// processBegun returns what tells a living process from all others that had or
// will have its number: when it began. It is empty for a process that has ended.
func processBegun(pid int) string {
	if pid <= 0 {
		return ""
	}
	h, err := syscall.OpenProcess(0x1000 /* query limited information */, false, uint32(pid))
	if err != nil {
		return ""
	}
	defer syscall.CloseHandle(h)
	var code uint32
	if err := syscall.GetExitCodeProcess(h, &code); err != nil || code != stillActive {
		return ""
	}
	var begun, ended, kernel, user syscall.Filetime
	if err := syscall.GetProcessTimes(h, &begun, &ended, &kernel, &user); err != nil {
		return ""
	}
	return strconv.FormatInt(begun.Nanoseconds(), 10)
}

// peer is not known on Windows.
func peer(net.Conn) (pid, uid int, ok bool) { return 0, 0, false }

func ownFile(fs.FileInfo) bool { return false }

func groupOf(fs.FileInfo) (int, bool) { return 0, false }

// detach keeps a Ctrl-C of ours from the child.
func detach(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{CreationFlags: syscall.CREATE_NEW_PROCESS_GROUP, HideWindow: true}
}

func closeOnExec() {} // nothing is inherited unless it is said

// reap has nothing to clear up.
func reap(pid int) string {
	if processBegun(pid) != "" {
		return ""
	}
	return "it has ended"
}

// interrupt ends the process: there is no polite signal to one without our console.
func interrupt(p *os.Process) error { return p.Kill() }
