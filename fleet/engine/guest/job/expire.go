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

// expire ends a job whose time is over, as guest/end.sh of package tools does: its process group, and
// what left that but carries its mark.
func (r *run) expire(group int) {
	select {
	case <-r.closed: // it ended in the same moment
		return
	default:
	}
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
		if inside, outside := r.left(group); !inside && len(outside) == 0 {
			return
		}
	}
	r.signal(group, syscall.SIGKILL)
}

// signal signals what is left of a job, each process once: a second TERM may mean to hurry. The command itself
// may have ended meanwhile; its group's number is not another's so soon.
func (r *run) signal(group int, s syscall.Signal) {
	_, outside := r.left(group)
	_ = syscall.Kill(-group, s)
	for _, pid := range outside {
		_ = syscall.Kill(pid, s)
	}
}

// left tells what of a job is not dead: whether its group has any, and the processes outside of it that
// carry the mark.
func (r *run) left(group int) (inside bool, outside []int) {
	number := strconv.Itoa(group)
	dir, err := os.Open("/proc")
	if err != nil {
		return false, nil
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
		if string(fields[2]) == number {
			inside = true
			continue
		}
		if r.marked("/proc/" + name) {
			outside = append(outside, pid)
		}
	}
	return inside, outside
}

// marked reports whether a process carries the job's mark.
func (r *run) marked(proc string) bool {
	has := func(name, text string) bool {
		all, _ := os.ReadFile(proc + name) // nothing of a process that has ended
		return bytes.Contains(all, []byte(text))
	}
	return has("/environ", "SMOL_MCP_COMMAND="+r.Job.ID) || r.group.name != "" && has("/cgroup", "/"+r.group.name)
}
