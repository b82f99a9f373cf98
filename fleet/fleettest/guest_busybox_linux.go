package fleettest

import (
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
)

// busybox is this computer's static busybox and the names it answers to.
type busybox struct {
	path    string
	applets []string
}

// findBusybox looks for a busybox that runs without any library.
var findBusybox = sync.OnceValues(func() (busybox, error) {
	var why []string
	for _, p := range []string{"/usr/bin/busybox", "/bin/busybox", "/usr/sbin/busybox", "/sbin/busybox", "/usr/bin/busybox.static", "/bin/busybox.static"} {
		static, err := isStatic(p)
		switch {
		case errors.Is(err, os.ErrNotExist):
			continue
		case err != nil:
			why = append(why, err.Error())
			continue
		case !static:
			why = append(why, p+" is not static")
			continue
		}
		out, err := exec.Command(p, "--list").Output()
		if err != nil {
			why = append(why, fmt.Sprintf("%s --list: %v", p, err))
			continue
		}
		b := busybox{path: p}
		for _, a := range strings.Fields(string(out)) {
			if a != "busybox" {
				b.applets = append(b.applets, a)
			}
		}
		return b, nil
	}
	msg := "no static busybox here: install the package busybox-static"
	if why != nil {
		msg += " (" + strings.Join(why, "; ") + ")"
	}
	return busybox{}, errors.New(msg)
})

func isStatic(path string) (bool, error) {
	f, err := elf.Open(path)
	if err != nil {
		return false, err
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return false, nil
		}
	}
	return true, nil
}

// copyBusybox puts the static busybox of this computer at path, unless something is there.
func copyBusybox(path string) error {
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	bb, err := findBusybox()
	if err != nil {
		return err
	}
	b, err := os.ReadFile(bb.path)
	if err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), ".busybox-")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	_, werr := tmp.Write(b)
	if err := errors.Join(werr, tmp.Chmod(0o755), tmp.Close()); err != nil {
		return err
	}
	settle()
	return os.Rename(tmp.Name(), path)
}

// settle returns when no child of this process that was forked while a file
// was open for writing still has it open: such a file cannot be run.
func settle() {
	syscall.ForkLock.RLock()
	syscall.ForkLock.RUnlock()
}
