package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"
)

// checkPrivate refuses a file that holds a secret and that others of this computer
// may read or change. Windows has no such bits: there the directory decides.
func checkPrivate(info fs.FileInfo) error {
	if runtime.GOOS == "windows" || info.Mode().Perm()&0o077 == 0 {
		return nil
	}
	return fmt.Errorf("it holds a secret and others may read or change it (mode %04o): chmod 600 it", info.Mode().Perm())
}

// readSecret reads a small private file. What is no file, as a pipe, could keep us
// waiting and is gone when it was read once.
func readSecret(path string) ([]byte, fs.FileInfo, error) {
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return nil, nil, errors.New("it is no regular file")
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil {
		err = checkPrivate(info)
	}
	if err != nil {
		return nil, nil, err
	}
	data, err := io.ReadAll(io.LimitReader(f, maxConfig))
	return data, info, err
}
