//go:build unix

package machine

import (
	"context"
	"fmt"
	"syscall"
	"time"
)

// process is a QEMU that may have been started by an earlier process of ours.
// A number alone is no proof: it may have gone to another program since.
type process struct {
	PID    int    `json:"pid"`
	Begun  string `json:"begun"`  // when it began, as the system tells it
	BootID string `json:"bootId"` // of the computer
}

// alive reports whether the process still is the one that was started.
func (p *process) alive(bootID string) bool {
	return p != nil && p.PID > 0 && p.BootID == bootID && p.Begun != "" && begun(p.PID) == p.Begun
}

// kill ends the process, and any other QEMU with the uuid: one that was started
// and not recorded. It returns when they have ended.
func (p *process) kill(bootID, uuid string) error {
	var pids []int
	if p.alive(bootID) {
		pids = append(pids, p.PID)
	}
	if uuid != "" {
		pids = append(pids, withArgument(uuid)...)
	}
	for _, pid := range pids {
		was := begun(pid)
		if was == "" {
			continue
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && err != syscall.ESRCH {
			return fmt.Errorf("end process %d: %w", pid, err)
		}
		if !awaitEnd(context.Background(), pid, was, 10*time.Second) {
			return fmt.Errorf("process %d did not end within 10s of SIGKILL", pid)
		}
	}
	return nil
}

// awaitEnd waits until the process that began then has ended.
func awaitEnd(ctx context.Context, pid int, was string, atMost time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, atMost)
	defer cancel()
	for wait := time.Millisecond; begun(pid) == was; wait = min(2*wait, 20*time.Millisecond) {
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return begun(pid) != was
		}
	}
	return true
}
