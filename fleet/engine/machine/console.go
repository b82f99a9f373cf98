//go:build unix

package machine

import (
	"errors"
	"io"
	"os"
	"path/filepath"
)

// ConsoleMax bounds a console log in bytes. The guest writes it, so it could fill
// the disk; between two looks it may be over this.
const ConsoleMax = 4 << 20

// boundConsole copies an overlong console away and empties it. QEMU appends, so it
// writes on at the new end.
func boundConsole(dir string) error {
	path := filepath.Join(dir, "console.log")
	fi, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) || err == nil && fi.Size() <= ConsoleMax {
		return nil
	}
	if err != nil {
		return err
	}
	in, err := os.Open(path)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(path+".1", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	// The newest part is kept when there is more.
	_, err = io.Copy(out, io.NewSectionReader(in, max(fi.Size()-ConsoleMax, 0), ConsoleMax))
	if err = errors.Join(err, out.Close()); err != nil {
		return err
	}
	return os.Truncate(path, 0)
}

// Console returns the console log of a machine, oldest bytes first, at most
// ConsoleMax of them. It is nil for a machine that was never started.
func (m *Manager) Console(name string) ([]byte, error) {
	vm, err := m.find(name)
	if err != nil {
		return nil, err
	}
	if err := boundConsole(vm.dir); err != nil {
		return nil, err
	}
	f, err := os.Open(filepath.Join(vm.dir, "console.log"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, ConsoleMax))
	if data == nil {
		data = []byte{}
	}
	return data, err
}
