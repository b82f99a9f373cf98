package store_test

import (
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"smol-mcp/store"
)

// The id is made once, whoever is first, and stays; a look makes none.
func TestInstallation(t *testing.T) {
	dir := t.TempDir()
	open := func(readOnly bool) *store.Store {
		st := store.New(store.Options{RuntimeDir: filepath.Join(dir, "run"), StateDir: filepath.Join(dir, "state"), ReadOnly: readOnly})
		t.Cleanup(func() { _ = st.Close() })
		return st
	}
	if id, err := open(true).Installation(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("before the first: %q %v", id, err)
	}
	var mu sync.Mutex
	var ids []string
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			id, err := open(false).Installation()
			mu.Lock()
			defer mu.Unlock()
			if err != nil || len(id) != 16 {
				t.Errorf("id %q, %v", id, err)
			}
			ids = append(ids, id)
		})
	}
	group.Wait()
	if slices.Sort(ids); len(slices.Compact(ids)) != 1 {
		t.Errorf("ids %v", ids)
	}
	if id, err := open(true).Installation(); id != ids[0] || err != nil {
		t.Errorf("a look: %q %v", id, err)
	}
}
