//go:build unix

package kernel

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Boot is what a hypervisor is given.
type Boot struct {
	Release string
	Kernel  string // path
	Initrd  string // path
	Key     string // differs when anything in either file does
}

// modulesFirst are loaded when the guest begins, modulesSecond when it becomes a
// machine, so that the disks of that machine are looked at then.
var (
	modulesFirst  = []string{"virtio_pci", "virtio_console", "virtio-rng", "virtio_net", "overlay", "ext4"}
	modulesSecond = []string{"virtio_blk"}
)

// Prepare makes kernel and initramfs in dir, or finds them there. guest is the
// smol-guest program.
func Prepare(k Kernel, guest, dir string) (Boot, error) {
	key, err := digest(k, guest)
	if err != nil {
		return Boot{}, err
	}
	b := Boot{Release: k.Release, Key: key}
	b.Kernel, b.Initrd = filepath.Join(dir, "vmlinux-"+key), filepath.Join(dir, "initrd-"+key)
	if exists(b.Kernel) && exists(b.Initrd) {
		return b, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return b, err
	}
	if err := whole(b.Kernel, func(w io.Writer) error { return unpack(w, k.Image) }); err != nil {
		return b, fmt.Errorf("unpack kernel %s: %w", k.Image, err)
	}
	if err := whole(b.Initrd, func(w io.Writer) error { return initramfs(w, k, guest) }); err != nil {
		return b, fmt.Errorf("make the initramfs of kernel %s: %w", k.Release, err)
	}
	return b, dropOld(dir, key)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// keepOld is how long what was prepared for another kernel or program is kept:
// an engine that was started before may boot with it.
const keepOld = 7 * 24 * time.Hour

// dropOld removes what was prepared for other kernels and programs long ago.
func dropOld(dir, key string) error {
	all, err := filepath.Glob(filepath.Join(dir, "*-*"))
	for _, path := range all {
		fi, statErr := os.Stat(path)
		if statErr == nil && !strings.HasSuffix(path, key) && time.Since(fi.ModTime()) > keepOld {
			_ = os.Remove(path) // at the next time, then
		}
	}
	return err
}

// whole makes a file with one rename.
func whole(path string, fill func(io.Writer) error) error {
	f, err := os.CreateTemp(filepath.Dir(path), "new-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	w := bufio.NewWriterSize(f, 1<<20)
	if err := fill(w); err != nil {
		return err
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// digest is over names, sizes and times of the sources: reading the kernel at
// each start would cost more than it saves. The guest program counts by content,
// since a build may keep its size and a checkout its time.
func digest(k Kernel, guest string) (string, error) {
	h := sha256.New()
	fmt.Fprintln(h, "1", modulesFirst, modulesSecond)
	for _, path := range []string{k.Image, filepath.Join(k.Modules, "modules.builtin")} {
		fi, err := os.Stat(path)
		if err != nil {
			return "", err
		}
		fmt.Fprintln(h, k.Release, fi.Size(), fi.ModTime().UnixNano())
	}
	f, err := os.Open(guest)
	if err != nil {
		return "", err
	}
	defer f.Close()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)[:8]), nil
}

// initramfs writes the archive that the kernel unpacks into memory.
func initramfs(w io.Writer, k Kernel, guest string) error {
	program, err := os.ReadFile(guest)
	if err != nil {
		return err
	}
	all, err := readTree(k.Modules)
	if err != nil {
		return err
	}
	c := &cpio{w: w}
	for _, d := range []string{"dev", "proc", "sys", "modules"} {
		c.add(d, 0o40755, 0, 0, nil)
	}
	c.add("dev/console", 0o20600, 5, 1, nil)
	c.add("init", 0o100755, 0, 0, program)
	have := map[string]bool{}
	for _, stage := range []struct {
		list  string
		names []string
	}{{"first", modulesFirst}, {"second", modulesSecond}} {
		modules, err := all.order(stage.names, have)
		if err != nil {
			return fmt.Errorf("kernel %s: %w", k.Release, err)
		}
		var order strings.Builder
		for _, m := range modules {
			c.add("modules/"+m.name+".ko", 0o100644, 0, 0, m.data)
			order.WriteString(m.name + ".ko\n")
		}
		c.add("modules/"+stage.list, 0o100644, 0, 0, []byte(order.String()))
	}
	return c.close()
}

// cpio writes an archive in the newc format.
type cpio struct {
	w     io.Writer
	count int // entries
	err   error
}

func (c *cpio) add(name string, mode, major, minor int, data []byte) {
	c.count++
	var b bytes.Buffer
	fmt.Fprintf(&b, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x", c.count, mode, 0, 0, 1, 0, len(data),
		0, 0, major, minor, len(name)+1, 0)
	b.WriteString(name + "\x00")
	c.write(b.Bytes())
	c.write(data)
}

// write pads each part to four bytes.
func (c *cpio) write(p []byte) {
	if c.err != nil {
		return
	}
	p = append(bytes.Clone(p), make([]byte, -len(p)&3)...)
	_, c.err = c.w.Write(p)
}

func (c *cpio) close() error {
	c.add("TRAILER!!!", 0, 0, 0, nil)
	return c.err
}
