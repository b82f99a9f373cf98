//go:build unix

package kernel

import (
	"bytes"
	"compress/gzip"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"path"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
)

// packing is a compression that kernels and modules come in.
type packing struct {
	suffix string // of a module's file
	magic  string
	open   func(io.Reader) (io.Reader, error)
}

var packings = []packing{
	{".xz", "\xfd7zXZ\x00", func(r io.Reader) (io.Reader, error) { return xz.NewReader(r) }},
	{".zst", "\x28\xb5\x2f\xfd", func(r io.Reader) (io.Reader, error) { return zstd.NewReader(r) }},
	{".gz", "\x1f\x8b\x08", func(r io.Reader) (io.Reader, error) { return gzip.NewReader(r) }},
}

// maxKernel bounds what a kernel unpacks to, in bytes.
const maxKernel = 512 << 20

// unpack writes the ELF kernel inside a bzImage, which QEMU starts directly:
// the guest, perhaps emulated, need not unpack it. A kernel that has no
// readable one inside is taken as it is.
func unpack(w io.Writer, image string) error {
	data, err := os.ReadFile(image)
	if err != nil {
		return err
	}
	if !bytes.HasPrefix(data, []byte(elf.ELFMAG)) {
		if inner := innerELF(data); inner != nil {
			data = inner
		}
	}
	_, err = w.Write(data)
	return err
}

func innerELF(data []byte) []byte {
	for _, p := range packings {
		for from := 0; ; {
			i := bytes.Index(data[from:], []byte(p.magic))
			if i < 0 {
				break
			}
			from += i + 1
			r, err := p.open(bytes.NewReader(data[from-1:]))
			if err != nil {
				continue
			}
			var out bytes.Buffer
			_, _ = io.Copy(&out, io.LimitReader(r, maxKernel)) // what follows the packed kernel is an error to some readers
			if size, err := elfSize(out.Bytes()); err == nil && size <= uint64(out.Len()) {
				return out.Bytes()
			}
		}
	}
	return nil
}

// elfSize is how far the segments reach.
func elfSize(data []byte) (uint64, error) {
	f, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		return 0, err
	}
	var end uint64
	for _, p := range f.Progs {
		end = max(end, p.Off+p.Filesz)
	}
	if end == 0 {
		return 0, errors.New("no segments")
	}
	return end, nil
}

// unpackModule returns a module's ELF file.
func unpackModule(file string) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var r io.Reader = f
	for _, p := range packings {
		if path.Ext(file) == p.suffix {
			if r, err = p.open(f); err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
		}
	}
	return io.ReadAll(io.LimitReader(r, maxKernel))
}
