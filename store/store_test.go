package store_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"smol-mcp/store"
)

// places are the directories of one test.
type places struct{ run, state string }

func newPlaces(t testing.TB) places {
	t.Helper()
	dir := t.TempDir()
	return places{filepath.Join(dir, "run"), filepath.Join(dir, "state")}
}

// fastPlaces are in memory where that can be had.
func fastPlaces(t testing.TB) places {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "smol-mcp-")
	if err != nil {
		return newPlaces(t)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return places{filepath.Join(dir, "run"), filepath.Join(dir, "state")}
}

// open returns a store that stands for one process.
func (p places) open(t testing.TB, change ...func(*store.Options)) *store.Store {
	t.Helper()
	opts := store.Options{RuntimeDir: p.run, StateDir: p.state, Kind: "stdio", Version: "test"}
	for _, f := range change {
		f(&opts)
	}
	st := store.New(opts)
	t.Cleanup(func() { st.Close() })
	return st
}

func local(name string) store.Key { return store.Key{Target: "local", Name: name} }

func wish(name string) store.Wish {
	return store.Wish{Target: "local", Name: name, Kind: store.Ephemeral, Image: "alpine", Network: "blocked"}
}

// ready makes a confirmed record.
func ready(t testing.TB, s *store.Session, w store.Wish) store.Record {
	t.Helper()
	rec, err := s.Intend(t.Context(), w)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Confirm(t.Context(), rec, w.Name, time.Unix(1_700_000_000, 0)); err != nil {
		t.Fatal(err)
	}
	return rec
}

func TestLifeOfRecord(t *testing.T) {
	p := newPlaces(t)
	st := p.open(t)
	s := st.NewSession("stdio", "test")
	rec := ready(t, s, wish("mcp-a"))

	got, ok, err := st.Find(t.Context(), local("mcp-a"))
	if err != nil || !ok {
		t.Fatalf("find: %v %v", ok, err)
	}
	if got.UID != rec.UID || got.Phase != store.Ready || got.Image != "alpine" || s.Owner(got) != store.ThisSession {
		t.Errorf("found %+v, owner %s", got, s.Owner(got))
	}
	_, err = s.Intend(t.Context(), wish("mcp-a"))
	var taken *store.ExistsError
	if !errors.As(err, &taken) || taken.Record.UID != rec.UID {
		t.Errorf("a second wish of the name: %v", err)
	}
	other := p.open(t).NewSession("stdio", "other")
	if got, ok, err = other.Use(t.Context(), local("mcp-a")); err != nil || !ok || other.Owner(got) != store.AnotherSession {
		t.Errorf("another session uses it: %v %v %s", ok, err, other.Owner(got))
	}

	recs, err := s.End(t.Context())
	if err != nil || len(recs) != 1 || recs[0].Phase != store.Deleting {
		t.Fatalf("end: %v %v", recs, err)
	}
	if _, err := st.Settle(t.Context(), store.Outcome{Record: recs[0], Result: store.Deleted}); err != nil {
		t.Fatal(err)
	}
	if all, err := st.Records(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("left: %v %v", all, err)
	}
	p.empty(t)
}

// empty fails the test when the ledger is not.
func (p places) empty(t testing.TB) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(p.state, "smol-mcp/hosts/*/ledger/*"))
	if err != nil || len(files) != 0 {
		t.Errorf("ledger: %v %v", files, err)
	}
}

func TestCrashedOwner(t *testing.T) {
	p := newPlaces(t)
	crashed := p.open(t)
	ready(t, crashed.NewSession("stdio", "first"), wish("mcp-a"))
	check(t, crashed.Abort())

	st := p.open(t, func(o *store.Options) { o.CrashGrace = -1 })
	s := st.NewSession("stdio", "second")
	rec, ok, err := st.Find(t.Context(), local("mcp-a"))
	if err != nil || !ok || s.Owner(rec) != store.CrashedSession {
		t.Fatalf("found %v %v, owner %s", ok, err, s.Owner(rec))
	}
	if left, ok := rec.Left(); !ok || left != store.DefaultGrace {
		t.Errorf("left %v %v", left, ok)
	}
	// the first sweep starts the grace, and leaves the machine alone
	if recs, err := st.Claim(t.Context(), store.Claims{}); err != nil || len(recs) != 0 {
		t.Fatalf("claimed %v %v", recs, err)
	}
	if rec, ok, err = s.Use(t.Context(), local("mcp-a")); err != nil || !ok || s.Owner(rec) != store.ThisSession {
		t.Fatalf("adopt: %v %v, owner %s", ok, err, s.Owner(rec))
	}
	recs, err := s.End(t.Context())
	if err != nil || len(recs) != 1 {
		t.Fatalf("end: %v %v", recs, err)
	}
}

// claims are those of a sweep.
func claims() store.Claims { return store.Claims{Limit: 16} }
