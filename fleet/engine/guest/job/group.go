//go:build linux

package job

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// A group is a control group (cgroup v2): a process stays in it whatever it does with its
// environment, its session or its parents.
type group struct {
	name string // ends with a dot, so that none is the beginning of another
	fd   int    // or NoGroup
}

// NoGroup is in place of a control group.
const NoGroup = -1

// groups are the control groups of jobs. One is made ahead, since that takes an emulated guest
// more than a millisecond.
type groups struct {
	mu    sync.Mutex
	made  int
	spare *group
	left  []string // of jobs that have ended: what they started may go on
}

// takeGroup returns a group that no job has had.
func (h *Host) takeGroup() group {
	g := &h.groups
	g.mu.Lock()
	defer g.mu.Unlock()
	if s := g.spare; s != nil {
		g.spare = nil
		return *s
	}
	return h.makeGroup()
}

// returnGroup takes back a group that no process has been in.
func (h *Host) returnGroup(unused group) {
	g := &h.groups
	g.mu.Lock()
	defer g.mu.Unlock()
	if unused.fd == NoGroup {
		return
	}
	if g.spare == nil {
		g.spare = &unused
		return
	}
	_ = unix.Close(unused.fd)
	_ = unix.Rmdir(filepath.Join(h.Groups, unused.name))
}

// makeGroup makes a group. Its caller holds the lock.
func (h *Host) makeGroup() group {
	none := group{fd: NoGroup}
	if h.Groups == "" {
		return none
	}
	h.groups.made++
	name := fmt.Sprintf("smol-job-%d.", h.groups.made)
	path := filepath.Join(h.Groups, name)
	if err := unix.Mkdir(path, 0o755); err != nil {
		return none
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		_ = unix.Rmdir(path)
		return none
	}
	return group{name, fd}
}

// dropGroup removes the group of a job that has ended, with those that had processes at the
// ends of their jobs and have none any more; the system keeps the others. Then it makes a spare one.
func (h *Host) dropGroup(name string) {
	if name == "" {
		return
	}
	g := &h.groups
	g.mu.Lock()
	defer g.mu.Unlock()
	g.left = slices.DeleteFunc(append(g.left, name), func(name string) bool {
		err := unix.Rmdir(filepath.Join(h.Groups, name))
		return err == nil || errors.Is(err, unix.ENOENT)
	})
	if g.spare == nil {
		if s := h.makeGroup(); s.fd != NoGroup {
			g.spare = &s
		}
	}
}
