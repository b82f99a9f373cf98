package fleet

import (
	"net"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"unsafe"
)

// processBegun returns what tells a living process from all others that had or
// will have its number: when it began. It is empty for a process that has ended.
func processBegun(pid int) string {
	if pid <= 0 {
		return ""
	}
	cmd := exec.Command("/bin/ps", "-o", "stat=,lstart=", "-p", strconv.Itoa(pid))
	cmd.Env = []string{"LC_ALL=C", "TZ=UTC"}
	out, err := cmd.Output()
	state, begun, _ := strings.Cut(strings.TrimSpace(string(out)), " ")
	if err != nil || strings.HasPrefix(state, "Z") {
		return ""
	}
	return strings.TrimSpace(begun)
}

// Options of a Unix socket on Darwin.
const (
	solLocal      = 0
	localPeerCred = 1
	localPeerPID  = 2
)

// peer returns the process that listens at the other end of a socket, and its user.
func peer(c net.Conn) (pid, uid int, ok bool) {
	u, isUnix := c.(*net.UnixConn)
	if !isUnix {
		return 0, 0, false
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return 0, 0, false
	}
	err = raw.Control(func(fd uintptr) {
		var cred struct {
			version, uid uint32
			ngroups      int16
			groups       [16]uint32
		}
		size := uint32(unsafe.Sizeof(cred))
		_, _, errno := syscall.Syscall6(syscall.SYS_GETSOCKOPT, fd, solLocal, localPeerCred,
			uintptr(unsafe.Pointer(&cred)), uintptr(unsafe.Pointer(&size)), 0)
		if errno != 0 {
			return
		}
		uid, ok = int(cred.uid), true
		if n, err := syscall.GetsockoptInt(int(fd), solLocal, localPeerPID); err == nil {
			pid = n
		}
	})
	return pid, uid, ok && err == nil
}
