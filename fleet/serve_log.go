package fleet

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
)

// logSize is how large engine.log may be, in bytes, when it is looked at: when
// an engine is looked for.
const logSize = 1 << 20

// tailSize is how much of an engine's last words goes into an error, in bytes,
// which leaves room within MaxWhy for what we have to say.
const tailSize = 800

// openLog opens a log to append to, which makes it safe to truncate it under
// an engine that has it open.
func openLog(path string) (*os.File, error) {
	if err := regular(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return os.OpenFile(path, os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o600)
}

// rotate copies an overlong log to its name with .1, whose end is what is kept
// of it, and empties it.
func rotate(path string) error {
	err := regular(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil || size <= logSize {
		return err
	}
	if _, err := f.Seek(-logSize, io.SeekEnd); err != nil {
		return err
	}
	old := path + ".1"
	if err := os.Remove(old); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	to, err := os.OpenFile(old, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, f)
	return errors.Join(err, to.Close(), f.Truncate(0))
}

// regular refuses what is no plain file.
func regular(path string) error {
	fi, err := os.Lstat(path)
	if err == nil && !fi.Mode().IsRegular() {
		return fmt.Errorf("%s is not a regular file", path)
	}
	return err
}

// tail returns what was added to a log after from, at most tailSize bytes of its end.
func tail(path string, from int64) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return ""
	}
	cut := size-from > tailSize
	if cut {
		from = size - tailSize
	}
	b := make([]byte, size-from)
	n, _ := f.ReadAt(b, from)
	text := string(b[:n])
	if cut {
		_, text, _ = strings.Cut(text, "\n") // from the next whole line on
	}
	return Bound(text, tailSize)
}
