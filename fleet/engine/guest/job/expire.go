//go:build linux

package job

import (
	"bytes"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// grace is how long after TERM what is left of a job is killed, and glance how often it is looked for.
const (
	grace  = 2 * time.Second
	glance = 100 * time.Millisecond
)

// expire ends a job whose time is over, as guest/end.sh of package tools does: its group, and what
// left the group but carries its mark.
func (r *run) expire(group int) {
	_ = r.As(func() error {
		fd, err := unix.Open(r.path("why"), unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o644)
		if err == nil {
			_, _ = unix.Write(fd, []byte("timeout\n"))
			err = unix.Close(fd)
		}
		return err
	})
	r.signal(group, syscall.SIGTERM)
	for begin := time.Now(); time.Since(begin) < grace; time.Sleep(glance) {
		if len(r.left(group)) == 0 {
			return
		}
	}
	r.signal(group, syscall.SIGKILL)
}

// signal signals what is left of a job.
func (r *run) signal(group int, s syscall.Signal) {
	for _, pid := range r.left(group) {
		_ = syscall.Kill(pid, s)
	}
	select {
	case <-r.closed: // the group's number may be another's
	default:
		_ = syscall.Kill(-group, s)
	}
}

// left returns the processes of a job that are not dead.
func (r *run) left(group int) []int {
	mark := []byte("SMOL_MCP_COMMAND=" + r.Job.ID)
	ended := false
	select {
	case <-r.closed:
		ended = true
	default:
	}
	var pids []int
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil || pid == 1 {
			continue
		}
		stat, err := os.ReadFile("/proc/" + name + "/stat")
		if err != nil {
			continue
		}
		// After the name, which ends with the last parenthesis: state, parent, group.
		fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
		if len(fields) < 3 || bytes.ContainsAny(fields[0], "ZX") {
			continue
		}
		ours := !ended && string(fields[2]) == strconv.Itoa(group)
		if !ours {
			env, _ := os.ReadFile("/proc/" + name + "/environ")
			ours = bytes.Contains(env, mark)
		}
		if ours {
			pids = append(pids, pid)
		}
	}
	return pids
}
