//go:build linux

package guest

import (
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
)

// procs reaps every process of the guest, and tells those who wait for one of
// ours how it ended.
type procs struct {
	mu      sync.Mutex // held over each fork, so that no child is reaped before it is known
	waiting map[int]chan syscall.WaitStatus
}

func newProcs() *procs { return &procs{waiting: map[int]chan syscall.WaitStatus{}} }

// start starts a program. Its status arrives in ended, once.
func (p *procs) start(path string, argv []string, attr *syscall.ProcAttr) (pid int, ended <-chan syscall.WaitStatus, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	pid, err = syscall.ForkExec(path, argv, attr)
	if err != nil {
		return 0, nil, err
	}
	c := make(chan syscall.WaitStatus, 1)
	p.waiting[pid] = c
	return pid, c, nil
}

// reap runs for as long as the guest does.
func (p *procs) reap() {
	children := make(chan os.Signal, 1)
	signal.Notify(children, syscall.SIGCHLD)
	for range children {
		for {
			var ws syscall.WaitStatus
			pid, err := syscall.Wait4(-1, &ws, syscall.WNOHANG, nil)
			if err == syscall.EINTR {
				continue
			}
			if err != nil || pid <= 0 {
				break
			}
			p.mu.Lock()
			c := p.waiting[pid]
			delete(p.waiting, pid)
			p.mu.Unlock()
			if c != nil {
				c <- ws
			}
		}
	}
}

// any reports whether a process other than PID 1 has a program of its own, as
// threads of the kernel do not.
func (p *procs) any() bool {
	dirs, _ := os.ReadDir("/proc")
	for _, d := range dirs {
		pid, err := strconv.Atoi(d.Name())
		if err != nil || pid == 1 {
			continue
		}
		if line, err := os.ReadFile("/proc/" + d.Name() + "/cmdline"); err == nil && len(line) > 0 {
			return true
		}
	}
	return false
}
