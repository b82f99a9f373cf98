//go:build unix

// Package kernel makes what a machine boots from: a Linux kernel that somebody
// else built, and an initramfs with smol-guest and the modules it needs.
// [Find] looks for the kernel, [Prepare] makes the two files.
package kernel

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sort"
	"strconv"
	"strings"
)

// Kernel is a bootable kernel with its modules.
type Kernel struct {
	Release string // as uname -r says it
	Image   string // the file, as distributions ship it
	Modules string // directory with modules.builtin and kernel/
}

// ErrNone is wrapped by Find when there is no kernel.
var ErrNone = errors.New("no kernel for machines")

// Find returns the kernel at path when that is not empty. Else the newest one in
// dir, which holds a directory for each release, else the newest that this
// computer could boot itself and that we may read.
func Find(path, dir string) (Kernel, error) {
	if path != "" {
		return at(path)
	}
	ours, _ := filepath.Glob(filepath.Join(dir, "*", "vmlinuz"))
	if k, err := newest(ours); err == nil {
		return k, nil
	}
	var host []string
	if runtime.GOOS == "linux" {
		host, _ = filepath.Glob("/boot/vmlinuz-*")
	}
	k, err := newest(host)
	if err != nil {
		return k, fmt.Errorf("%w in %s or /boot", ErrNone, dir)
	}
	return k, nil
}

// newest returns the usable one with the highest release.
func newest(images []string) (Kernel, error) {
	var all []Kernel
	for _, image := range images {
		if k, err := at(image); err == nil {
			all = append(all, k)
		}
	}
	if len(all) == 0 {
		return Kernel{}, ErrNone
	}
	sort.Slice(all, func(i, j int) bool { return later(all[i].Release, all[j].Release) })
	return all[0], nil
}

// at describes the kernel in a file, which must be called vmlinuz-RELEASE, as in
// /boot, or lie in a directory called RELEASE beside its modules.
func at(image string) (Kernel, error) {
	k := Kernel{Image: image}
	if release, ok := strings.CutPrefix(filepath.Base(image), "vmlinuz-"); ok {
		k.Release = release
		k.Modules = filepath.Join(filepath.Dir(filepath.Dir(image)), "lib", "modules", release)
	} else {
		k.Release = filepath.Base(filepath.Dir(image))
		k.Modules = filepath.Join(filepath.Dir(image), "modules")
	}
	f, err := os.Open(image)
	if err != nil {
		return k, err
	}
	f.Close()
	if _, err := os.Stat(filepath.Join(k.Modules, "modules.builtin")); err != nil {
		return k, fmt.Errorf("kernel %s has no modules: %w", image, err)
	}
	return k, nil
}

// later compares releases by their numbers, as 6.1.0-9 < 6.1.0-57.
func later(a, b string) bool {
	x, y := numbers(a), numbers(b)
	for i := range min(len(x), len(y)) {
		if x[i] != y[i] {
			return x[i] > y[i]
		}
	}
	return len(x) > len(y)
}

func numbers(text string) []int {
	var out []int
	for _, part := range strings.FieldsFunc(text, func(r rune) bool { return r < '0' || r > '9' }) {
		n, err := strconv.Atoi(part)
		if err != nil {
			n = 0 // longer than any release's
		}
		out = append(out, n)
	}
	return out
}
