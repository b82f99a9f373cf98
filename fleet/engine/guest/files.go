//go:build linux

package guest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/hashicorp/yamux"

	"smol-mcp/fleet/engine/agent"
)

// words gives an error of the system as smolvm words it, which clients match.
func words(err error) error {
	var no syscall.Errno
	if errors.As(err, &no) {
		text := no.Error()
		return fmt.Errorf("%s (os error %d)", strings.ToUpper(text[:1])+text[1:], int(no))
	}
	return err
}

// readFile sends a file: a Result with its size or its names, then the content.
// What it returns ends the answer.
func readFile(out *agent.Frames, want agent.File) (agent.Result, error) {
	// A fifo would block and a device may act, so what it is comes first.
	fi, err := os.Stat(want.Path)
	if err != nil {
		return agent.Result{}, words(err)
	}
	if fi.IsDir() {
		return list(want.Path)
	}
	if !fi.Mode().IsRegular() {
		return agent.Result{}, errors.New("not a regular file")
	}
	f, err := os.OpenFile(want.Path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return agent.Result{}, words(err)
	}
	defer f.Close()
	var src io.Reader
	total := fi.Size()
	size := max(total-want.Offset, 0)
	if want.Limit > 0 {
		size = min(size, want.Limit)
	}
	src = io.NewSectionReader(f, want.Offset, size)
	if total == 0 {
		part, err := unsized(f, want)
		if err != nil {
			return agent.Result{}, words(err)
		}
		size = int64(len(part))
		src = bytes.NewReader(part)
		if size > 0 {
			total = want.Offset + size
		}
	}
	if err := out.JSON(agent.End, agent.Result{Size: size, Total: total}); err != nil {
		return agent.Result{}, err
	}
	_, err = io.CopyBuffer(struct{ io.Writer }{out.Stream(agent.Data)}, struct{ io.Reader }{src}, make([]byte, agent.Chunk))
	return agent.Result{Size: size}, err
}

// maxUnsized bounds what is read of a file that says that it is empty, in bytes.
const maxUnsized = 16 << 20

// unsized reads a part of a file of /proc or /sys: they have content, and no size
// before it is read, from the start on.
func unsized(f *os.File, want agent.File) ([]byte, error) {
	limit := want.Limit
	if limit <= 0 {
		limit = maxUnsized
	}
	if _, err := io.CopyN(io.Discard, f, min(want.Offset, maxUnsized)); err == io.EOF {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(f, min(limit, maxUnsized)))
}

func list(path string) (agent.Result, error) {
	d, err := os.Open(path)
	if err != nil {
		return agent.Result{}, words(err)
	}
	defer d.Close()
	entries, err := d.ReadDir(agent.MaxEntries)
	if err != nil && err != io.EOF {
		return agent.Result{}, words(err)
	}
	res := agent.Result{Dir: true, Entries: []agent.Entry{}}
	for _, e := range entries {
		entry := agent.Entry{Name: e.Name(), Kind: "other"}
		switch t := e.Type(); {
		case t.IsDir():
			entry.Kind = "directory"
		case t&fs.ModeSymlink != 0:
			entry.Kind = "symlink"
		case t.IsRegular():
			entry.Kind = "file"
			if fi, err := e.Info(); err == nil {
				entry.Size = fi.Size()
			}
		}
		res.Entries = append(res.Entries, entry)
	}
	return res, nil
}

// writeFile takes a file and puts it in place with one rename. Mode and owner
// of a file that was there stay, and a link is written through. When it returns, the
// file is on disk: it outlives a machine that is killed.
func writeFile(st *yamux.Stream, path string) (res agent.Result, err error) {
	defer func() {
		if err != nil {
			err = words(err)
			_ = untilEnd(st, io.Discard) // the engine is still sending
		}
	}()
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	old, err := os.Stat(path)
	if err == nil && old.IsDir() {
		return res, syscall.EISDIR
	}
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return res, err
	}
	f, err := os.CreateTemp(dir, ".smol-upload-")
	if err != nil {
		return res, err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	counted := &counter{w: f}
	if err := untilEnd(st, counted); err != nil {
		return res, err
	}
	mode := fs.FileMode(0o644)
	if old != nil {
		mode = old.Mode() & (fs.ModePerm | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky)
		if sys, ok := old.Sys().(*syscall.Stat_t); ok {
			if err := f.Chown(int(sys.Uid), int(sys.Gid)); err != nil {
				return res, err
			}
		}
	}
	if err := errors.Join(f.Chmod(mode), f.Sync(), f.Close()); err != nil {
		return res, err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return res, err
	}
	res.Size = counted.n
	return res, syncDir(dir)
}

// syncDir brings the names of a directory to disk, and with the journal those above it.
// A file system that has no disk may know no such thing.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := d.Sync(); !errors.Is(err, syscall.EINVAL) && !errors.Is(err, syscall.ENOTSUP) {
		return err
	}
	return nil
}

type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

// untilEnd copies data frames until the one that ends them. Without that one the
// content is not whole.
func untilEnd(st *yamux.Stream, w io.Writer) error {
	var buf []byte
	for {
		kind, data, err := agent.Next(st, buf)
		switch {
		case err != nil:
			return fmt.Errorf("the upload broke off: %w", err)
		case kind == agent.End:
			return nil
		case kind != agent.Data:
			return fmt.Errorf("a frame of kind %d in an upload", kind)
		}
		buf = data
		if _, err := w.Write(data); err != nil {
			return err
		}
	}
}
