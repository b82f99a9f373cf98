package reaper_test

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"smol-mcp/fleet"
	"smol-mcp/reaper"
	"smol-mcp/store"
)

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// places are the directories of one test, and a clock that it can move.
type places struct {
	run, state string
	elsewhere  bool   // the fleet is not of this computer
	boot       string // that began since; empty: none did
	mu         sync.Mutex
	ahead      time.Duration
}

func newPlaces(t testing.TB) *places {
	dir := t.TempDir()
	return &places{run: filepath.Join(dir, "run"), state: filepath.Join(dir, "state")}
}

// later moves the clock of all processes of the test.
func (p *places) later(d time.Duration) {
	p.mu.Lock()
	p.ahead += d
	p.mu.Unlock()
}

func (p *places) options(change ...func(*store.Options)) store.Options {
	host := store.ThisHost()
	awake := host.Awake
	host.Awake = func() time.Duration {
		p.mu.Lock()
		defer p.mu.Unlock()
		return awake() + p.ahead
	}
	host.Suspended = nil
	if p.boot != "" {
		host.BootID = p.boot
	}
	opts := store.Options{RuntimeDir: p.run, StateDir: p.state, Kind: "test", Version: "test", Host: host}
	for _, f := range change {
		f(&opts)
	}
	return opts
}

func (p *places) open(t testing.TB, change ...func(*store.Options)) *store.Store {
	t.Helper()
	st := store.New(p.options(change...))
	t.Cleanup(func() { st.Close() })
	return st
}

func newReaper(st *store.Store, w reaper.Fleet) *reaper.Reaper {
	return reaper.New(st, map[string]reaper.Fleet{"local": w}, reaper.Options{})
}

// targetEnv tells a worker that its fleet is not of this computer.
const targetEnv = "SMOL_MCP_TEST_ELSEWHERE"

// tenant is the account of the fleet that is elsewhere.
const tenant = "t1"

// local is the key of a machine of this computer; in a worker, of the worker's fleet.
func local(name string) store.Key { return wish(name, "").Key() }

func wish(name string, kind store.Kind) store.Wish {
	if os.Getenv(targetEnv) != "" {
		return store.Wish{Target: "cloud", Account: tenant, Name: name, Kind: kind}
	}
	return store.Wish{Target: "local", Name: name, Kind: kind}
}

// reaperOf is newReaper for a fleet that may be elsewhere.
func reaperOf(st *store.Store, w reaper.Fleet, elsewhere bool) *reaper.Reaper {
	if !elsewhere {
		return newReaper(st, w)
	}
	return reaper.New(st, map[string]reaper.Fleet{"cloud": w}, reaper.Options{
		Account: func(context.Context, string) (string, error) { return tenant, nil },
	})
}

// maker is a fleet in which tests make machines.
type maker interface {
	create(name, parent string) (fleet.Machine, error)
}

// makeOne makes a machine in the order of the tools: record, create, confirm.
func makeOne(ctx context.Context, s *store.Session, f maker, w store.Wish, parent string) (store.Record, error) {
	rec, err := s.Intend(ctx, w)
	if err != nil {
		return rec, err
	}
	m, err := f.create(w.Name, parent)
	if err != nil {
		return rec, err
	}
	return rec, s.Confirm(ctx, rec, m.ID, m.CreatedAt)
}

func mustMake(t testing.TB, s *store.Session, f maker, w store.Wish, parent string) store.Record {
	t.Helper()
	rec, err := makeOne(t.Context(), s, f, w, parent)
	check(t, err)
	return rec
}

// clean fails the test unless nothing is left anywhere but what names say.
func (p *places) clean(t testing.TB, w *world, names ...string) {
	t.Helper()
	left := w.names()
	for _, n := range names {
		if left[n] == 0 {
			t.Errorf("machine %s is gone", n)
		}
		delete(left, n)
	}
	if len(left) > 0 {
		t.Errorf("machines left: %v", left)
	}
	st := store.New(p.options())
	recs, err := st.Records(t.Context())
	if err != nil {
		t.Error(err)
	}
	for _, r := range recs {
		if r.Phase != store.Gone {
			t.Errorf("record left: %+v", r)
		}
	}
	st.Close()
	for _, dir := range []string{filepath.Join(p.state, "smol-mcp/hosts/*/ledger/*"), filepath.Join(p.run, "inst/*"), filepath.Join(p.run, "*tmp*")} {
		files, err := filepath.Glob(dir)
		if err != nil || len(files) > 0 {
			t.Errorf("files left: %v %v", files, err)
		}
	}
}

// collect is what a person does who wants everything gone that can go, now
// and when the last deadline and quarantine are over. Two records that claim one name go
// one after the other: for each its owner's death is proven, its deletion done and its
// quarantine over.
func (p *places) collect(t testing.TB, w *world) {
	t.Helper()
	st := p.open(t)
	r := reaperOf(st, w, p.elsewhere)
	for range 8 {
		_, err := r.Collect(t.Context(), true)
		check(t, err)
		p.later(16 * time.Minute)
	}
	check(t, st.Close())
}
