//go:build unix

package machine

import (
	"bytes"
	"compress/gzip"
	_ "embed" // the empty disk
	"encoding/binary"
	"errors"
	"io"
	"os"
)

//go:generate go run empty_make.go

// emptyDisk is an empty ext4 as its blocks that are not zero; see empty_make.go.
// That spares the engine a mke2fs, which not every computer has.
//
//go:embed empty.ext4.gz
var emptyDisk []byte

// DiskGB is the smallest disk, and the one of a machine that does not ask: the size
// of the empty file system in GiB. It takes what is written to it.
const DiskGB = 20

// makeDisk makes an empty disk of sizeGB GiB at path, with one rename.
func makeDisk(path string, sizeGB int) error {
	f, err := os.OpenFile(path+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Truncate(int64(max(sizeGB, DiskGB)) << 30); err != nil {
		return err
	}
	in, err := gzip.NewReader(bytes.NewReader(emptyDisk))
	if err != nil {
		return err
	}
	block := make([]byte, 8+4096)
	for {
		if _, err := io.ReadFull(in, block); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return err
		}
		if _, err := f.WriteAt(block[8:], int64(binary.BigEndian.Uint64(block))); err != nil {
			return err
		}
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}
