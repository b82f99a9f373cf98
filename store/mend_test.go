package store_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"smol-mcp/store"
)

func (p places) db() string { return filepath.Join(p.run, "state.db") }

// host is this computer with a boot id and a clock of the test's own.
func host(boot string) *store.Host {
	h := store.ThisHost()
	h.BootID = boot
	return h
}

func onHost(h *store.Host) func(*store.Options) { return func(o *store.Options) { o.Host = h } }

func TestDamagedFileIsBuiltAnew(t *testing.T) {
	damages := map[string]func(t *testing.T, db string){
		"gone":      func(t *testing.T, db string) { check(t, os.Remove(db)) },
		"empty":     func(t *testing.T, db string) { check(t, os.Truncate(db, 0)) },
		"poisoned":  func(t *testing.T, db string) { check(t, os.Truncate(db, 8192)) },
		"garbage":   func(t *testing.T, db string) { check(t, os.WriteFile(db, bytes.Repeat([]byte("x"), 32<<10), 0o600)) },
		"one page":  func(t *testing.T, db string) { check(t, os.Truncate(db, 4096)) },
		"cut a bit": func(t *testing.T, db string) { check(t, os.Truncate(db, 20<<10)) },
	}
	for name, damage := range damages {
		t.Run(name, func(t *testing.T) {
			p := newPlaces(t)
			crashed := p.open(t)
			ready(t, crashed.NewSession("stdio", "crashed"), wish("mcp-crashed"))
			live := p.open(t).NewSession("stdio", "live")
			rec := ready(t, live, wish("mcp-live"))
			check(t, crashed.Abort())
			damage(t, p.db())

			st := p.open(t)
			got, ok, err := st.Find(t.Context(), local("mcp-live"))
			if err != nil || !ok || got.UID != rec.UID {
				t.Fatalf("the live machine: %+v %v %v", got, ok, err)
			}
			// the owner of mcp-live writes it again at its next transaction
			again := ready(t, live, wish("mcp-live2"))
			for _, want := range []store.Record{rec, again} {
				got, ok, err := st.Find(t.Context(), want.Key())
				if err != nil || !ok || live.Owner(got) != store.ThisSession || got.Image != "alpine" {
					t.Errorf("%s: %+v %v %v", want.Name, got, ok, err)
				}
			}
			var claimed []store.Record
			for range 2 {
				recs, err := st.Claim(t.Context(), store.Claims{})
				check(t, err)
				claimed = append(claimed, recs...)
			}
			if len(claimed) != 0 { // it has its grace, since nobody knows how much of it is over
				t.Errorf("claimed %+v", claimed)
			}
			got, ok, err = st.Find(t.Context(), local("mcp-crashed"))
			if err != nil || !ok || live.Owner(got) != store.CrashedSession {
				t.Errorf("the crashed one's machine: %+v %v %v", got, ok, err)
			}
		})
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// T16.
func TestOtherBoot(t *testing.T) {
	for name, lose := range map[string]func(p places) error{
		"both nets":    func(places) error { return nil },
		"ledger only":  func(p places) error { return os.RemoveAll(p.run) },
		"records only": func(p places) error { return os.RemoveAll(p.state) },
	} {
		t.Run(name, func(t *testing.T) {
			p, rec := bootedOnce(t)
			check(t, lose(p))
			st := p.open(t, onHost(host("boot-2")))
			recs, err := st.Claim(t.Context(), store.Claims{})
			check(t, err)
			if len(recs) != 1 || recs[0].UID != rec.UID {
				t.Fatalf("claimed %+v", recs)
			}
			left, err := st.Settle(t.Context(), store.Outcome{Record: recs[0], Result: store.Absent})
			if err != nil || len(left) != 0 {
				t.Errorf("left %v %v", left, err)
			}
			if _, ok, err := st.Find(t.Context(), local("kept")); ok || err != nil {
				t.Errorf("the persistent machine's wish is still there: %v", err)
			}
		})
	}
	t.Run("other machine", func(t *testing.T) {
		p, _ := bootedOnce(t)
		h := host("boot-2")
		h.MachineID = "another"
		if recs, err := p.open(t, onHost(h)).Claim(t.Context(), store.Claims{}); err != nil || len(recs) != 0 {
			t.Errorf("claimed %v %v", recs, err)
		}
	})
	t.Run("no machine id", func(t *testing.T) {
		p, _ := bootedOnce(t, func(o *store.Options) { o.Host.MachineID = "" })
		h := host("boot-2")
		h.MachineID = ""
		if recs, err := p.open(t, onHost(h)).Claim(t.Context(), store.Claims{}); err != nil || len(recs) != 0 {
			t.Errorf("claimed %v %v", recs, err)
		}
	})
}

// W11: a machine elsewhere outlives a boot of this computer, and a create call for it may,
// too: that it is not there yet does not end its record.
func TestOtherBootElsewhere(t *testing.T) {
	for name, lose := range map[string]func(p places) error{
		"both nets":    func(places) error { return nil },
		"ledger only":  func(p places) error { return os.RemoveAll(p.run) },
		"records only": func(p places) error { return os.RemoveAll(p.state) },
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlaces(t)
			before := p.open(t, onHost(host("boot-1")))
			s := before.NewSession("stdio", "before")
			there := store.Wish{Target: "cloud", Account: "t1", Name: "mcp-there", Kind: store.Ephemeral}
			sent, err := s.Intend(t.Context(), there)
			check(t, err)
			there.Name = "mcp-known"
			known, err := s.Intend(t.Context(), there)
			check(t, err)
			check(t, s.Confirm(t.Context(), known, "mach-1", time.Unix(1_700_000_000, 0)))
			check(t, before.Abort())
			check(t, lose(p))

			h := host("boot-2")
			now := time.Hour
			h.Awake = func() time.Duration { return now }
			st := p.open(t, onHost(h))
			recs, err := st.Claim(t.Context(), store.Claims{})
			check(t, err)
			if len(recs) != 2 {
				t.Fatalf("claimed %+v", recs)
			}
			for _, r := range recs {
				if r.Account != "t1" || r.UID == known.UID && r.FleetID != "mach-1" {
					t.Errorf("claimed %+v", r)
				}
				left, err := st.Settle(t.Context(), store.Outcome{Record: r, Result: store.Absent})
				if err != nil || (len(left) == 1) != (r.UID == sent.UID) {
					t.Errorf("%s: left %v %v", r.Name, left, err)
				}
			}
			now += 20 * time.Minute
			recs, err = st.Claim(t.Context(), store.Claims{})
			check(t, err)
			if len(recs) != 1 || recs[0].UID != sent.UID {
				t.Fatalf("claimed %+v", recs)
			}
			if left, err := st.Settle(t.Context(), store.Outcome{Record: recs[0], Result: store.Absent}); err != nil || len(left) != 0 {
				t.Errorf("left %v %v", left, err)
			}
		})
	}
}

// bootedOnce leaves what a process of boot-1 left: an ephemeral machine, and
// the wish for a persistent one.
func bootedOnce(t *testing.T, change ...func(*store.Options)) (places, store.Record) {
	t.Helper()
	p := newPlaces(t)
	before := p.open(t, append([]func(*store.Options){onHost(host("boot-1"))}, change...)...)
	s := before.NewSession("stdio", "before")
	rec := ready(t, s, wish("mcp-a"))
	_, err := s.Intend(t.Context(), store.Wish{Target: "local", Name: "kept", Kind: store.Persistent})
	check(t, err)
	check(t, before.Abort())
	return p, rec
}

func TestSessionOutlivesWipedDirectory(t *testing.T) {
	p := newPlaces(t)
	s := p.open(t).NewSession("stdio", "test")
	ready(t, s, wish("mcp-a"))
	other := p.open(t)
	check(t, os.RemoveAll(p.run))

	recs, err := other.Records(t.Context())
	if err != nil || len(recs) != 1 {
		t.Fatalf("records %v %v", recs, err)
	}
	if s.Owner(recs[0]) == store.CrashedSession {
		t.Error("a wiped lock file was taken for a proof of death")
	}
	ready(t, s, wish("mcp-b"))
	recs, err = other.Records(t.Context())
	check(t, err)
	for _, r := range recs {
		if s.Owner(r) != store.ThisSession || r.Image == "" {
			t.Errorf("after the owner came back: %+v", r)
		}
	}
	end, err := s.End(t.Context())
	if err != nil || len(end) != 2 {
		t.Errorf("end: %v %v", end, err)
	}
}
