//go:build unix

// Package setup gets what the built-in engine needs and does not carry: QEMU, a
// static busybox and a kernel. [Plan] looks and says what it would do; each step
// then does its part.
//
// Only the package manager changes the system. The kernel is unpacked into our cache
// and never installed: how this computer boots is none of our business.
package setup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"smol-mcp/fleet/engine/image"
	"smol-mcp/fleet/engine/kernel"
	"smol-mcp/fleet/engine/machine"
)

// Step is something to be done.
type Step struct {
	What string   `json:"what"` // for people, as "install qemu-system-x86"
	Do   []string `json:"do"`   // the commands that it stands for
	Hand bool     `json:"hand"` // we do not do it here: somebody has to

	run func(ctx context.Context, out io.Writer) error
}

// Run does the step, and shows on out what it runs and what that prints.
func (s Step) Run(ctx context.Context, out io.Writer) error {
	if s.run == nil {
		return fmt.Errorf("%s: do it by hand: %s", s.What, strings.Join(s.Do, " && "))
	}
	return s.run(ctx, out)
}

// system is how the computer installs packages.
type system struct {
	apt     bool   // we do it
	install string // the command for others, with %s for the packages
	qemu    string // package
	busybox string
}

// Plan returns what is missing, never nil. Nothing means that machines can run.
func Plan(ctx context.Context, cache, kernelFile string) []Step {
	sys := whichSystem()
	steps := []Step{} // a list in JSON, also when it is empty
	var packages []string
	if _, _, err := machine.FindQEMU(ctx, ""); err != nil {
		packages = append(packages, sys.qemu)
	}
	if runtime.GOOS == "linux" && image.CheckBuiltin() != nil && sys.busybox != "" {
		packages = append(packages, sys.busybox)
	}
	if len(packages) > 0 {
		steps = append(steps, sys.packages(packages))
	}
	if _, err := kernel.Find(kernelFile, filepath.Join(cache, "kernel")); err != nil {
		steps = append(steps, sys.kernel(cache))
	}
	return steps
}

// whichSystem looks at what installs packages here.
func whichSystem() system {
	s := system{qemu: "qemu-system-x86", busybox: "busybox-static"}
	arm := runtime.GOARCH == "arm64"
	if arm {
		s.qemu = "qemu-system-arm"
	}
	has := func(name string) bool { _, err := exec.LookPath(name); return err == nil }
	switch {
	case runtime.GOOS == "darwin":
		return system{install: "brew install %s", qemu: "qemu"}
	case has("apt-get"):
		s.apt = true
	case has("dnf"):
		s.install, s.qemu, s.busybox = "sudo dnf install -y --setopt=install_weak_deps=False %s", "qemu-system-x86-core", "busybox"
		if arm {
			s.qemu = "qemu-system-aarch64-core"
		}
	case has("pacman"):
		s.install, s.qemu, s.busybox = "sudo pacman -S --needed %s", "qemu-base", "busybox"
	case has("zypper"):
		s.install = "sudo zypper install --no-recommends %s"
		s.qemu = map[bool]string{false: "qemu-x86", true: "qemu-arm"}[arm]
	case has("apk"):
		s.install, s.busybox = "sudo apk add %s", "busybox-static"
		s.qemu = map[bool]string{false: "qemu-system-x86_64", true: "qemu-system-aarch64"}[arm]
	default:
		s.install = "install with your package manager: %s"
	}
	return s
}

// packages is the step that installs some.
func (s system) packages(names []string) Step {
	list := strings.Join(names, " ")
	if !s.apt {
		return Step{What: "install " + list, Do: []string{fmt.Sprintf(s.install, list)}, Hand: true}
	}
	commands := [][]string{
		{"apt-get", "update", "-q"},
		append([]string{"apt-get", "install", "-y", "-q", "--no-install-recommends"}, names...),
	}
	step := Step{What: "install " + list}
	prefix, err := asRoot()
	for _, c := range commands {
		step.Do = append(step.Do, strings.Join(append(append([]string{}, prefix...), c...), " "))
	}
	if err != nil {
		step.Hand = true
		return step
	}
	step.run = func(ctx context.Context, out io.Writer) error {
		for _, c := range commands {
			if err := show(ctx, out, "", append(append([]string{}, prefix...), c...)); err != nil {
				return err
			}
		}
		return nil
	}
	return step
}

// asRoot returns what goes before a command of the administrator.
func asRoot() ([]string, error) {
	if os.Geteuid() == 0 {
		return nil, nil
	}
	if _, err := exec.LookPath("sudo"); err != nil {
		return []string{"(as root)"}, errors.New("no sudo")
	}
	return []string{"sudo"}, nil
}

// show runs a command and shows it and its output.
func show(ctx context.Context, out io.Writer, dir string, argv []string) error {
	fmt.Fprintln(out, "+ "+strings.Join(argv, " "))
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = dir, os.Stdin, out, out
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C.UTF-8")
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w", argv[0], err)
	}
	return nil
}

// kernel is the step that fetches one.
func (s system) kernel(cache string) Step {
	if s.apt {
		return Step{
			What: "unpack a kernel for machines into " + filepath.Join(cache, "kernel"),
			Do:   []string{"apt-get download linux-image-…", "dpkg-deb -x"},
			run: func(ctx context.Context, out io.Writer) error {
				return fetchKernel(ctx, filepath.Join(cache, "kernel"), out)
			},
		}
	}
	return Step{
		What: "get a kernel for machines", Hand: true,
		Do: []string{"put a Linux kernel as vmlinuz and its modules as modules/ into " + filepath.Join(cache, "kernel", "RELEASE") +
			", for instance those of Debian's package linux-image-cloud-" + runtime.GOARCH},
	}
}
