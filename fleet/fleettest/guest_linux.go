package fleettest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
)

// Guest is a scratch machine: a directory with a tiny root file system in
// which commands run under chroot. It stands in for what a hypervisor
// would keep apart, and keeps nothing apart: its programs see the processes
// and the network of this computer, and run as root where the tests do. Feed it tests'
// own commands only.
//
// /proc is not mounted. /dev/console is a file that grows with what is written to it.
type Guest struct {
	dir  string // without symbolic links
	opts GuestOptions
	fork sync.RWMutex // held for writing by Kill, so that nothing is born while it looks
}

// skeleton is what every guest has beside its programs.
var skeleton = []struct {
	path string
	mode fs.FileMode
}{
	{"bin", 0o755}, {"dev", 0o755}, {"etc", 0o755}, {"proc", 0o555}, {"root", 0o700},
	{"run", 0o755}, {"tmp", 0o777 | fs.ModeSticky}, {"usr", 0o755}, {"usr/bin", 0o755}, {"workspace", 0o755},
}

// whole is the file that is made last, and so says that a guest is complete.
const whole = "etc/hostname"

// OpenGuest returns the guest at dir and makes it when there is none.
func OpenGuest(dir string, opts GuestOptions) (*Guest, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("guest: %w", err)
	}
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil, fmt.Errorf("guest: %w", err)
	}
	g := &Guest{dir: dir, opts: opts}
	if _, err := os.Lstat(filepath.Join(dir, whole)); err == nil {
		return g, nil
	}
	for _, d := range skeleton {
		p := filepath.Join(dir, d.path)
		if err := os.MkdirAll(p, 0o755); err != nil {
			return nil, fmt.Errorf("guest: %w", err)
		}
		if err := os.Chmod(p, d.mode); err != nil {
			return nil, fmt.Errorf("guest: %w", err)
		}
	}
	if err := g.install(); err != nil {
		return nil, fmt.Errorf("guest: %w", err)
	}
	g.devices()
	for _, f := range []struct{ name, text string }{
		{"dev/console", ""},
		{"etc/passwd", "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"},
		{"etc/group", "root:x:0:\nnogroup:x:65534:\n"},
		{whole, "guest\n"},
	} {
		if err := os.WriteFile(filepath.Join(dir, f.name), []byte(f.text), 0o644); err != nil {
			return nil, fmt.Errorf("guest: %w", err)
		}
	}
	return g, nil
}

// Dir is the guest's root directory on this computer.
func (g *Guest) Dir() string { return g.dir }

// install makes the guest's programs.
func (g *Guest) install() error {
	bb, err := findBusybox()
	if err != nil {
		return err
	}
	bin := filepath.Join(g.dir, "bin")
	names := []string{"busybox"}
	if g.opts.NoShell {
		names = []string{"cat", "echo"}
	}
	for _, name := range names {
		p := filepath.Join(bin, name)
		if g.opts.Busybox != "" {
			if err := copyBusybox(g.opts.Busybox); err != nil {
				return err
			}
			err := os.Link(g.opts.Busybox, p)
			if err == nil || errors.Is(err, fs.ErrExist) {
				continue
			}
		}
		if err := copyBusybox(p); err != nil {
			return err
		}
	}
	if g.opts.NoShell {
		return nil
	}
	// One symbolic link under many names: a new one each takes ten times as long.
	first := filepath.Join(bin, bb.applets[0])
	if err := os.Symlink("busybox", first); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	for _, a := range bb.applets[1:] {
		if err := os.Link(first, filepath.Join(bin, a)); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}

// devices makes the device files that programs take for granted. An ordinary
// user may not make devices: /dev/null is an empty file then, emptied before
// each command, and the others are missing.
func (g *Guest) devices() {
	for _, d := range []struct {
		name  string
		minor int
	}{{"null", 3}, {"zero", 5}, {"full", 7}, {"random", 8}, {"urandom", 9}} {
		p := filepath.Join(g.dir, "dev", d.name)
		if err := syscall.Mknod(p, syscall.S_IFCHR|0o666, 1<<8|d.minor); err == nil {
			f, err := os.OpenFile(p, os.O_RDWR, 0)
			if err == nil {
				f.Close()
				os.Chmod(p, 0o666)
				continue
			}
			os.Remove(p) // a file system mounted nodev
		}
		if d.name == "null" {
			os.WriteFile(p, nil, 0o666)
			os.Chmod(p, 0o666)
		}
	}
}

// emptyNull keeps an ordinary user's /dev/null from giving back what was written to it.
func (g *Guest) emptyNull() {
	p := filepath.Join(g.dir, "dev/null")
	if fi, err := os.Lstat(p); err == nil && fi.Mode().IsRegular() {
		os.Truncate(p, 0)
	}
}
