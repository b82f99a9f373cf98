//go:build unix

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
	"slices"
	"strings"

	"smol-mcp/fleet/engine/kernel"
)

// metaPackages depend on the newest kernel for virtual machines: Debian's, then
// Ubuntu's.
func metaPackages() []string {
	return []string{"linux-image-cloud-" + runtime.GOARCH, "linux-image-virtual"}
}

// fetchKernel downloads the newest kernel that the distribution signs, and unpacks
// what machines need of it into dir. It needs no root: apt works in a directory of
// its own where the lists of the system are empty.
func fetchKernel(ctx context.Context, dir string, out io.Writer) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	work, err := os.MkdirTemp(dir, "new-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	a := &apt{work: work, out: out}
	packages, err := a.kernelPackages(ctx)
	if err != nil {
		return err
	}
	if err := show(ctx, out, work, a.command("apt-get", append([]string{"-q", "download"}, packages...)...)); err != nil {
		return err
	}
	debs, err := filepath.Glob(filepath.Join(work, "*.deb"))
	if err != nil || len(debs) == 0 {
		return errors.Join(err, errors.New("apt-get downloaded nothing"))
	}
	tree := filepath.Join(work, "tree")
	for _, deb := range debs {
		if err := show(ctx, out, work, []string{"dpkg-deb", "-x", deb, tree}); err != nil {
			return err
		}
	}
	return install(tree, work, dir, out)
}

// install puts an unpacked kernel in its place with one rename.
func install(tree, work, dir string, out io.Writer) error {
	images, err := filepath.Glob(filepath.Join(tree, "boot", "vmlinuz-*"))
	if err != nil || len(images) != 1 {
		return errors.Join(err, fmt.Errorf("the package holds %d kernels", len(images)))
	}
	release := strings.TrimPrefix(filepath.Base(images[0]), "vmlinuz-")
	ready := filepath.Join(work, "ready")
	if err := os.MkdirAll(filepath.Join(ready, "modules"), 0o700); err != nil {
		return err
	}
	modules := filepath.Join(tree, "lib", "modules", release)
	if _, err := os.Stat(modules); err != nil {
		modules = filepath.Join(tree, "usr", "lib", "modules", release) // from Debian 13 on
	}
	if err := kernel.CopyModules(modules, filepath.Join(ready, "modules")); err != nil {
		return fmt.Errorf("kernel %s: %w", release, err)
	}
	if err := os.Rename(images[0], filepath.Join(ready, "vmlinuz")); err != nil {
		return err
	}
	place := filepath.Join(dir, release)
	if err := os.RemoveAll(place); err != nil {
		return err
	}
	if err := os.Rename(ready, place); err != nil {
		return err
	}
	fmt.Fprintln(out, "kernel "+release+" is in "+place)
	return nil
}

// apt asks the package manager, with its own lists or with some of ours.
type apt struct {
	work    string
	out     io.Writer
	private bool
}

// command is an apt command. Private ones read the system's sources and keys, and
// write nothing outside work.
func (a *apt) command(name string, args ...string) []string {
	argv := []string{name}
	if os.Geteuid() == 0 { // else it wants to download as another user, who cannot write here
		argv = append(argv, "-o", "APT::Sandbox::User=root")
	}
	if a.private {
		argv = append(argv, "-o", "Dir::State="+filepath.Join(a.work, "state"), "-o", "Dir::Cache="+filepath.Join(a.work, "cache"),
			"-o", "Dir::State::status=/var/lib/dpkg/status", "-o", "Debug::NoLocking=1")
	}
	return append(argv, args...)
}

// kernelPackages names the packages of the newest kernel.
func (a *apt) kernelPackages(ctx context.Context) ([]string, error) {
	packages, err := a.resolve(ctx)
	if err == nil {
		return packages, nil
	}
	a.private = true
	for _, d := range []string{"state/lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(a.work, d), 0o755); err != nil {
			return nil, err
		}
	}
	if err := show(ctx, a.out, a.work, a.command("apt-get", "update", "-q")); err != nil {
		return nil, err
	}
	return a.resolve(ctx)
}

// resolve follows a meta package to the kernel, and to the modules where those are a
// package of their own.
func (a *apt) resolve(ctx context.Context) ([]string, error) {
	for _, meta := range metaPackages() {
		image := first(a.depends(ctx, meta), "linux-image-")
		if image == "" {
			continue
		}
		packages := []string{image}
		if modules := first(a.depends(ctx, image), "linux-modules-"); modules != "" {
			packages = append(packages, modules)
		}
		return packages, nil
	}
	return nil, fmt.Errorf("apt knows none of %s", strings.Join(metaPackages(), ", "))
}

func first(names []string, prefix string) string {
	i := slices.IndexFunc(names, func(n string) bool { return strings.HasPrefix(n, prefix) })
	if i < 0 {
		return ""
	}
	return names[i]
}

// depends returns what a package depends on; nothing when apt does not know it.
func (a *apt) depends(ctx context.Context, name string) []string {
	argv := a.command("apt-cache", "depends", "--no-recommends", "--no-suggests", name)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	text, err := cmd.Output()
	if err != nil {
		return nil
	}
	var out []string
	for line := range strings.Lines(string(text)) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "Depends: "); ok && !strings.HasPrefix(name, "<") {
			out = append(out, name)
		}
	}
	return out
}
