package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
)

// The flags of pages and of elements of leaf pages.
const (
	branchPage    = 0x01
	leafPage      = 0x02
	freelistPage  = 0x10
	bucketElement = 0x01

	elementSize = 16
	bucketSize  = 16 // root page and sequence, before an inline page
)

// verifier reads a whole state.db as bbolt would, but with plain reads and
// without believing anything: bbolt's own check faults on what it is meant to
// find, in a goroutine from which nobody can recover, and its cursors never
// end in a tree that bites its tail.
type verifier struct {
	f       *os.File
	meta    *meta
	used    map[uint64]bool // pages reached
	buckets int
}

// verify returns ErrCorrupt when state.db is not a sound tree of sound pages,
// else how many bytes of it are in use. The rows have checksums of their own.
func verify(f *os.File) (used int64, err error) {
	m, err := newestMeta(f)
	if err != nil {
		return 0, err
	}
	v := &verifier{f: f, meta: m, used: map[uint64]bool{0: true, 1: true}}
	err = v.tree(m.root, nil)
	if err == nil {
		err = v.freelist()
	}
	if err != nil {
		return 0, fmt.Errorf("%w: %s: %w", ErrCorrupt, f.Name(), err)
	}
	return int64(len(v.used)) * int64(m.pageSize), nil
}

// page reads page id with its overflow and checks its header.
func (v *verifier) page(id uint64, want uint16) ([]byte, error) {
	if id < 2 || id >= v.meta.pages {
		return nil, fmt.Errorf("page %d of %d", id, v.meta.pages)
	}
	head := make([]byte, pageHeader)
	if _, err := v.f.ReadAt(head, int64(id*v.meta.pageSize)); err != nil {
		return nil, err
	}
	n := binary.NativeEndian
	flags, overflow := n.Uint16(head[8:]), uint64(n.Uint32(head[12:]))
	if n.Uint64(head) != id || flags&want == 0 || flags&^want != 0 || id+overflow >= v.meta.pages {
		return nil, fmt.Errorf("page %d: id %d, flags %#x, overflow %d", id, n.Uint64(head), flags, overflow)
	}
	for p := id; p <= id+overflow; p++ {
		if v.used[p] {
			return nil, fmt.Errorf("page %d is used twice", p)
		}
		v.used[p] = true
	}
	b := make([]byte, (overflow+1)*v.meta.pageSize)
	_, err := v.f.ReadAt(b, int64(id*v.meta.pageSize))
	return b, err
}

// tree checks the pages below id. Keys have to lie at or above low.
func (v *verifier) tree(id uint64, low []byte) error {
	b, err := v.page(id, branchPage|leafPage)
	if err != nil {
		return err
	}
	if binary.NativeEndian.Uint16(b[8:]) == leafPage {
		return v.leaf(b, low)
	}
	n := binary.NativeEndian
	count := int(n.Uint16(b[10:]))
	if count == 0 {
		return fmt.Errorf("branch page %d is empty", id)
	}
	for i := range count {
		at := pageHeader + i*elementSize
		if at+elementSize > len(b) {
			return fmt.Errorf("page %d has no room for %d elements", id, count)
		}
		key, err := slice(b, at+int(n.Uint32(b[at:])), int(n.Uint32(b[at+4:])))
		if err != nil {
			return fmt.Errorf("page %d: %w", id, err)
		}
		if i > 0 && bytes.Compare(key, low) <= 0 || i == 0 && bytes.Compare(key, low) < 0 {
			return fmt.Errorf("page %d: keys are out of order", id)
		}
		low = key
		if err := v.tree(n.Uint64(b[at+8:]), key); err != nil {
			return err
		}
	}
	return nil
}

// leaf checks the elements of a leaf page, also of one inside a bucket's value.
func (v *verifier) leaf(b, low []byte) error {
	n := binary.NativeEndian
	count := int(n.Uint16(b[10:]))
	for i := range count {
		at := pageHeader + i*elementSize
		if at+elementSize > len(b) {
			return fmt.Errorf("a leaf page has no room for %d elements", count)
		}
		flags, pos := n.Uint32(b[at:]), at+int(n.Uint32(b[at+4:]))
		ksize, vsize := int(n.Uint32(b[at+8:])), int(n.Uint32(b[at+12:]))
		key, err := slice(b, pos, ksize)
		if err != nil {
			return err
		}
		value, err := slice(b, pos+ksize, vsize)
		if err != nil {
			return err
		}
		if i > 0 && bytes.Compare(key, low) <= 0 || i == 0 && bytes.Compare(key, low) < 0 {
			return errors.New("the keys of a leaf page are out of order")
		}
		low = key
		switch flags {
		case 0:
		case bucketElement:
			if err := v.bucket(value); err != nil {
				return fmt.Errorf("bucket %q: %w", key, err)
			}
		default:
			return fmt.Errorf("element flags %#x", flags)
		}
	}
	return nil
}

func (v *verifier) bucket(value []byte) error {
	if v.buckets++; v.buckets > 64 || len(value) < bucketSize {
		return errors.New("not a bucket")
	}
	if root := binary.NativeEndian.Uint64(value); root != 0 {
		return v.tree(root, nil)
	}
	page := value[bucketSize:]
	if len(page) < pageHeader || binary.NativeEndian.Uint16(page[8:]) != leafPage {
		return errors.New("not an inline page")
	}
	return v.leaf(page, nil)
}

// freelist checks that no page is free and in use.
func (v *verifier) freelist() error {
	if v.meta.freelist == noFreelist {
		return nil
	}
	b, err := v.page(v.meta.freelist, freelistPage)
	if err != nil {
		return err
	}
	n := binary.NativeEndian
	ids, count := b[pageHeader:], uint64(n.Uint16(b[10:]))
	if count == 0xFFFF {
		count, ids = n.Uint64(ids), ids[8:]
	}
	if count > uint64(len(ids)/8) {
		return fmt.Errorf("%d free pages do not fit", count)
	}
	last := uint64(1)
	for i := range count {
		id := n.Uint64(ids[i*8:])
		if id <= last || id >= v.meta.pages || v.used[id] {
			return fmt.Errorf("page %d is free and in use, or listed twice", id)
		}
		last = id
	}
	return nil
}

// slice returns n bytes of b at pos.
func slice(b []byte, pos, n int) ([]byte, error) {
	if pos < 0 || n < 0 || pos > len(b) || n > len(b)-pos {
		return nil, fmt.Errorf("%d bytes at %d of %d", n, pos, len(b))
	}
	return b[pos : pos+n], nil
}
