package store_test

import (
	"errors"
	"fmt"
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

// T46: cursors are written together, survive their session's crash with the
// machine, and go with it.
func TestCursors(t *testing.T) {
	p := newPlaces(t)
	st := p.open(t)
	s := st.NewSession("stdio", "first")
	var recs []store.Record
	for i := range 64 {
		recs = append(recs, ready(t, s, wish(fmt.Sprintf("mcp-%d", i))))
	}
	before := st.Commits()
	for round := range 30 { // each subscription is looked at every two seconds
		for _, r := range recs {
			check(t, s.SetCursor(t.Context(), r, "logs", fmt.Sprintf("%s at %d", r.Name, round)))
		}
	}
	if n := st.Commits() - before; n > 15 {
		t.Errorf("%d transactions", n)
	}
	if token, ok, err := s.Cursor(t.Context(), recs[3], "logs"); err != nil || !ok || token != "mcp-3 at 29" {
		t.Errorf("own cursor: %q %v %v", token, ok, err)
	}
	check(t, st.Flush(t.Context()))
	check(t, st.Abort())

	st = p.open(t)
	heir := st.NewSession("stdio", "heir")
	rec, ok, err := heir.Use(t.Context(), local("mcp-3"))
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	if token, ok, err := heir.Cursor(t.Context(), rec, "logs"); err != nil || !ok || token != "mcp-3 at 29" {
		t.Errorf("inherited cursor: %q %v %v", token, ok, err)
	}
	if _, ok, err := heir.Cursor(t.Context(), recs[4], "logs"); err != nil || ok {
		t.Errorf("a cursor of somebody else: %v %v", ok, err)
	}
	gone, _, err := heir.Tombstone(t.Context(), local("mcp-3"))
	check(t, err)
	_, err = st.Settle(t.Context(), store.Outcome{Record: gone, Result: store.Deleted})
	check(t, err)
	other := p.open(t).NewSession("stdio", "other")
	if _, ok, err := other.Cursor(t.Context(), rec, "logs"); err != nil || ok {
		t.Errorf("the cursor of a machine that is gone: %v %v", ok, err)
	}
}

// T41, I16: the wall clock decides nothing, and a suspended computer reaps
// nothing right after it wakes up.
func TestClocks(t *testing.T) {
	p := newPlaces(t)
	h := store.ThisHost()
	awake, ahead, slept := h.Awake, time.Duration(0), time.Duration(0)
	h.Awake = func() time.Duration { return awake() + ahead }
	h.Suspended = func() time.Duration { return slept }
	st := p.open(t, onHost(h))
	crashed := p.open(t, onHost(h))
	ready(t, crashed.NewSession("stdio", "crashed"), wish("mcp-a"))
	check(t, crashed.Abort())
	claim := func(want int, when string) {
		t.Helper()
		recs, err := st.Claim(t.Context(), store.Claims{})
		if err != nil || len(recs) != want {
			t.Errorf("%s: claimed %d, %v", when, len(recs), err)
		}
	}
	claim(0, "at the death")
	slept += 8 * time.Hour
	claim(0, "after eight hours of sleep, which do not count")
	ahead += 11 * time.Minute
	claim(1, "after eleven minutes awake")

	ready(t, st.NewSession("stdio", "x"), wish("mcp-b"))
	crashed = p.open(t, onHost(h))
	ready(t, crashed.NewSession("stdio", "crashed"), wish("mcp-c"))
	check(t, crashed.Abort())
	claim(0, "at the second death")
	ahead += 11 * time.Minute
	slept += time.Hour
	claim(0, "just after waking up")
	ahead += 31 * time.Second
	claim(1, "half a minute later")
}

// T43, I20: a file of a newer version that must not be written by this one. Its
// sessions live on the ledger; nobody else's machine is touched.
func TestNewerSchema(t *testing.T) {
	p := newPlaces(t)
	newer := p.open(t)
	ready(t, newer.NewSession("stdio", "newer"), wish("mcp-newer"))
	check(t, newer.SetSchema(t.Context(), 2, 1, 2))
	check(t, newer.Abort())

	old := p.open(t, func(o *store.Options) { o.CrashGrace = -1 })
	s := old.NewSession("stdio", "old")
	rec := ready(t, s, wish("mcp-old"))
	_, err := s.Intend(t.Context(), wish("mcp-old"))
	if !errors.As(err, new(*store.ExistsError)) {
		t.Errorf("a second wish of the name: %v", err)
	}
	if recs, err := old.Claim(t.Context(), store.Claims{NoGrace: true}); err != nil || len(recs) != 0 {
		t.Errorf("the old version claims %v, %v", recs, err)
	}
	files, err := filepath.Glob(filepath.Join(p.state, "smol-mcp/hosts/*/ledger/*"))
	if err != nil || len(files) != 2 {
		t.Errorf("ledger: %v %v", files, err)
	}
	recs, err := s.End(t.Context())
	if err != nil || len(recs) != 1 || recs[0].UID != rec.UID {
		t.Fatalf("end: %v %v", recs, err)
	}
	claimed, busy, err := old.ClaimAll(t.Context(), recs...)
	if err != nil || len(claimed) != 1 || len(busy) != 0 {
		t.Fatalf("claim: %v %v %v", claimed, busy, err)
	}
	if left, err := old.Settle(t.Context(), store.Outcome{Record: claimed[0], Result: store.Deleted}); err != nil || len(left) != 0 {
		t.Errorf("settle: %v %v", left, err)
	}
	check(t, old.Close())
	check(t, p.open(t).SetSchema(t.Context(), 1, 1, 1)) // what the newer version would see
	st := p.open(t)
	all, err := st.Records(t.Context())
	if err != nil || len(all) != 1 || all[0].Name != "mcp-newer" || all[0].Phase != store.Ready {
		t.Errorf("records: %+v %v", all, err)
	}
}

// A refused deletion leaves the machine with its owner.
func TestRestore(t *testing.T) {
	p := newPlaces(t)
	st := p.open(t)
	s := st.NewSession("stdio", "test")
	want := ready(t, s, wish("mcp-a"))
	rec, _, err := s.Tombstone(t.Context(), local("mcp-a"))
	check(t, err)
	check(t, s.Restore(t.Context(), rec))
	got, ok, err := st.Find(t.Context(), local("mcp-a"))
	if err != nil || !ok || got.UID != want.UID || got.Phase != store.Ready || got.Due != 0 || got.Claimer != "" {
		t.Errorf("%+v %v %v", got, ok, err)
	}
	recs, err := s.End(t.Context())
	if err != nil || len(recs) != 1 {
		t.Errorf("end: %v %v", recs, err)
	}
	check(t, s.Restore(t.Context(), recs[0]))
	if got, _, err = st.Find(t.Context(), local("mcp-a")); err != nil || got.Phase != store.Deleting {
		t.Errorf("restored after the end: %+v %v", got, err)
	}
}
