//go:build unix

package kernel

import (
	"bytes"
	"compress/gzip"
	"debug/elf"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
)

func put(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// The newest kernel is used, by its numbers; one without modules is not.
func TestFind(t *testing.T) {
	dir := t.TempDir()
	for _, release := range []string{"6.1.0-9", "6.1.0-57", "5.10.0-99", "6.12.0-1"} {
		put(t, filepath.Join(dir, release, "vmlinuz"), nil)
		if release != "6.12.0-1" {
			put(t, filepath.Join(dir, release, "modules", "modules.builtin"), nil)
		}
	}
	k, err := Find("", dir)
	if err != nil || k.Release != "6.1.0-57" || k.Modules != filepath.Join(dir, "6.1.0-57", "modules") {
		t.Errorf("%+v, %v", k, err)
	}
	named := filepath.Join(dir, "sys", "boot", "vmlinuz-4.19")
	put(t, named, nil)
	put(t, filepath.Join(dir, "sys", "lib", "modules", "4.19", "modules.builtin"), nil)
	if k, err := Find(named, dir); err != nil || k.Release != "4.19" {
		t.Errorf("%+v, %v", k, err)
	}
	if k, err := Find(filepath.Join(dir, "none"), dir); err == nil {
		t.Errorf("found %+v", k)
	}
}

// tiny is an ELF file with one segment, or with one section of module information.
func tiny(t *testing.T, info string) []byte {
	t.Helper()
	var b bytes.Buffer
	h := elf.Header64{Type: uint16(elf.ET_EXEC), Machine: uint16(elf.EM_X86_64), Version: 1, Ehsize: 64, Phentsize: 56, Shentsize: 64}
	copy(h.Ident[:], elf.ELFMAG)
	h.Ident[elf.EI_CLASS], h.Ident[elf.EI_DATA], h.Ident[elf.EI_VERSION] = byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), 1
	names := "\x00.modinfo\x00.shstrtab\x00"
	if info == "" {
		h.Phoff, h.Phnum = 64, 1
		write(t, &b, h, elf.Prog64{Type: uint32(elf.PT_LOAD), Off: 120, Filesz: 8, Memsz: 8}, []byte("a kernel"))
		return b.Bytes()
	}
	h.Shoff, h.Shnum, h.Shstrndx = uint64(64+len(info)+len(names)), 3, 2
	write(t, &b, h, []byte(info), []byte(names), elf.Section64{},
		elf.Section64{Name: 1, Type: uint32(elf.SHT_PROGBITS), Off: 64, Size: uint64(len(info))},
		elf.Section64{Name: 10, Type: uint32(elf.SHT_STRTAB), Off: uint64(64 + len(info)), Size: uint64(len(names))})
	return b.Bytes()
}

func write(t *testing.T, b *bytes.Buffer, parts ...any) {
	t.Helper()
	for _, p := range parts {
		if err := binary.Write(b, binary.LittleEndian, p); err != nil {
			t.Fatal(err)
		}
	}
}

func pack(t *testing.T, how string, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	var w interface {
		Write([]byte) (int, error)
		Close() error
	}
	var err error
	switch how {
	case ".xz":
		w, err = xz.NewWriter(&b)
	case ".zst":
		w, err = zstd.NewWriter(&b)
	case ".gz":
		w = gzip.NewWriter(&b)
	default:
		return data
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// The kernel inside a bzImage is found, with noise around it that looks like one.
func TestUnpack(t *testing.T) {
	kernel := tiny(t, "")
	for _, how := range []string{".xz", ".zst", ".gz"} {
		image := []byte("MZ a real-mode stub \x1f\x8b\x08 \xfd7zXZ\x00 no stream")
		image = append(image, pack(t, how, kernel)...)
		image = append(image, "what follows"...)
		file := filepath.Join(t.TempDir(), "vmlinuz")
		put(t, file, image)
		var out bytes.Buffer
		if err := unpack(&out, file); err != nil || !bytes.Equal(out.Bytes(), kernel) {
			t.Errorf("%s: %v, %d bytes", how, err, out.Len())
		}
	}
	for what, image := range map[string][]byte{"an ELF file": kernel, "nothing known": []byte("MZ else")} {
		file := filepath.Join(t.TempDir(), "vmlinuz")
		put(t, file, image)
		var out bytes.Buffer
		if err := unpack(&out, file); err != nil || !bytes.Equal(out.Bytes(), image) {
			t.Errorf("%s is not taken as it is: %v", what, err)
		}
	}
}

// Modules come after what they need, whatever they are packed with, and once.
func TestModuleOrder(t *testing.T) {
	dir := t.TempDir()
	for file, needs := range map[string]string{
		"kernel/a/virtio_blk.ko": "depends=virtio,virtio-ring", "kernel/b/virtio.ko.xz": "depends=virtio_ring", "kernel/virtio-ring.ko.zst": "license=GPL",
		"kernel/circle.ko.gz": "depends=circle", "kernel/lost.ko": "depends=none",
	} {
		put(t, filepath.Join(dir, file), pack(t, filepath.Ext(file), tiny(t, "name=x\x00"+needs+"\x00")))
	}
	put(t, filepath.Join(dir, "modules.builtin"), []byte("kernel/fs/ext4.ko\n"))
	all, err := readTree(dir)
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]bool{}
	order, err := all.order([]string{"ext4", "virtio_blk", "circle", "virtio"}, have)
	var names []string
	for _, m := range order {
		names = append(names, m.name)
	}
	if err != nil || !slices.Equal(names, []string{"virtio_ring", "virtio", "virtio_blk", "circle"}) {
		t.Errorf("%v, %v", names, err)
	}
	if again, err := all.order([]string{"virtio"}, have); err != nil || len(again) != 0 {
		t.Errorf("again: %v, %v", again, err)
	}
	if _, err := all.order([]string{"lost"}, map[string]bool{}); err == nil || !strings.Contains(err.Error(), "none") {
		t.Errorf("a need that is not there: %v", err)
	}
}

// The archive is one that cpio reads.
func TestInitramfs(t *testing.T) {
	dir := t.TempDir()
	var builtin strings.Builder
	for _, name := range append(append([]string{}, modulesFirst...), modulesSecond...) {
		builtin.WriteString("kernel/" + name + ".ko\n")
	}
	put(t, filepath.Join(dir, "modules", "modules.builtin"), []byte(builtin.String()))
	put(t, filepath.Join(dir, "modules", "kernel", "x"), nil)
	put(t, filepath.Join(dir, "guest"), []byte("guest"))
	var b bytes.Buffer
	if err := initramfs(&b, Kernel{Modules: filepath.Join(dir, "modules")}, filepath.Join(dir, "guest")); err != nil {
		t.Fatal(err)
	}
	if b.Len()%4 != 0 || !strings.HasPrefix(b.String(), "070701") || !strings.Contains(b.String(), "TRAILER!!!") {
		t.Errorf("%d bytes: %.40q", b.Len(), b.String())
	}
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Skip(err)
	}
	list := exec.Command(busybox, "cpio", "-t")
	list.Stdin = bytes.NewReader(b.Bytes())
	out, err := list.Output()
	if err != nil || !slices.Equal(strings.Fields(string(out)), []string{"dev", "proc", "sys", "modules", "dev/console", "init", "modules/first", "modules/second"}) {
		t.Errorf("%v: %s", err, out)
	}
}
