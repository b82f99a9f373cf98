//go:build unix

package fleettest

import "syscall"

func groupAndSession() (group, session int) {
	group, _ = syscall.Getpgid(0)
	sid, _, errno := syscall.RawSyscall(syscall.SYS_GETSID, 0, 0, 0)
	if errno == 0 {
		session = int(sid)
	}
	return group, session
}
