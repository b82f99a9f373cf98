package store

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	bolt "go.etcd.io/bbolt"
)

// secondLook is how long a file of the ledger must be without a record before
// that means anything: an owner drops the record first, then the file.
const secondLook = time.Second

// Tend mends what no single call can: it compares the ledger with the records,
// removes the files of processes that are gone, and makes a file that was large
// small again. Servers call it now and then, gc always.
func (s *Store) Tend(ctx context.Context) error {
	known, err := s.known()
	if err != nil {
		return err
	}
	s.placeMu.Lock()
	if s.root != nil {
		tidyTemps(s.root)
	}
	s.placeMu.Unlock()
	if !known {
		return nil
	}
	for _, work := range []func(context.Context) error{s.reconcile, s.tidyFiles, s.compact} {
		if err := work(ctx); err != nil {
			return unlessOtherSchema(err)
		}
	}
	return nil
}

// reconcile makes records for files of the ledger that have none.
func (s *Store) reconcile(ctx context.Context) error {
	imports, err := s.unrecorded(ctx)
	if err != nil || len(imports) == 0 {
		return err
	}
	if slices.ContainsFunc(imports, func(im imported) bool { return im.recent }) {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(secondLook):
		}
		first := imports
		if imports, err = s.unrecorded(ctx); err != nil {
			return err
		}
		imports = slices.DeleteFunc(imports, func(im imported) bool {
			return !slices.ContainsFunc(first, func(was imported) bool { return was.rec.UID == im.rec.UID })
		})
		if len(imports) == 0 {
			return nil
		}
	}
	own := s.owned()
	known := make(map[string]bool, len(own))
	for uid := range own {
		known[uid] = true
	}
	err = s.update(ctx, func(t *tx) error {
		if err := t.importAll(imports); err != nil {
			return err
		}
		return s.disown(t, known)
	})
	if err == nil {
		s.dropUseless(imports)
	}
	return err
}

// unrecorded returns what the ledger knows and state.db does not.
func (s *Store) unrecorded(ctx context.Context) ([]imported, error) {
	imports, err := s.fromLedger() // first: a record is written before its file
	if err != nil || len(imports) == 0 {
		return nil, err
	}
	var recs []Record
	var said []Notice
	err = s.view(ctx, func(t *tx) (err error) {
		if recs, err = t.records(); err == nil {
			said, err = t.notices()
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	byUID := make(map[string]bool, len(recs))
	for _, r := range recs {
		byUID[r.UID] = true
	}
	return slices.DeleteFunc(imports, func(im imported) bool {
		if im.rec.UID == "" {
			return slices.ContainsFunc(said, func(n Notice) bool { return n.Text == im.note })
		}
		return byUID[im.rec.UID]
	}), nil
}

// tidyFiles removes the lock files of dead processes to which nothing refers.
func (s *Store) tidyFiles(ctx context.Context) error {
	needed := make(map[string]bool)
	err := s.view(ctx, func(t *tx) error {
		return t.eachInstance(func(_ string, row instance) error {
			needed[row.File] = true
			return nil
		})
	})
	if err != nil {
		return err
	}
	ledger, err := s.openLedger()
	if err != nil {
		return err
	}
	entries, _, err := readLedger(ledger)
	if err != nil {
		return err
	}
	for _, e := range entries {
		needed[e.Process.File] = true
	}
	s.placeMu.Lock()
	root := s.root
	s.placeMu.Unlock()
	if root == nil {
		return errAbsent
	}
	files, err := fs.ReadDir(root.FS(), instDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, f := range files {
		if !needed[f.Name()] {
			removeFree(root, instDir+"/"+f.Name())
		}
	}
	tidyTemps(ledger)
	if kept, err := s.openKept(false); err == nil {
		tidyTemps(kept)
		return kept.Close()
	}
	return nil
}

// tidyTemps removes files whose makers died over them.
func tidyTemps(dir *os.Root) {
	files, err := fs.ReadDir(dir.FS(), ".")
	if err != nil {
		return
	}
	for _, f := range files {
		if halfMade(f.Name()) {
			removeFree(dir, f.Name())
		}
	}
}

// halfMade reports whether a file's name says that it is being made, or was set
// aside.
func halfMade(name string) bool {
	return strings.Contains(name, tempMark) || strings.Contains(name, badMark)
}

// removeFree removes a file while it holds its lock, so only when whoever made
// it is dead.
func removeFree(root *os.Root, name string) {
	f, err := root.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return
	}
	defer f.Close()
	if free, err := lockTry(f, true); err == nil && free {
		root.Remove(name)
	}
}

// A file is made small again from this size on, when three quarters are free.
const compactAbove = 1 << 20

// compact replaces a large and empty state.db by a small one. Those who wait
// for its lock meanwhile find that it has been replaced.
func (s *Store) compact(ctx context.Context) error {
	s.placeMu.Lock()
	if s.root == nil {
		s.placeMu.Unlock()
		return errAbsent
	}
	fi, err := s.root.Stat(dbName)
	s.placeMu.Unlock()
	if err != nil || fi.Size() <= compactAbove {
		return err
	}
	return s.locked(ctx, func(f *os.File, root *os.Root) error {
		used, err := verify(f)
		if err != nil || used > fi.Size()/4 {
			return err
		}
		return rewrite(f, root)
	})
}

// rewrite replaces a locked state.db by a compact copy of itself.
func rewrite(f *os.File, root *os.Root) error {
	out, temp, err := lockedTemp(root, dbName)
	if err != nil {
		return dbError(err)
	}
	err = withCopy(f, func(src *bolt.DB) error {
		return withNewDB(out, func(dst *bolt.DB) error { return bolt.Compact(dst, src, 0) })
	})
	if err == nil {
		failpoint("compact-rename")
		err = root.Rename(temp, dbName)
	}
	if err != nil {
		out.Close()
		root.Remove(temp)
	}
	return err
}
