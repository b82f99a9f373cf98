//go:build linux

// Package guest is what runs inside a machine as PID 1. [Main] is all of it: it
// loads modules, answers the engine over a virtio-serial port, and becomes a
// machine with disks and a name when the engine says which.
//
// Until then it has neither, so that the state of one guest, saved while it
// waits, can be continued as any machine.
package guest

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"smol-mcp/fleet/engine/agent"
	"smol-mcp/fleet/engine/guest/job"
	"smol-mcp/fleet/engine/guest/lines"
)

// Main never returns: when PID 1 ends, the kernel panics.
func Main() {
	for _, m := range []struct{ kind, at string }{{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}} {
		if err := unix.Mount(m.kind, m.at, m.kind, 0, ""); err != nil {
			say("mount %s: %v", m.at, err)
		}
	}
	if kernelFlag("smol.probe") {
		fmt.Fprintln(os.Stderr, lines.Probe)
		powerOff()
	}
	loadModules("/modules/first")
	g := &guest{procs: newProcs()}
	g.jobs = &job.Host{Launch: g.launch, BootID: "/proc/sys/kernel/random/boot_id"}
	go g.procs.reap()
	go g.obey()
	port, err := findPort()
	if err != nil {
		say("%v", err)
		powerOff()
	}
	g.serve(port)
}

// guest is a running guest.
type guest struct {
	procs  *procs
	jobs   *job.Host
	booted atomic.Bool // asked to become a machine
}

func say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "smol-guest: "+format+"\n", args...)
}

func kernelFlag(name string) bool {
	line, _ := os.ReadFile("/proc/cmdline")
	for _, word := range strings.Fields(string(line)) {
		if word == name {
			return true
		}
	}
	return false
}

// loadModules loads the modules that a list names, a path in the initramfs each,
// in its order.
func loadModules(list string) {
	f, err := os.Open(list)
	if err != nil {
		return // this kernel has everything built in
	}
	defer f.Close()
	for in := bufio.NewScanner(f); in.Scan(); {
		if err := loadModule(filepath.Join("/modules", in.Text())); err != nil {
			say("module %s: %v", in.Text(), err)
		}
	}
}

func loadModule(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.FinitModule(int(f.Fd()), "", 0); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	return nil
}

// await polls for something that the kernel makes by itself, for five seconds.
func await[T any](what string, look func() (T, bool)) (T, error) {
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		if v, ok := look(); ok {
			return v, nil
		}
		if wait == 50*time.Millisecond {
			break
		}
		time.Sleep(wait)
	}
	for range 100 {
		if v, ok := look(); ok {
			return v, nil
		}
		time.Sleep(50 * time.Millisecond)
	}
	var none T
	return none, fmt.Errorf("%s did not appear", what)
}

// findPort returns the device of the engine's virtio-serial port.
func findPort() (string, error) {
	return await("the engine's port", func() (string, bool) {
		names, _ := filepath.Glob("/sys/class/virtio-ports/*/name")
		for _, n := range names {
			if text, _ := os.ReadFile(n); strings.TrimSpace(string(text)) == agent.PortName {
				return "/dev/" + filepath.Base(filepath.Dir(n)), true
			}
		}
		return "", false
	})
}
