package store

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/google/uuid"
)

const installationName = "installation"

// Installation returns the random id of this user's installation on this computer,
// 16 hex digits, which is made at the first call and stays. A fleet that several
// installations share marks machines with it. A read-only store
// that finds none reports fs.ErrNotExist.
func (s *Store) Installation() (string, error) {
	dir, err := s.StateDir()
	if errors.Is(err, errAbsent) {
		return "", fmt.Errorf("the id of this installation was not made yet: %w", fs.ErrNotExist)
	}
	if err != nil {
		return "", err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrPlace, err)
	}
	defer root.Close()
	id, err := readInstallation(root)
	if !errors.Is(err, fs.ErrNotExist) || s.opts.ReadOnly {
		return id, err
	}
	random := uuid.New()
	if err := makeInstallation(root, hex.EncodeToString(random[:8])); err != nil {
		return "", err
	}
	return readInstallation(root)
}

func readInstallation(root *os.Root) (string, error) {
	data, err := root.ReadFile(installationName)
	if err != nil {
		return "", err
	}
	id := strings.TrimSpace(string(data))
	if raw, err := hex.DecodeString(id); err != nil || len(raw) != 8 {
		return "", fmt.Errorf("%s/%s holds no id; remove it", root.Name(), installationName)
	}
	return id, nil
}

// makeInstallation writes the id, unless another process was faster.
func makeInstallation(root *os.Root, id string) error {
	f, temp, err := lockedTemp(root, installationName)
	if err != nil {
		return dbError(err)
	}
	defer root.Remove(temp)
	_, err = f.WriteString(id + "\n")
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return dbError(err)
	}
	if err := root.Link(temp, installationName); err != nil && !errors.Is(err, fs.ErrExist) {
		return dbError(err)
	}
	return syncDir(root)
}
