//go:build unix

package machine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"smol-mcp/fleet/engine/kernel"
)

// Finding is one thing that was looked at.
type Finding struct {
	Code   string `json:"code"`             // a word for programs
	Level  string `json:"level"`            // ok, warning or error
	What   string `json:"what"`             // was found
	Cause  string `json:"cause,omitempty"`  // of what is not ok
	Remedy string `json:"remedy,omitempty"` // what to do about it
}

// Levels of findings. An error keeps machines from running.
const (
	OK      = "ok"
	Warning = "warning"
	Failure = "error"
)

// Examine looks at what Open would need, and goes on where Open would fail. It
// changes nothing but the memory of what boots here.
func Examine(ctx context.Context, opts Options) []Finding {
	var out []Finding
	h := host{bootID: bootID()}
	var err error
	h.qemu, h.version, err = FindQEMU(ctx, opts.QEMU)
	out = append(out, found(err, "qemu", "QEMU "+h.version+" at "+h.qemu))
	if err == nil && !streams(h.version) {
		out = append(out, Finding{"network_unsupported", Warning, "machines cannot have a network", "QEMU " + h.version + " is older than 7.2", "install a later QEMU, or create machines without a network"})
	}
	guest, guestErr := FindGuest(opts.Guest)
	out = append(out, found(guestErr, "guest", "guest program "+guest))
	k, kernelErr := kernel.Find(opts.Kernel, filepath.Join(opts.Cache, "kernel"))
	if kernelErr != nil {
		kernelErr = noKernel(kernelErr)
	}
	out = append(out, found(kernelErr, "kernel", "kernel "+k.Release+" at "+k.Image))
	out = append(out, examineDir("data", opts.Data), examineDir("cache", opts.Cache))
	out = append(out, examineSpace(opts.Data), examineMachines(opts.Data))
	if err != nil || guestErr != nil || kernelErr != nil {
		return append(out, Finding{"accel_unknown", Warning, "nothing can be booted to see whether the hardware helps", "see above", "see above"})
	}
	if h.boot, err = kernel.Prepare(k, guest, filepath.Join(opts.Cache, "boot")); err != nil {
		return append(out, Finding{"kernel_unusable", Failure, "kernel " + k.Release + " cannot be prepared", err.Error(), "run smol-mcp setup --yes to fetch one"})
	}
	accel, why := opts.Accel, "the settings ask for it"
	if accel == "" {
		accel, why = h.chooseAccel(ctx, filepath.Join(opts.Cache, "boot"))
	}
	return append(out, accelFinding(accel, why))
}

// found renders a look that failed or not.
func found(err error, code, well string) Finding {
	var missing *MissingError
	switch {
	case err == nil:
		return Finding{Code: code + "_ok", Level: OK, What: well}
	case errors.As(err, &missing):
		return Finding{missing.Code, Failure, missing.What, "machines cannot run without it", missing.Next}
	}
	return Finding{code + "_broken", Failure, "no usable " + code, err.Error(), "run smol-mcp setup"}
}

// accelFinding says what runs machines, and why not the hardware.
func accelFinding(accel, why string) Finding {
	if accel != "tcg" {
		return Finding{Code: "accel_ok", Level: OK, What: "machines run with " + accel + ": a guest booted"}
	}
	f := Finding{"accel_emulated", Warning, "machines are emulated, 15 to 50 times slower than with the hardware's help, and not a security boundary", why, "use a computer, or a kind of cloud machine, with hardware virtualization"}
	switch {
	case strings.Contains(why, "no such file"):
		f.Code, f.Remedy = "kvm_missing", "load the kvm module, or turn virtualization on in the firmware or the hosting machine"
	case strings.Contains(why, "permission denied"):
		f.Code, f.Remedy = "kvm_denied", "join the group that owns /dev/kvm (often kvm) and log in again"
	case strings.HasPrefix(why, "kvm:"):
		f.Code, f.Remedy = "kvm_broken", "/dev/kvm opens, and a guest does not boot with it: the hosting machine may not support nested virtualization"
	case strings.HasPrefix(why, "hvf:"):
		f.Code, f.Remedy = "hvf_broken", "use a QEMU that is signed for the hypervisor, as Homebrew's is"
	}
	return f
}

// examineDir looks whether a directory is ours and ours alone.
func examineDir(code, dir string) Finding {
	fi, err := os.Stat(dir)
	if errors.Is(err, os.ErrNotExist) {
		return Finding{Code: code + "_ok", Level: OK, What: code + " directory " + dir + " is not there yet"}
	}
	if err != nil {
		return Finding{code + "_unreadable", Failure, code + " directory " + dir + " cannot be read", err.Error(), "see to its rights, or choose another with XDG_DATA_HOME and XDG_CACHE_HOME"}
	}
	if !fi.IsDir() {
		return Finding{code + "_no_directory", Failure, dir + " is not a directory", "a file is in its place", "move it away"}
	}
	if st, ok := fi.Sys().(*syscall.Stat_t); ok && int(st.Uid) != os.Geteuid() {
		return Finding{code + "_owner", Failure, fmt.Sprintf("%s directory %s belongs to user %d, not to %d", code, dir, st.Uid, os.Geteuid()), "another user, perhaps root through sudo, made it", fmt.Sprintf("sudo chown -R %d %s", os.Geteuid(), dir)}
	}
	if fi.Mode().Perm()&0o077 != 0 {
		return Finding{code + "_open", Warning, fmt.Sprintf("%s directory %s is open to others (%s)", code, dir, fi.Mode().Perm()), "whoever reaches the sockets in it controls the machines", "chmod 700 " + dir}
	}
	probe, err := os.CreateTemp(dir, "new-doctor-")
	if err != nil {
		return Finding{code + "_readonly", Failure, code + " directory " + dir + " cannot be written to", err.Error(), "see to its rights and to its file system"}
	}
	probe.Close()
	_ = os.Remove(probe.Name())
	return Finding{Code: code + "_ok", Level: OK, What: code + " directory " + dir}
}

const (
	spaceLow  = 4 << 30 // bytes
	spaceNone = 512 << 20
)

// examineSpace looks at the room for machines.
func examineSpace(dir string) Finding {
	for dir != "/" && dir != "." {
		if _, err := os.Stat(dir); err == nil {
			break
		}
		dir = filepath.Dir(dir)
	}
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return Finding{"space_unknown", Warning, "free space is not known", err.Error(), "see df " + dir}
	}
	free := int64(st.Bavail) * int64(st.Bsize)
	return spaceFinding(dir, free)
}

func spaceFinding(dir string, free int64) Finding {
	what := fmt.Sprintf("%d MiB are free at %s", free>>20, dir)
	switch {
	case free < spaceNone:
		return Finding{"space_none", Failure, what, "a machine takes what it writes, and a template some hundred MiB", "free space, delete machines, or run smol-engine images prune --all"}
	case free < spaceLow:
		return Finding{"space_low", Warning, what, "images and what machines write need room", "delete machines, or run smol-engine images prune --all"}
	}
	return Finding{Code: "space_ok", Level: OK, What: what}
}

// examineMachines reads the records, as load does.
func examineMachines(data string) Finding {
	files, err := filepath.Glob(filepath.Join(data, "machines", "*", "machine.json"))
	if err != nil {
		return Finding{"machines_unreadable", Failure, "machines cannot be listed", err.Error(), ""}
	}
	running := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		var r Record
		if err == nil {
			err = json.Unmarshal(text, &r)
		}
		if err != nil || r.Name != filepath.Base(filepath.Dir(file)) {
			return Finding{"machine_unreadable", Warning, "the record " + file + " cannot be read, so the machine is not offered", fmt.Sprint(err), "repair it, or move its directory away"}
		}
		if r.Process.alive(bootID()) {
			running++
		}
	}
	return Finding{Code: "machines_ok", Level: OK, What: fmt.Sprintf("%d machines, %d of them running", len(files), running)}
}

// CheckBuiltin looks whether a first try needs no network.
func CheckBuiltin(err error) Finding {
	if err == nil {
		return Finding{Code: "busybox_ok", Level: OK, What: "the image builtin:busybox can be made"}
	}
	remedy := "apt-get install busybox-static"
	if runtime.GOOS != "linux" {
		remedy = "use an image of a registry"
	}
	return Finding{"busybox_missing", Warning, "the image builtin:busybox cannot be made", err.Error(), remedy}
}
