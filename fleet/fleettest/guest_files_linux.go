package fleettest

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"sync/atomic"
	"syscall"
)

// ReadFile returns the content of a file of the guest.
func (g *Guest) ReadFile(name string) ([]byte, error) {
	root, err := os.OpenRoot(g.dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	p, err := resolve(root, name, true)
	if err != nil {
		return nil, err
	}
	f, err := root.OpenFile(p, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe must not block
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if fi, err := f.Stat(); err != nil || !fi.Mode().IsRegular() {
		return nil, errors.Join(err, ErrNotRegular)
	}
	return io.ReadAll(f)
}

// staged numbers the files that are being written.
var staged atomic.Int64

// WriteFile replaces a file of the guest, whatever it was, by one of mode 0644
// with the content of r. It makes the parent directories.
func (g *Guest) WriteFile(name string, r io.Reader) (int64, error) {
	root, err := os.OpenRoot(g.dir)
	if err != nil {
		return 0, err
	}
	defer root.Close()
	p, err := resolve(root, name, false)
	if err != nil {
		return 0, err
	}
	if fi, err := root.Lstat(p); err == nil && fi.IsDir() {
		return 0, &fs.PathError{Op: "write", Path: name, Err: syscall.EISDIR}
	}
	if err := root.MkdirAll(path.Dir(p), 0o755); err != nil {
		return 0, err
	}
	tmp := path.Join(path.Dir(p), fmt.Sprintf(".put-%d-%d", os.Getpid(), staged.Add(1)))
	f, err := root.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return 0, err
	}
	n, err := io.Copy(f, r)
	if err = errors.Join(err, f.Chmod(0o644), f.Close()); err == nil {
		settle()
		err = root.Rename(tmp, p)
	}
	if err != nil {
		root.Remove(tmp)
	}
	return n, err
}

// Stat describes a file of the guest, following symbolic links inside it.
func (g *Guest) Stat(name string) (fs.FileInfo, error) {
	root, err := os.OpenRoot(g.dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	p, err := resolve(root, name, true)
	if err != nil {
		return nil, err
	}
	return root.Lstat(p)
}

// List returns the entries of a directory of the guest.
func (g *Guest) List(name string) ([]fs.DirEntry, error) {
	root, err := os.OpenRoot(g.dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	p, err := resolve(root, name, true)
	if err != nil {
		return nil, err
	}
	return fs.ReadDir(root.FS(), p)
}

// resolve turns a path of the guest into one below root without symbolic
// links, which an os.Root refuses when they are absolute. The last element is
// followed only where last says so; what is missing stays as it is.
func resolve(root *os.Root, name string, last bool) (string, error) {
	todo := strings.Split(strings.Trim(path.Clean("/"+name), "/"), "/")
	done := "."
	for hops := 0; len(todo) > 0; {
		elem := todo[0]
		todo = todo[1:]
		if elem == "" || elem == "." {
			continue
		}
		if elem == ".." {
			done = path.Dir(done) // of "." it is "."
			continue
		}
		next := path.Join(done, elem)
		fi, err := root.Lstat(next)
		if err != nil || fi.Mode()&fs.ModeSymlink == 0 || len(todo) == 0 && !last {
			done = next
			continue
		}
		if hops++; hops > 40 {
			return "", &fs.PathError{Op: "open", Path: name, Err: syscall.ELOOP}
		}
		to, err := root.Readlink(next)
		if err != nil {
			return "", err
		}
		if path.IsAbs(to) {
			done = "."
		}
		todo = append(strings.Split(to, "/"), todo...)
	}
	return done, nil
}
