package store

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"io"
	"os"
)

// Where bbolt keeps what in a meta page: a page header of 16 bytes, then magic,
// version, page size and flags of 4 bytes, and 8 bytes each of root page, root
// sequence, freelist page, highest page, transaction and checksum.
const (
	pageHeader  = 16
	metaSum     = pageHeader + 56
	metaSize    = metaSum + 8
	boltMagic   = 0xED0CDAED
	boltVersion = 2
	noFreelist  = ^uint64(0)
)

// preflight refuses a file that bbolt would fault on: one that is shorter than
// its newest valid meta page says, or whose freelist page is none. It reads the
// file without mapping it.
func preflight(f *os.File) error {
	m, err := newestMeta(f)
	if err != nil {
		return err
	}
	return checkFreelist(f, m)
}

// newestMeta returns the meta page that bbolt would go by, when it can be true.
func newestMeta(f *os.File) (*meta, error) {
	fi, err := f.Stat()
	if err != nil {
		return nil, err
	}
	damaged := func(format string, args ...any) (*meta, error) {
		return nil, fmt.Errorf("%w: %s: %s", ErrCorrupt, f.Name(), fmt.Sprintf(format, args...))
	}
	pageSize := uint64(os.Getpagesize())
	b := make([]byte, pageSize+metaSize)
	n, err := f.ReadAt(b, 0)
	if err != nil && err != io.EOF {
		return nil, err
	}
	b = b[:n]
	first, second := readMeta(b, 0), readMeta(b, int(pageSize))
	if first != nil && first.pageSize != pageSize { // of a computer with other pages
		return damaged("pages of %d bytes", first.pageSize)
	}
	newest := first
	if newest == nil || second != nil && second.txid > newest.txid {
		newest = second
	}
	switch {
	case newest == nil:
		return damaged("no valid meta page in %d bytes", fi.Size())
	case newest.pageSize != pageSize || pageSize < 1024 || pageSize > 1<<16 || pageSize&(pageSize-1) != 0:
		return damaged("page size %d", newest.pageSize)
	case newest.pages < 4 || newest.pages > 1<<20 || newest.pages*pageSize > uint64(fi.Size()):
		return damaged("%d bytes, but %d pages of %d bytes", fi.Size(), newest.pages, pageSize)
	case newest.root < 2 || newest.root >= newest.pages:
		return damaged("root page %d of %d", newest.root, newest.pages)
	case newest.freelist != noFreelist && (newest.freelist < 2 || newest.freelist >= newest.pages):
		return damaged("freelist page %d of %d", newest.freelist, newest.pages)
	}
	return newest, nil
}

type meta struct{ pageSize, root, freelist, pages, txid uint64 }

// readMeta returns the meta page at off, or nil when there is no valid one.
func readMeta(b []byte, off int) *meta {
	if len(b) < off+metaSize {
		return nil
	}
	b = b[off:]
	n := binary.NativeEndian
	sum := fnv.New64a()
	sum.Write(b[pageHeader:metaSum])
	if n.Uint32(b[16:]) != boltMagic || n.Uint32(b[20:]) != boltVersion || n.Uint64(b[metaSum:]) != sum.Sum64() {
		return nil
	}
	return &meta{
		pageSize: uint64(n.Uint32(b[24:])),
		root:     n.Uint64(b[32:]),
		freelist: n.Uint64(b[48:]),
		pages:    n.Uint64(b[56:]),
		txid:     n.Uint64(b[64:]),
	}
}

// checkFreelist looks at the header of the freelist page, which bbolt trusts
// without a look: a wild count would send it far outside of the file.
func checkFreelist(f *os.File, m *meta) error {
	if m.freelist == noFreelist {
		return nil
	}
	b := make([]byte, pageHeader+8)
	if _, err := f.ReadAt(b, int64(m.freelist*m.pageSize)); err != nil {
		return fmt.Errorf("%w: %s: freelist page: %w", ErrCorrupt, f.Name(), err)
	}
	n := binary.NativeEndian
	id, flags, count, overflow := n.Uint64(b), n.Uint16(b[8:]), uint64(n.Uint16(b[10:])), uint64(n.Uint32(b[12:]))
	if count == 0xFFFF { // the count did not fit: it is the first element
		count = n.Uint64(b[pageHeader:]) + 1
	}
	room := (overflow + 1) * m.pageSize
	if id != m.freelist || flags != freelistPage || m.freelist+overflow >= m.pages || count > (room-pageHeader)/8 {
		return fmt.Errorf("%w: %s: freelist page %d: id %d, flags %#x, count %d, overflow %d", ErrCorrupt, f.Name(), m.freelist, id, flags, count, overflow)
	}
	return nil
}
