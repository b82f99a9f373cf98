//go:build linux

package guest

import (
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Signals to PID 1 by which programs ask for an end of the machine.
var ends = []os.Signal{
	unix.SIGUSR2, unix.SIGUSR1, unix.SIGTERM, // poweroff, halt and reboot of busybox
	syscall.Signal(38), syscall.Signal(37), syscall.Signal(39), // the same of systemd: SIGRTMIN+4, +3, +5
}

// obey ends the machine when a program asks for it. All ways to ask power it off: it is
// stopped then, and started when it is needed. Other signals that would end us are dropped,
// since the kernel panics without us.
func (g *guest) obey() {
	asked := make(chan os.Signal, 8)
	signal.Notify(asked, append([]os.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGQUIT}, ends...)...)
	for s := range asked {
		if slices.Contains(ends, s) {
			say("asked to end by %v", s)
			time.Sleep(grace) // whoever asked ends by itself, and its answer goes out
			g.shutDown()
			powerOff()
		}
	}
}

// shutDown ends everything but us: what asks to stop politely gets two seconds.
func (g *guest) shutDown() {
	_ = unix.Kill(-1, unix.SIGTERM)
	for range 40 {
		if !g.procs.any() {
			break
		}
		time.Sleep(50 * time.Millisecond) // between two looks
	}
	_ = unix.Kill(-1, unix.SIGKILL)
	unix.Sync()
	if g.booted.Load() {
		_ = unix.Mount("", "/", "", unix.MS_REMOUNT|unix.MS_RDONLY, "")
	}
}

func powerOff() {
	unix.Sync()
	time.Sleep(20 * time.Millisecond) // the console is slow
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	select {}
}
