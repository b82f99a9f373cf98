//go:build ignore

// Makes empty.ext4.gz: an empty ext4 of 20 GiB, written down as the blocks that are
// not zero, each after its offset in bytes (8 bytes, big endian). It needs
// mke2fs 1.47 or later; "go generate" runs it.
package main

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"io"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

func main() {
	if err := write("empty.ext4.gz"); err != nil {
		log.Fatal(err)
	}
}

func write(path string) error {
	dir, err := os.MkdirTemp("", "empty")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	disk := filepath.Join(dir, "disk")
	// The file is sparse, so its inode tables are zero already and no kernel needs to
	// write them. Without checksums the metadata costs an emulated CPU less.
	mke2fs := exec.Command("mke2fs", "-q", "-F", "-t", "ext4", "-b", "4096", "-m", "0", "-I", "256", "-i", "32768", "-L", "smol",
		"-E", "lazy_itable_init=1,lazy_journal_init=1,assume_storage_prezeroed=1,nodiscard",
		"-O", "^resize_inode,^metadata_csum,sparse_super2", "-J", "size=16", disk, "20G")
	if out, err := mke2fs.CombinedOutput(); err != nil {
		return errors.Join(err, errors.New(string(out)))
	}
	in, err := os.Open(disk)
	if err != nil {
		return err
	}
	defer in.Close()
	var out bytes.Buffer
	z, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return err
	}
	if err := blocks(z, in); err != nil {
		return err
	}
	if err := z.Close(); err != nil {
		return err
	}
	return os.WriteFile(path, out.Bytes(), 0o644)
}

func blocks(w io.Writer, in *os.File) error {
	const hole, data = 4, 3 // SEEK_HOLE, SEEK_DATA
	block, zero := make([]byte, 4096), make([]byte, 4096)
	for next := int64(0); ; {
		at, err := in.Seek(next, data)
		if errors.Is(err, syscall.ENXIO) {
			return nil
		} else if err != nil {
			return err
		}
		end, err := in.Seek(at, hole)
		if err != nil {
			return err
		}
		for next = end; at < end; at += 4096 {
			if _, err := in.ReadAt(block, at); err != nil {
				return err
			}
			if bytes.Equal(block, zero) {
				continue
			}
			if err := binary.Write(w, binary.BigEndian, at); err != nil {
				return err
			}
			if _, err := w.Write(block); err != nil {
				return err
			}
		}
	}
}
