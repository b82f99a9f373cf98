//go:build unix

package machine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"smol-mcp/fleet/engine/guest/lines"
	"smol-mcp/fleet/engine/kernel"
)

// MissingError is something that this computer lacks to run machines. Code is a
// word for programs, Next what to do.
type MissingError struct{ Code, What, Next string }

func (e *MissingError) Error() string { return e.What + "; " + e.Next }

// look finds out what this computer has to run machines with.
func look(ctx context.Context, opts Options) (host, error) {
	h := host{bootID: bootID()}
	var err error
	if h.qemu, h.version, err = FindQEMU(ctx, opts.QEMU); err != nil {
		return h, err
	}
	guest, err := FindGuest(opts.Guest)
	if err != nil {
		return h, err
	}
	k, err := kernel.Find(opts.Kernel, filepath.Join(opts.Cache, "kernel"))
	if err != nil {
		return h, noKernel(err)
	}
	if h.boot, err = kernel.Prepare(k, guest, filepath.Join(opts.Cache, "boot")); err != nil {
		return h, err
	}
	h.accel, h.why = opts.Accel, "the settings ask for it"
	if h.accel == "" {
		h.accel, h.why = h.chooseAccel(ctx, filepath.Join(opts.Cache, "boot"))
	}
	return h, nil
}

// noKernel is the error of a kernel that was not found.
func noKernel(err error) error {
	return &MissingError{"kernel_missing", err.Error(), "run smol-mcp setup --yes, which fetches one"}
}

// arch is what differs between the processors of this computer, and so of its
// machines.
type arch struct {
	qemu    string // program
	machine string // machine type and options
	console string
	pack    string // Debian package of the program
}

func hostArch() arch {
	if runtime.GOARCH == "arm64" {
		return arch{"qemu-system-aarch64", "virt", "ttyAMA0", "qemu-system-arm"}
	}
	return arch{"qemu-system-x86_64", "q35,smm=off,sata=off,smbus=off,usb=off,hpet=off,vmport=off,i8042=off,graphics=off", "ttyS0", "qemu-system-x86"}
}

// FindQEMU returns the path and version of the hypervisor: path, or what is on PATH.
func FindQEMU(ctx context.Context, path string) (found, version string, err error) {
	name := path
	if name == "" {
		name = hostArch().qemu
	}
	found, err = exec.LookPath(name)
	if err != nil {
		next := "run smol-mcp setup --yes, or install QEMU: apt-get install --no-install-recommends " + hostArch().pack
		if runtime.GOOS == "darwin" {
			next = "install QEMU: brew install qemu"
		}
		return "", "", &MissingError{"qemu_missing", "no " + name + " on PATH", next}
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, found, "--version").Output()
	line, _, _ := strings.Cut(string(out), "\n")
	version, ok := strings.CutPrefix(line, "QEMU emulator version ")
	if err != nil || !ok {
		return found, "", &MissingError{"qemu_broken", fmt.Sprintf("%s --version fails (%v)", found, err), "install QEMU again"}
	}
	return found, version, nil
}

// FindGuest returns the path of smol-guest: path, beside this program, or on PATH.
func FindGuest(path string) (string, error) {
	if path != "" {
		_, err := os.Stat(path)
		return path, err
	}
	if exe, err := os.Executable(); err == nil {
		if exe, err = filepath.EvalSymlinks(exe); err == nil {
			if beside := filepath.Join(filepath.Dir(exe), "smol-guest"); isFile(beside) {
				return beside, nil
			}
		}
	}
	if found, err := exec.LookPath("smol-guest"); err == nil {
		return found, nil
	}
	return "", &MissingError{"guest_missing", "no smol-guest beside smol-engine or on PATH", "build it: CGO_ENABLED=0 GOOS=linux go build -o bin/ ./cmd/smol-guest"}
}

func isFile(path string) bool {
	fi, err := os.Stat(path)
	return err == nil && fi.Mode().IsRegular()
}

// chooseAccel boots a kernel with the hardware's help. A device that opens, and
// even makes a virtual machine, may still fail or hang with the first guest. What
// was found holds for this boot of the computer.
func (h host) chooseAccel(ctx context.Context, dir string) (accel, why string) {
	hardware := map[string]string{"linux": "kvm", "darwin": "hvf"}[runtime.GOOS]
	if hardware == "" {
		return "tcg", "there is none on " + runtime.GOOS
	}
	if runtime.GOOS == "linux" {
		f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
		if err != nil {
			return "tcg", err.Error()
		}
		f.Close()
	}
	key := strings.Join([]string{h.bootID, h.boot.Key, h.version}, " ")
	memo := filepath.Join(dir, "accel")
	if data, err := os.ReadFile(memo); err == nil {
		if rest, ok := strings.CutPrefix(string(data), key+"\n"); ok {
			if accel, why, ok := strings.Cut(rest, "\n"); ok {
				return accel, why
			}
		}
	}
	accel = hardware
	if err := h.probe(ctx, hardware); err != nil {
		accel, why = "tcg", err.Error()
	}
	_ = os.WriteFile(memo, []byte(key+"\n"+accel+"\n"+why), 0o600) // else it is probed again
	return accel, why
}

// probe boots a guest that says so and ends. A hang costs five seconds.
func (h host) probe(ctx context.Context, accel string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 5*time.Second, errors.New("a guest did not boot within 5s"))
	defer cancel()
	args := append(h.common(accel, 256, 1), "-serial", "stdio", "-object", "memory-backend-ram,id=ram,size=256M",
		"-kernel", h.boot.Kernel, "-initrd", h.boot.Initrd, "-append", kernelLine+" console="+hostArch().console+" smol.probe")
	cmd := exec.CommandContext(ctx, h.qemu, args...)
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	switch {
	case strings.Contains(string(out), lines.Probe):
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("%s: %w", accel, context.Cause(ctx))
	}
	return fmt.Errorf("%s: a guest does not boot: %s (%v)", accel, tail(out, 200), err)
}

// kernelLine is given to each guest's kernel, besides its console.
const kernelLine = "quiet panic=-1 no_timer_check tsc=reliable cryptomgr.notests random.trust_cpu=on"

// common is what every QEMU gets.
func (h host) common(accel string, memoryMB, cpus int) []string {
	cpu := "host"
	if accel == "tcg" {
		accel, cpu = "tcg,thread=multi,tb-size=128", "max"
	}
	args := []string{
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-M", hostArch().machine + ",memory-backend=ram", "-accel", accel, "-cpu", cpu,
		"-m", fmt.Sprint(memoryMB), "-smp", fmt.Sprint(cpus),
	}
	if runtime.GOOS == "linux" {
		args = append(args, "-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny")
	}
	return args
}

// tail returns the end of what a program printed, in one line.
func tail(out []byte, n int) string {
	if len(out) > n {
		out = out[len(out)-n:]
	}
	return strings.Join(strings.Fields(strings.ToValidUTF8(string(out), "?")), " ")
}
