package store

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

func machineID() string {
	for _, f := range []string{"/etc/machine-id", "/var/lib/dbus/machine-id"} {
		if b, err := os.ReadFile(f); err == nil && len(bytes.TrimSpace(b)) >= 32 {
			return strings.TrimSpace(string(b))
		}
	}
	return ""
}

// awake is CLOCK_MONOTONIC, which stops while the computer is suspended.
func awake() time.Duration { return clock(unix.CLOCK_MONOTONIC) }

func suspended() time.Duration {
	return clock(unix.CLOCK_BOOTTIME) - clock(unix.CLOCK_MONOTONIC)
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
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	// the command's name is in parentheses and may hold anything
	_, rest, ok := strings.Cut(string(b), ") ")
	for ok && strings.Contains(rest, ") ") {
		_, rest, _ = strings.Cut(rest, ") ")
	}
	f := strings.Fields(rest)
	if len(f) < 20 {
		return 0
	}
	n, _ := strconv.ParseUint(f[19], 10, 64)
	return n
}

func pidNamespace() string {
	s, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return ""
	}
	return s
}

// lockHolder names the process that holds the lock of a file, as far as the
// kernel tells.
func lockHolder(f *os.File) string {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return ""
	}
	b, err := os.ReadFile("/proc/locks")
	if err != nil {
		return ""
	}
	file := fmt.Sprintf("%02x:%02x:%d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
	for line := range strings.Lines(string(b)) {
		w := strings.Fields(line)
		if len(w) < 6 || w[1] != "FLOCK" || w[5] != file { // waiters have "->" in w[1]
			continue
		}
		return fmt.Sprintf("pid %s, state %s", w[4], processState(w[4]))
	}
	return ""
}

func processState(pid string) string {
	b, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return "gone"
	}
	s := string(b)
	if i := strings.LastIndexByte(s, ')'); i >= 0 && i+2 < len(s) {
		return s[i+2 : i+3]
	}
	return "?"
}

// trustedFS reports whether locks on the file system of dir can be trusted, and
// its kind.
func trustedFS(dir string) (bool, string) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return false, err.Error()
	}
	switch uint32(st.Type) {
	case unix.TMPFS_MAGIC, unix.RAMFS_MAGIC, unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC,
		unix.BTRFS_SUPER_MAGIC, unix.F2FS_SUPER_MAGIC, unix.OVERLAYFS_SUPER_MAGIC,
		0x2fc12fc1: // zfs
		return true, ""
	case unix.NFS_SUPER_MAGIC:
		return false, "NFS"
	case unix.FUSE_SUPER_MAGIC:
		return false, "FUSE or virtiofs"
	case unix.V9FS_MAGIC:
		return false, "9p"
	case unix.CIFS_SUPER_MAGIC, unix.SMB2_SUPER_MAGIC:
		return false, "CIFS"
	}
	return false, fmt.Sprintf("a file system of type %#x", uint32(st.Type))
}
