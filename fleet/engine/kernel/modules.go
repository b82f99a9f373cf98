//go:build unix

package kernel

import (
	"bytes"
	"debug/elf"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// tree is a directory of modules. What a module needs stands in the module, so
// that a kernel's package can be used as it was unpacked, before anything has
// made a modules.dep.
type tree struct {
	files  map[string]string // path by plain name
	inside map[string]bool   // built into the kernel, by plain name
}

// module is one that has been read.
type module struct {
	name  string // plain
	data  []byte
	needs []string
}

// plainName is a module's name without directory, suffixes and the choice
// between - and _.
func plainName(file string) string {
	name, _, _ := strings.Cut(path.Base(filepath.ToSlash(file)), ".ko")
	return strings.ReplaceAll(name, "-", "_")
}

func readTree(dir string) (*tree, error) {
	t := &tree{files: map[string]string{}, inside: map[string]bool{}}
	err := filepath.WalkDir(filepath.Join(dir, "kernel"), func(path string, d fs.DirEntry, err error) error {
		if err == nil && strings.Contains(d.Name(), ".ko") {
			t.files[plainName(path)] = path
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	builtin, _ := os.ReadFile(filepath.Join(dir, "modules.builtin")) // a kernel may have none
	for _, file := range strings.Fields(string(builtin)) {
		t.inside[plainName(file)] = true
	}
	return t, nil
}

// order returns modules with all they need, those needed first, without those
// in have, and adds them to have.
func (t *tree) order(names []string, have map[string]bool) ([]module, error) {
	var out []module
	for _, name := range names {
		name = plainName(name)
		if have[name] || t.inside[name] {
			continue
		}
		have[name] = true // before its needs, so that a circle ends
		file, ok := t.files[name]
		if !ok {
			return nil, fmt.Errorf("it has no module %s", name)
		}
		m, err := readModule(file)
		if err != nil {
			return nil, err
		}
		needed, err := t.order(m.needs, have)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		out = append(append(out, needed...), m)
	}
	return out, nil
}

// readModule reads a module as the kernel takes it.
func readModule(file string) (module, error) {
	data, err := unpackModule(file)
	if err != nil {
		return module{}, err
	}
	m := module{name: plainName(file), data: data}
	f, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		return m, fmt.Errorf("%s: %w", file, err)
	}
	info := f.Section(".modinfo")
	if info == nil {
		return m, fmt.Errorf("%s is no module", file)
	}
	text, err := info.Data()
	if err != nil {
		return m, fmt.Errorf("%s: %w", file, err)
	}
	for _, line := range strings.Split(string(text), "\x00") {
		if list, ok := strings.CutPrefix(line, "depends="); ok && list != "" {
			m.needs = strings.Split(list, ",")
		}
	}
	return m, nil
}
