package reaper_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"smol-mcp/fleet"
	"smol-mcp/reaper"
	"smol-mcp/store"
)

// T37, I6: the late deletion of a reaper that died cannot hit a new machine of
// the name, since the name is kept until it has surely ended.
func TestLateDelete(t *testing.T) {
	p, w := newPlaces(t), newWorld()
	st := p.open(t)
	s := st.NewSession("stdio", "test")
	mustMake(t, s, w, wish("mcp-a", store.Ephemeral), "")
	// a reaper claims, sends its request, and dies; the request is still on its way
	first := p.open(t)
	rec, _, err := first.NewSession("stdio", "first").Tombstone(t.Context(), local("mcp-a"))
	check(t, err)
	_, _, err = first.ClaimAll(t.Context(), rec)
	check(t, err)
	check(t, first.Abort())

	r := newReaper(st, w)
	for range 2 { // its death is noticed, its claim is stolen
		_, err := r.Sweep(t.Context())
		check(t, err)
	}
	if left := w.names(); len(left) != 0 {
		t.Fatalf("not deleted: %v", left)
	}
	_, err = s.Intend(t.Context(), wish("mcp-a", store.Ephemeral))
	var taken *store.ExistsError
	if !errors.As(err, &taken) || taken.Record.Phase != store.Gone {
		t.Fatalf("the name right after: %v", err)
	}
	// the late request arrives
	if _, err := w.Delete(t.Context(), "mcp-a"); fleet.CodeOf(err) != fleet.CodeNotFound {
		t.Errorf("the late deletion found something: %v", err)
	}
	p.later(61 * time.Second)
	_, err = r.Sweep(t.Context())
	check(t, err)
	mustMake(t, s, w, wish("mcp-a", store.Ephemeral), "")
	if left := w.names(); left["mcp-a"] == 0 {
		t.Error("the new machine is gone")
	}
}

// T21, I15: collectors and servers that end all at once delete each machine
// once, and none of them sees an error.
func TestCollectorsAtOnce(t *testing.T) {
	for range 10 {
		p, w := newPlaces(t), newWorld()
		w.before = func(op, name string) error {
			time.Sleep(time.Millisecond) // a request takes its time
			return nil
		}
		var wg sync.WaitGroup
		const servers, machines = 4, 5
		for i := range servers {
			st := p.open(t)
			s := st.NewSession("stdio", "test")
			for j := range machines {
				mustMake(t, s, w, wish(fmt.Sprintf("mcp-%d-%d", i, j), store.Ephemeral), "")
			}
			wg.Go(func() {
				if i%2 == 0 {
					if err := st.Abort(); err != nil {
						t.Error(err)
					}
					return
				}
				recs, err := s.End(t.Context())
				if err != nil {
					t.Error(err)
				}
				if err := newReaper(st, w).Remove(t.Context(), recs...); err != nil {
					t.Error(err)
				}
				if err := st.Close(); err != nil {
					t.Error(err)
				}
			})
			wg.Go(func() {
				gc := p.open(t)
				if _, err := newReaper(gc, w).Collect(t.Context(), true); err != nil {
					t.Error(err)
				}
				if err := gc.Close(); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		p.collect(t, w)
		p.clean(t, w)
		deleted := make(map[string]int)
		for _, c := range w.calls {
			if f := strings.Fields(c); f[0] == "delete" && len(f) == 2 { // answered with success
				deleted[f[1]]++
			}
		}
		for name, n := range deleted {
			if n != 1 {
				t.Errorf("%s was deleted %d times", name, n)
			}
		}
		if len(deleted) != servers*machines {
			t.Errorf("%d of %d machines were deleted", len(deleted), servers*machines)
		}
	}
}

// Calls of one process that delete the same machine, while it sweeps, send one
// deletion, and all hear of its end.
func TestDeletedTwiceAtOnce(t *testing.T) {
	for range 20 {
		p, w := newPlaces(t), newWorld()
		st := p.open(t)
		s := st.NewSession("stdio", "test")
		mustMake(t, s, w, wish("mcp-a", store.Ephemeral), "")
		r := newReaper(st, w)
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				rec, ok, err := s.Tombstone(t.Context(), local("mcp-a"))
				if err != nil || !ok { // it is gone already
					return
				}
				if err := r.Remove(t.Context(), rec); err != nil {
					t.Error(err)
				}
				if left := w.names(); len(left) > 0 {
					t.Errorf("said to be deleted: %v", left)
				}
			})
			wg.Go(func() {
				if _, err := r.Sweep(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		deletions := 0
		for _, c := range w.calls {
			if strings.HasPrefix(c, "delete") {
				deletions++
			}
		}
		if deletions != 1 {
			t.Errorf("%d deletions: %v", deletions, w.calls)
		}
	}
}

// T45: 200 sessions of one process that end at once share their transactions.
func TestManySessionsEnd(t *testing.T) {
	p, w := newPlaces(t), newWorld()
	st := p.open(t)
	const n = 200
	sessions := make([]*store.Session, n)
	var wg sync.WaitGroup
	for i := range sessions {
		sessions[i] = st.NewSession("http", "test")
		wg.Go(func() {
			if _, err := makeOne(t.Context(), sessions[i], w, wish(fmt.Sprintf("mcp-%d", i), store.Ephemeral), ""); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	r := newReaper(st, w)
	start := time.Now()
	for _, s := range sessions {
		wg.Go(func() {
			recs, err := s.End(t.Context())
			if err == nil {
				err = r.Remove(t.Context(), recs...)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	t.Logf("%d sessions ended in %v", n, time.Since(start))
	check(t, st.Close())
	p.clean(t, w)
}

// T44, F25: a record of an account that is not ours, or of a target that is not
// served, is left alone, and no request is made for it.
func TestOtherAccount(t *testing.T) {
	p, w := newPlaces(t), newWorld()
	st := p.open(t)
	s := st.NewSession("stdio", "test")
	other := wish("mcp-other", store.Ephemeral)
	other.Account = "ab12"
	rec, err := s.Intend(t.Context(), other)
	check(t, err)
	check(t, s.Confirm(t.Context(), rec, "mach-1", time.Unix(1_700_000_000, 0)))
	cloud := wish("mcp-cloud", store.Ephemeral)
	cloud.Target = "cloud"
	_, err = s.Intend(t.Context(), cloud)
	check(t, err)
	recs, err := s.End(t.Context())
	check(t, err)
	err = newReaper(st, w).Remove(t.Context(), recs...)
	if fleet.CodeOf(err) == "" || !strings.Contains(err.Error(), "ab12") || !strings.Contains(err.Error(), "cloud") {
		t.Errorf("%v", err)
	}
	p.later(time.Hour)
	_, err = newReaper(st, w).Sweep(t.Context())
	check(t, err)
	if len(w.calls) > 0 {
		t.Errorf("requests: %v", w.calls)
	}
	all, err := st.Records(t.Context())
	if err != nil || len(all) != 2 {
		t.Errorf("records: %v %v", all, err)
	}
}

// T42, I18: looking changes nothing.
func TestLookingChangesNothing(t *testing.T) {
	p, w := newPlaces(t), newWorld()
	first := p.open(t)
	s := first.NewSession("stdio", "first")
	mustMake(t, s, w, wish("mcp-a", store.Ephemeral), "")
	_, err := s.Intend(t.Context(), wish("mcp-b", store.Ephemeral))
	check(t, err)
	check(t, first.Abort())
	before := p.snapshot(t)
	st := p.open(t, func(o *store.Options) { o.ReadOnly = true })
	for range 3 {
		sv, err := st.Survey(t.Context())
		check(t, err)
		fates := make(map[string]store.Fate)
		for _, m := range sv.Machines {
			fates[m.Record.Name] = m.Fate
		}
		if len(fates) != 2 || fates["mcp-a"] != store.FateWait || fates["mcp-b"] != store.FateDelete {
			t.Errorf("fates: %v", fates)
		}
		p.later(time.Hour)
	}
	_, err = st.Verify(t.Context())
	check(t, err)
	check(t, st.Close())
	if after := p.snapshot(t); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
	// the same where nothing was ever
	empty := newPlaces(t)
	st = empty.open(t, func(o *store.Options) { o.ReadOnly = true })
	if sv, err := st.Survey(t.Context()); err != nil || len(sv.Machines) != 0 {
		t.Errorf("%+v %v", sv, err)
	}
	if _, err := os.Lstat(empty.run); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("looking made a directory: %v", err)
	}
}

// snapshot describes the content of all files.
func (p *places) snapshot(t testing.TB) string {
	t.Helper()
	var b strings.Builder
	check(t, filepath.WalkDir(filepath.Dir(p.run), func(path string, d fs.DirEntry, err error) error {
		check(t, err)
		fi, err := d.Info()
		check(t, err)
		fmt.Fprintln(&b, path, fi.Mode(), fi.ModTime())
		if fi.Mode().IsRegular() {
			data, err := os.ReadFile(path)
			check(t, err)
			fmt.Fprintf(&b, "%x\n", data)
		}
		return nil
	}))
	return b.String()
}

// Sweeps in the background end with Close, and leave no claim behind.
func TestCloseEndsSweep(t *testing.T) {
	p, w := newPlaces(t), newWorld()
	first := p.open(t)
	mustMake(t, first.NewSession("stdio", "first"), w, wish("mcp-a", store.Once), "")
	check(t, first.Abort())
	st := p.open(t)
	in := make(chan bool, 1)
	w.before = func(op, name string) error {
		if op == "get" {
			return nil
		}
		in <- true
		return errServer
	}
	r := reaper.New(st, map[string]reaper.Fleet{"local": w}, reaper.Options{})
	r.Start()
	r.Start()
	<-in
	r.Close()
	r.Close()
	rec, ok, err := st.Find(t.Context(), local("mcp-a"))
	if err != nil || !ok || rec.Claimer != "" || rec.Attempts != 1 {
		t.Errorf("%+v %v %v", rec, ok, err)
	}
}
