//go:build unix

package kernel

import (
	"io"
	"os"
	"path/filepath"
)

// CopyModules copies from a release's modules directory what Prepare reads: the
// modules that machines load, with what those need.
func CopyModules(from, to string) error {
	all, err := readTree(from)
	if err != nil {
		return err
	}
	have := map[string]bool{}
	for _, names := range [][]string{modulesFirst, modulesSecond} {
		if _, err := all.order(names, have); err != nil {
			return err
		}
	}
	for name := range have {
		file := all.files[name]
		rel, err := filepath.Rel(from, file)
		if err != nil {
			return err
		}
		if err := copyFile(file, filepath.Join(to, rel)); err != nil {
			return err
		}
	}
	return copyFile(filepath.Join(from, "modules.builtin"), filepath.Join(to, "modules.builtin"))
}

func copyFile(from, to string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return err
	}
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	return whole(to, func(w io.Writer) error {
		_, err := io.Copy(w, in)
		return err
	})
}
