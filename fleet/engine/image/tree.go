//go:build unix

package image

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"sort"
	"strings"
)

// tree is the file system of an image, as the layers read so far make it. It is
// in memory only, so no name in a layer can reach a file of this computer.
type tree struct {
	root  *node
	count int        // names
	files []*os.File // with the content
}

// close lets go of the content.
func (t *tree) close() {
	for _, f := range t.files {
		f.Close()
	}
}

// node is one file, directory or link. Hard links are one node under several
// names.
type node struct {
	header   *tar.Header
	children map[string]*node // of a directory
	data     *io.SectionReader
	emitted  string // the name under which it was written out
}

const (
	maxNames = 4_000_000 // in one image
	maxLinks = 40        // symbolic links on the way to one name

	whiteout = ".wh."
	opaque   = ".wh..wh..opq"
)

func newTree() *tree {
	return &tree{root: directory("")}
}

func directory(name string) *node {
	return &node{header: &tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o755}, children: map[string]*node{}}
}

func (n *node) isDir() bool { return n.children != nil }

// split returns the elements of a name, with those that lead upwards undone: a
// name cannot leave the root.
func split(name string) []string {
	name = path.Clean("/" + name)
	if name == "/" {
		return nil
	}
	return strings.Split(name[1:], "/")
}

// dir returns the directory at a name, through symbolic links as a kernel goes,
// and makes what is missing. A file in the way is replaced.
func (t *tree) dir(elems []string) (*node, error) {
	todo := append([]string{}, elems...)
	at, links := []*node{t.root}, 0
	for len(todo) > 0 {
		name := todo[0]
		todo = todo[1:]
		here := at[len(at)-1]
		next := here.children[name]
		switch {
		case name == "" || name == ".":
		case name == "..":
			at = at[:max(len(at)-1, 1)]
		case next != nil && next.header.Typeflag == tar.TypeSymlink:
			if links++; links > maxLinks {
				return nil, fmt.Errorf("too many symbolic links in %s", bound(path.Join(elems...)))
			}
			if path.IsAbs(next.header.Linkname) {
				at = at[:1]
			}
			todo = append(strings.Split(next.header.Linkname, "/"), todo...)
		default:
			if next == nil || !next.isDir() {
				next = directory(name)
				if err := t.put(here, name, next); err != nil {
					return nil, err
				}
			}
			at = append(at, next)
		}
		if len(at) > 1000 || len(todo) > 10000 {
			return nil, errors.New("a name is nested too deep")
		}
	}
	return at[len(at)-1], nil
}

func (t *tree) put(dir *node, name string, n *node) error {
	if dir.children[name] == nil {
		if t.count++; t.count > maxNames {
			return fmt.Errorf("more than %d files", maxNames)
		}
	}
	dir.children[name] = n
	return nil
}

// layer is what one layer did to the tree; whiteouts concern only what was
// there before it.
type layer struct {
	*tree
	mine map[*node]bool
}

func (t *tree) begin() *layer { return &layer{t, map[*node]bool{}} }

// add applies one entry of a layer. data is its content where it is a file.
func (l *layer) add(h *tar.Header, data *io.SectionReader) error {
	elems := split(h.Name)
	if len(elems) == 0 {
		if h.Typeflag == tar.TypeDir {
			l.root.header = h
		}
		return nil
	}
	dir, err := l.dir(elems[:len(elems)-1])
	if err != nil {
		return err
	}
	name := elems[len(elems)-1]
	if name == opaque {
		l.clear(dir)
		return nil
	}
	if hidden, ok := strings.CutPrefix(name, whiteout); ok {
		if n := dir.children[hidden]; n != nil && !l.mine[n] {
			delete(dir.children, hidden)
		}
		return nil
	}
	n, err := l.node(h, dir.children[name], data)
	if err != nil || n == nil {
		return err
	}
	l.mine[n] = true
	return l.put(dir, name, n)
}

// clear removes what earlier layers left in a directory.
func (l *layer) clear(dir *node) {
	for name, n := range dir.children {
		if !l.mine[n] {
			delete(dir.children, name)
		} else if n.isDir() {
			l.clear(n)
		}
	}
}

// node makes the node of an entry. It is nil for what is no file.
func (l *layer) node(h *tar.Header, old *node, data *io.SectionReader) (*node, error) {
	switch h.Typeflag {
	case tar.TypeDir:
		if old != nil && old.isDir() {
			old.header = h
			return old, nil
		}
		return &node{header: h, children: map[string]*node{}}, nil
	case tar.TypeReg, tar.TypeRegA: //nolint:staticcheck // old archives have the latter
		return &node{header: h, data: data}, nil
	case tar.TypeSymlink, tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
		return &node{header: h}, nil
	case tar.TypeLink:
		elems := split(h.Linkname)
		if len(elems) == 0 {
			return nil, fmt.Errorf("%s is a link to the root", bound(h.Name))
		}
		dir, err := l.dir(elems[:len(elems)-1])
		if err != nil {
			return nil, err
		}
		n := dir.children[elems[len(elems)-1]]
		if n == nil || n.isDir() {
			return nil, fmt.Errorf("%s is a link to %s, which is not there", bound(h.Name), bound(h.Linkname))
		}
		return n, nil
	}
	return nil, nil // headers of tar itself
}

// write gives the tree to a tar writer, in order of name.
func (t *tree) write(w *tar.Writer) error {
	return t.root.write(w, "")
}

func (n *node) write(w *tar.Writer, name string) error {
	if n.emitted != "" {
		return w.WriteHeader(&tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: n.emitted})
	}
	h := &tar.Header{
		Typeflag: n.header.Typeflag, Name: name, Linkname: n.header.Linkname, Mode: n.header.Mode & 0o7777,
		Uid: n.header.Uid, Gid: n.header.Gid, ModTime: n.header.ModTime, Devmajor: n.header.Devmajor, Devminor: n.header.Devminor,
		PAXRecords: attributes(n.header), Format: tar.FormatPAX,
	}
	if n.data != nil {
		h.Typeflag, h.Size = tar.TypeReg, n.data.Size()
	}
	if n.isDir() {
		h.Name += "/"
	}
	if name == "" {
		h.Name = "./"
	}
	if err := w.WriteHeader(h); err != nil {
		return fmt.Errorf("%s: %w", bound(name), err)
	}
	n.emitted = name
	if n.data != nil {
		_, err := io.Copy(w, n.data)
		return err
	}
	names := make([]string, 0, len(n.children))
	for child := range n.children {
		names = append(names, child)
	}
	sort.Strings(names)
	for _, child := range names {
		if err := n.children[child].write(w, path.Join(name, child)); err != nil {
			return err
		}
	}
	return nil
}

// attributes keeps the extended attributes of a file: capabilities are some.
func attributes(h *tar.Header) map[string]string {
	var out map[string]string
	for key, value := range h.PAXRecords {
		if strings.HasPrefix(key, "SCHILY.xattr.") {
			if out == nil {
				out = map[string]string{}
			}
			out[key] = value
		}
	}
	return out
}

// bound returns a name for an error: quoted where it is strange, and short.
func bound(name string) string {
	text := fmt.Sprintf("%q", name)
	if len(text) > 200 {
		return text[:200] + `[cut]"`
	}
	return text
}
