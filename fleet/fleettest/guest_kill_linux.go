package fleettest

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Kill ends every process of the guest, also daemons, and whichever process of
// this computer started them: they are known by their root directory.
func (g *Guest) Kill() error {
	g.fork.Lock()
	defer g.fork.Unlock()
	return g.killAll(func(int) bool { return true })
}

// Stop kills the guest's processes and empties what lives in memory; the
// disk stays.
func (g *Guest) Stop() error {
	errs := []error{g.Kill()}
	for _, d := range []string{"tmp", "run"} {
		p := filepath.Join(g.dir, d)
		entries, err := os.ReadDir(p)
		errs = append(errs, err)
		for _, e := range entries {
			errs = append(errs, os.RemoveAll(filepath.Join(p, e.Name())))
		}
	}
	return errors.Join(errs...)
}

// Close kills the guest's processes and removes it.
func (g *Guest) Close() error {
	return errors.Join(g.Kill(), os.RemoveAll(g.dir))
}

// Suspend stops the guest's processes where they are, and Resume lets them go on.
func (g *Guest) Suspend() error { return g.signal(syscall.SIGSTOP) }

// Resume undoes Suspend.
func (g *Guest) Resume() error { return g.signal(syscall.SIGCONT) }

func (g *Guest) signal(sig syscall.Signal) error {
	g.fork.Lock()
	defer g.fork.Unlock()
	var errs []error
	for _, pid := range g.pids() {
		if err := syscall.Kill(pid, sig); err != nil && err != syscall.ESRCH {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// killSession kills the processes that a command started, but for those that
// began a session of their own.
func (g *Guest) killSession(leader int) {
	g.killAll(func(pid int) bool { return pid == leader || sessionOf(pid) == leader })
}

// killAll kills the processes of the guest that match, until there are none.
func (g *Guest) killAll(match func(pid int) bool) error {
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(2 * time.Millisecond) {
		left := 0
		for _, pid := range g.pids() {
			if match(pid) {
				left++
				syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		switch {
		case left == 0:
			return nil
		case time.Now().After(deadline):
			return errors.New("guest: " + strconv.Itoa(left) + " processes survive SIGKILL")
		}
	}
}

// pids returns the processes whose root directory is the guest's.
func (g *Guest) pids() []int {
	dirs, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var pids []int
	for _, d := range dirs {
		pid, err := strconv.Atoi(d.Name())
		if err != nil {
			continue
		}
		root, err := os.Readlink("/proc/" + d.Name() + "/root")
		if err == nil && strings.TrimSuffix(root, " (deleted)") == g.dir {
			pids = append(pids, pid)
		}
	}
	return pids
}

// sessionOf returns the session of a process, 0 when it is gone.
func sessionOf(pid int) int {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0
	}
	// The name in parentheses may hold anything; fields are counted after it.
	_, rest, _ := strings.Cut(string(b[max(0, strings.LastIndexByte(string(b), ')')):]), " ")
	fields := strings.Fields(rest) // state ppid pgrp session
	if len(fields) < 4 {
		return 0
	}
	sid, _ := strconv.Atoi(fields[3])
	return sid
}
