package store_test

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"smol-mcp/store"
)

// toKeep is the wish for a machine that outlives its session.
func toKeep(name string) store.Wish {
	w := wish(name)
	w.Kind = store.Persistent
	return w
}

// keptBy says whose a machine is; empty: nobody's.
func keptBy(t testing.TB, st *store.Store, name string) string {
	t.Helper()
	k, found, err := st.KeptBy(local(name))
	check(t, err)
	if found != (k.Principal != "") || found && (k.Key() != local(name) || time.Since(k.Created) > time.Minute || !k.Pending()) {
		t.Errorf("kept: %+v %v", k, found)
	}
	return k.Principal
}

func (p places) kept(t testing.TB) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(p.state, "smol-mcp/hosts/*/kept/*"))
	check(t, err)
	return files
}

// Whose a kept machine is outlives record, process and boot, until it is said to be gone.
func TestKept(t *testing.T) {
	p := newPlaces(t)
	st := p.open(t, onHost(host("boot-1")))
	a, b, user := st.NewSessionOf("a", "http", ""), st.NewSessionOf("b", "http", ""), st.NewSession("stdio", "")
	ready(t, a, toKeep("kept"))
	ready(t, b, toKeep("other"))
	ready(t, user, toKeep("users"))
	ready(t, a, wish("mcp-a"))
	for name, want := range map[string]string{"kept": "a", "other": "b", "users": "", "mcp-a": ""} {
		if got := keptBy(t, st, name); got != want {
			t.Errorf("%s belongs to %q", name, got)
		}
	}
	if fi, err := os.Stat(p.kept(t)[0]); err != nil || runtime.GOOS != "windows" && fi.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", fi.Mode(), err)
	}
	check(t, st.Close())
	check(t, os.RemoveAll(p.run))
	st = p.open(t, onHost(host("boot-2")))
	if got := keptBy(t, st, "kept"); got != "a" {
		t.Errorf("after a boot it belongs to %q", got)
	}
	if all, err := st.Kept(); err != nil || len(all) != 2 || all[0].Name != "kept" || all[1].Principal != "b" {
		t.Errorf("all: %+v %v", all, err)
	}
	if sv, err := p.open(t, func(o *store.Options) { o.ReadOnly = true }).Survey(t.Context()); err != nil {
		t.Errorf("survey: %v %v", sv, err)
	}
	k, _, err := st.KeptBy(local("kept"))
	check(t, err)
	check(t, st.Unkeep(k))
	check(t, st.Unkeep(k)) // another was faster
	if got := keptBy(t, st, "kept"); got != "" || len(p.kept(t)) != 1 {
		t.Errorf("afterwards it belongs to %q, files %v", got, p.kept(t))
	}
}

// What a failed or finished creation leaves of it is nothing, and of a later machine of the
// name the later wish counts.
func TestKeptEnds(t *testing.T) {
	p := newPlaces(t)
	st := p.open(t)
	a, b, user := st.NewSessionOf("a", "http", ""), st.NewSessionOf("b", "http", ""), st.NewSession("stdio", "")

	rec, err := a.Intend(t.Context(), toKeep("refused"))
	check(t, err)
	if keptBy(t, st, "refused") != "a" {
		t.Error("it is written down after the request")
	}
	check(t, a.Abandon(t.Context(), rec))

	_, err = a.Intend(t.Context(), toKeep("failed"))
	check(t, err)
	rec, _, err = a.Tombstone(t.Context(), local("failed"))
	check(t, err)
	_, err = st.Settle(t.Context(), store.Outcome{Record: rec, Result: store.Deleted})
	check(t, err)
	if files := p.kept(t); len(files) != 0 {
		t.Errorf("left: %v", files)
	}

	ready(t, a, toKeep("again")) // and deleted by another program
	stale, _, err := st.KeptBy(local("again"))
	check(t, err)
	rec, err = b.Intend(t.Context(), toKeep("again"))
	check(t, err)
	if got := keptBy(t, st, "again"); got != "b" {
		t.Errorf("made again it belongs to %q", got)
	}
	check(t, st.Unkeep(stale)) // the word of its end comes late
	if got := keptBy(t, st, "again"); got != "b" {
		t.Errorf("then it belongs to %q", got)
	}
	check(t, b.Confirm(t.Context(), rec, "", time.Time{}))
	ready(t, user, toKeep("again"))
	if got := keptBy(t, st, "again"); got != "" || len(p.kept(t)) != 0 {
		t.Errorf("the user's own belongs to %q, files %v", got, p.kept(t))
	}
}

// What cannot be read is told to nobody, and nothing is created without it.
func TestKeptUnreadable(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("modes say nothing there")
	}
	p := newPlaces(t)
	st := p.open(t)
	a := st.NewSessionOf("a", "http", "")
	ready(t, a, toKeep("kept"))
	ready(t, a, toKeep("fine"))
	k, _, err := st.KeptBy(local("kept"))
	check(t, err)
	for _, file := range p.kept(t) {
		if strings.Contains(file, k.UID) {
			check(t, os.Truncate(file, 20))
		}
	}
	if _, found, err := st.KeptBy(local("kept")); !errors.Is(err, store.ErrKept) || found {
		t.Errorf("half a file: %v %v", found, err)
	}
	if got := keptBy(t, st, "fine"); got != "a" {
		t.Errorf("the other belongs to %q", got)
	}
	dir := filepath.Dir(p.kept(t)[0])
	check(t, os.Chmod(dir, 0o755)) // others may have written there
	if _, _, err := st.KeptBy(local("fine")); !errors.Is(err, store.ErrKept) {
		t.Errorf("an open directory: %v", err)
	}
	if _, err := a.Intend(t.Context(), toKeep("new")); !errors.Is(err, store.ErrKept) {
		t.Errorf("a wish: %v", err)
	}
	if _, found, err := st.Find(t.Context(), local("new")); found || err != nil {
		t.Errorf("its record: %v %v", found, err)
	}
}
