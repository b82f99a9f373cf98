//go:build unix

package image

import (
	"archive/tar"
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/Microsoft/hcsshim/ext4/tar2ext4"
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

const (
	maxUnpacked = 64 << 30 // bytes of all layers of an image
	maxDisk     = 64 << 30 // bytes of the disk made of them
	maxLayers   = 500
)

// flatten applies the layers of an image, lowest first, each checked against the
// digest that the image's configuration names. They are unpacked once, into
// files of dir from which the tree reads until it is closed.
func flatten(ctx context.Context, img v1.Image, dir string) (*tree, error) {
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	layers, err := img.Layers()
	if err != nil {
		return nil, err
	}
	if len(layers) != len(config.RootFS.DiffIDs) || len(layers) > maxLayers {
		return nil, fmt.Errorf("%d layers and %d digests of them", len(layers), len(config.RootFS.DiffIDs))
	}
	ctx, cancel := context.WithCancel(ctx)
	next := fetch(ctx, layers, dir)
	t := newTree()
	err = t.applyAll(next, config.RootFS.DiffIDs)
	cancel()
	for u := range next { // those that nobody needs after an error
		if u.file != nil {
			u.file.Close()
		}
	}
	if err != nil {
		t.close()
		return nil, err
	}
	return t, nil
}

// applyAll takes the layers as they come, each as it should be.
func (t *tree) applyAll(next <-chan unpacked, digests []v1.Hash) error {
	left := int64(maxUnpacked)
	for i, want := range digests {
		u := <-next
		if u.file != nil {
			t.files = append(t.files, u.file)
		}
		if u.err != nil {
			return fmt.Errorf("layer %d: %w", i+1, u.err)
		}
		if u.digest != want.Hex {
			return fmt.Errorf("layer %d: its content is sha256:%s, and the image says %s", i+1, u.digest, want)
		}
		if left -= u.size; left < 0 {
			return fmt.Errorf("more than %d bytes unpacked", int64(maxUnpacked))
		}
		if err := t.apply(u); err != nil {
			return fmt.Errorf("layer %d: %w", i+1, err)
		}
	}
	return nil
}

// unpacked is a layer in a file.
type unpacked struct {
	file   *os.File
	size   int64
	digest string // sha256, hexadecimal
	err    error
}

// fetch unpacks one layer after another, the next while the tree takes the one
// before. The channel is closed when it ends.
func fetch(ctx context.Context, layers []v1.Layer, dir string) <-chan unpacked {
	out := make(chan unpacked, len(layers)) // so that it ends when nobody takes them any more
	go func() {
		defer close(out)
		for i, l := range layers {
			u := unpackLayer(ctx, l, filepath.Join(dir, fmt.Sprintf("layer%d", i)))
			out <- u
			if u.err != nil {
				return
			}
		}
	}()
	return out
}

func unpackLayer(ctx context.Context, l v1.Layer, path string) (u unpacked) {
	if u.err = ctx.Err(); u.err != nil {
		return u
	}
	r, err := l.Uncompressed()
	if err != nil {
		return unpacked{err: err}
	}
	defer r.Close()
	defer context.AfterFunc(ctx, func() { r.Close() })()
	if u.file, u.err = os.Create(path); u.err != nil {
		return u
	}
	sum := sha256.New()
	u.size, u.err = io.CopyBuffer(io.MultiWriter(u.file, sum), io.LimitReader(r, maxUnpacked+1), make([]byte, 256<<10))
	u.digest = hex.EncodeToString(sum.Sum(nil))
	if ctx.Err() != nil {
		u.err = context.Cause(ctx)
	}
	return u
}

// apply adds a layer to the tree. Its file is read as long as the tree is used.
func (t *tree) apply(u unpacked) error {
	at := &position{r: u.file}
	in := tar.NewReader(at)
	l := t.begin()
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		var data *io.SectionReader
		if h.Typeflag == tar.TypeReg {
			if sparse(h) {
				return fmt.Errorf("%s is a sparse file, which no image should have", bound(h.Name))
			}
			data = io.NewSectionReader(u.file, at.n, h.Size)
		}
		if err := l.add(h, data); err != nil {
			return err
		}
	}
}

// sparse reports whether the content in the archive is not the file's.
func sparse(h *tar.Header) bool {
	for _, key := range []string{"GNU.sparse.major", "GNU.sparse.map", "GNU.sparse.size", "GNU.sparse.realsize"} {
		if h.PAXRecords[key] != "" {
			return true
		}
	}
	return h.Typeflag == tar.TypeGNUSparse
}

// position reads a file from its beginning and knows how far it is. The tar reader
// seeks over content, and reads headers without looking ahead.
type position struct {
	r *os.File
	n int64
}

func (p *position) Read(b []byte) (int, error) {
	n, err := p.r.ReadAt(b, p.n)
	p.n += int64(n)
	return n, err
}

func (p *position) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += p.n
	case io.SeekEnd:
		fi, err := p.r.Stat()
		if err != nil {
			return p.n, err
		}
		offset += fi.Size()
	}
	p.n = offset
	return p.n, nil
}

// writeDisk makes an ext4 of a tree.
func writeDisk(ctx context.Context, t *tree, path string) error {
	disk, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer disk.Close()
	r, w := io.Pipe()
	made := make(chan error, 1)
	go func() {
		err := tar2ext4.ConvertTarToExt4(r, disk, tar2ext4.MaximumDiskSize(maxDisk))
		r.CloseWithError(err)
		made <- err
	}()
	defer context.AfterFunc(ctx, func() { w.CloseWithError(context.Cause(ctx)) })()
	buffered := bufio.NewWriterSize(w, 1<<20)
	tw := tar.NewWriter(buffered)
	err = t.write(tw)
	if err == nil {
		err = errors.Join(tw.Close(), buffered.Flush())
	}
	w.CloseWithError(err)
	if convertErr := <-made; convertErr != nil {
		return fmt.Errorf("make the disk: %w", convertErr)
	}
	if err != nil {
		return err
	}
	return errors.Join(disk.Chmod(0o400), disk.Close())
}
