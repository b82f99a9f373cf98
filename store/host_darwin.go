package store

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

func bootID() string {
	s, err := unix.Sysctl("kern.bootsessionuuid")
	if err != nil {
		return ""
	}
	return s
}

func machineID() string {
	s, err := unix.Sysctl("kern.uuid")
	if err != nil {
		return ""
	}
	return s
}

func awake() time.Duration { return clock(unix.CLOCK_UPTIME_RAW) }

func suspended() time.Duration {
	return clock(unix.CLOCK_MONOTONIC_RAW) - clock(unix.CLOCK_UPTIME_RAW)
}

func clock(id int32) time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(id, &ts); err != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}

// startTicks tells two processes of one pid apart; 0 when there is none.
func startTicks(pid int) uint64 {
	k, err := unix.SysctlKinfoProc("kern.proc.pid", pid)
	if err != nil {
		return 0
	}
	t := k.Proc.P_starttime
	return uint64(t.Sec)*1e6 + uint64(t.Usec)
}

func pidNamespace() string { return "darwin" }

func lockHolder(*os.File) string { return "" }

// trustedFS reports whether locks on the file system of dir can be trusted, and
// its kind.
func trustedFS(dir string) (bool, string) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return false, err.Error()
	}
	switch kind := unix.ByteSliceToString(st.Fstypename[:]); kind {
	case "apfs", "hfs", "tmpfs", "zfs":
		return true, ""
	default:
		return false, kind
	}
}
