package fleet

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
)

// program is an engine that can be started.
type program struct {
	name string // smolvm or smol-engine
	path string
	args []string
	hint string // what to do when it cannot be started
}

// program chooses what to start: smolvm where it is installed, else the
// built-in engine, unless the settings name one.
func (f *finder) program() (program, error) {
	smolvm, smolvmErr := f.smolvm()
	engine, engineErr := builtin()
	switch {
	case f.opts.Kind == "smolvm" && smolvmErr != nil:
		return program{}, f.missing(smolvmErr)
	case f.opts.Kind == "qemu" && engineErr != nil:
		return program{}, f.missing(engineErr)
	case f.opts.Kind != "qemu" && smolvmErr == nil:
		return smolvm, nil
	case f.opts.Kind != "smolvm" && engineErr == nil:
		return engine, nil
	}
	return program{}, f.missing(smolvmErr, engineErr)
}

func (f *finder) smolvm() (program, error) {
	p := program{name: "smolvm", args: []string{"serve", "start"}, hint: "set SMOLVM to the smolvm program"}
	path, err := exec.LookPath(f.opts.Smolvm)
	if err != nil {
		return p, bare(err)
	}
	p.path, err = filepath.Abs(path)
	return p, err
}

// builtin finds the built-in engine beside our own program, else on PATH.
func builtin() (program, error) {
	p := program{name: "smol-engine", args: []string{"serve"}, hint: "build smol-engine again"}
	exe, err := os.Executable()
	if err == nil {
		exe, err = filepath.EvalSymlinks(exe)
	}
	if err == nil {
		if path, err := exec.LookPath(filepath.Join(filepath.Dir(exe), "smol-engine")); err == nil {
			p.path = path
			return p, nil
		}
	}
	path, err := exec.LookPath("smol-engine")
	if err != nil {
		return p, bare(err)
	}
	p.path, err = filepath.Abs(path)
	return p, err
}

// bare is err without the package's words.
func bare(err error) error {
	var e *exec.Error
	if errors.As(err, &e) {
		return fmt.Errorf("%s: %w", e.Name, e.Err)
	}
	return err
}

// missing is the one error for all that could not be found.
func (f *finder) missing(errs ...error) error {
	var why []string
	for _, err := range errs {
		why = append(why, err.Error())
	}
	next := "install smolvm (SMOLVM names it when it is not on PATH), or put smol-engine beside this program"
	switch f.opts.Kind {
	case "smolvm":
		next = "install smolvm, or set SMOLVM to its path"
	case "qemu":
		next = "build smol-engine and put it beside this program or on PATH"
	}
	if kvm := kvmProblem("/dev/kvm"); kvm != "" {
		why = append(why, kvm)
	}
	op := "find an engine to start"
	if f.opts.URL != "" {
		op = "find an engine: nothing answers at " + f.opts.URL + ", and to start one there"
	}
	return &Error{Code: CodeUnavailable, Op: op, Why: Bound(strings.Join(why, "; "), MaxWhy), Next: next, Err: errors.Join(errs...)}
}

// kvmProblem says what keeps this user from the hardware's virtualization. It
// is empty where nothing does, and on other systems.
func kvmProblem(dev string) string {
	if runtime.GOOS != "linux" {
		return ""
	}
	f, err := os.OpenFile(dev, os.O_RDWR, 0)
	switch {
	case err == nil:
		f.Close()
		return ""
	case errors.Is(err, fs.ErrNotExist):
		return "and " + dev + " is missing: load the kvm module, or turn virtualization on in the firmware or the hosting machine"
	case errors.Is(err, fs.ErrPermission):
		return "and " + dev + " is not accessible: " + joinGroup(dev)
	}
	return "and " + dev + " does not work: " + err.Error()
}

// joinGroup says which group may use a device.
func joinGroup(dev string) string {
	fi, err := os.Stat(dev)
	if err != nil {
		return err.Error()
	}
	gid, ok := groupOf(fi)
	if !ok || fi.Mode().Perm()&0o060 != 0o060 {
		return "its mode is " + fi.Mode().Perm().String()
	}
	name := "with the id " + strconv.Itoa(gid)
	if g, err := user.LookupGroupId(strconv.Itoa(gid)); err == nil {
		name = g.Name
	}
	return "join the group " + name + " and log in again"
}
