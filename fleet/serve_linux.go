package fleet

import (
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// processBegun returns what tells a living process from all others that had or
// will have its number: when it began, in ticks since the computer did. It is
// empty for a process that has ended, also when nobody has asked how yet.
func processBegun(pid int) string {
	if pid <= 0 {
		return ""
	}
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return ""
	}
	// The program's name stands in parentheses and may hold any character.
	fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	const state, threads, begun = 0, 17, 19
	if len(fields) <= begun || fields[state] == "X" {
		return ""
	}
	// A zombie whose other threads are not gone yet still has its files and sockets.
	if n, err := strconv.Atoi(fields[threads]); fields[state] == "Z" && (err != nil || n <= 1) {
		return ""
	}
	return fields[begun]
}

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
		cred, err := syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
		if err == nil {
			pid, uid, ok = int(cred.Pid), int(cred.Uid), true
		}
	})
	return pid, uid, ok && err == nil
}
