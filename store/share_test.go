package store_test

import (
	"testing"

	"smol-mcp/store"
)

// sharing makes a lease and n sessions of one principal that share with it.
func sharing(st *store.Store, principal string, n int) (lease *store.Session, sessions []*store.Session) {
	lease = st.NewSessionOf(principal, "stateless", "")
	for range n {
		s := st.NewSessionOf(principal, "http", "")
		s.ShareWith(func(bool) *store.Session { return lease })
		sessions = append(sessions, s)
	}
	return lease, sessions
}

// A machine that two sessions of a principal use ends with neither.
func TestShare(t *testing.T) {
	st := newPlaces(t).open(t)
	lease, s := sharing(st, "token:a", 3)
	rec := ready(t, s[0], wish("mcp-a"))
	alone := ready(t, s[0], wish("mcp-alone"))

	got, ok, err := s[1].Use(t.Context(), rec.Key())
	if err != nil || !ok || got.Session != lease.ID() {
		t.Fatalf("the second session uses it: %v %v, of session %s", ok, err, got.Session)
	}
	for i, user := range s {
		got, ok, err := user.Use(t.Context(), rec.Key())
		if err != nil || !ok || user.Owner(got) != store.ThisSession || got.Principal() != "token:a" {
			t.Errorf("session %d: %v %v, owner %s, principal %q", i, ok, err, user.Owner(got), got.Principal())
		}
	}
	for i, want := range []int{1, 0, 0} {
		recs, err := s[i].End(t.Context())
		if err != nil || len(recs) != want {
			t.Errorf("the end of session %d deletes %v (%v), want %d", i, recs, err, want)
		}
		for _, r := range recs {
			if r.UID != alone.UID {
				t.Errorf("the end of session %d deletes %s", i, r.Name)
			}
		}
	}
	if recs, err := lease.End(t.Context()); err != nil || len(recs) != 1 || recs[0].UID != rec.UID {
		t.Errorf("the end of the lease deletes %v (%v)", recs, err)
	}
}

// What is another principal's, or another process's, stays where it is.
func TestShareOnlyOwn(t *testing.T) {
	p := newPlaces(t)
	st := p.open(t)
	_, a := sharing(st, "token:a", 1)
	_, b := sharing(st, "token:b", 1)
	_, elsewhere := sharing(p.open(t), "token:a", 1)
	rec := ready(t, a[0], wish("mcp-a"))
	once := wish("mcp-once")
	once.Kind = store.Once
	ready(t, a[0], once)
	for name, user := range map[string]*store.Session{"another principal": b[0], "another process": elsewhere[0]} {
		got, ok, err := user.Use(t.Context(), rec.Key())
		if err != nil || !ok || got.Session != a[0].ID() || user.Owner(got) != store.AnotherSession {
			t.Errorf("%s: %v %v, session %s, owner %s", name, ok, err, got.Session, user.Owner(got))
		}
	}
	if got, _, err := st.Find(t.Context(), local("mcp-once")); err != nil || got.Session != a[0].ID() {
		t.Errorf("a machine for one command passed to %s: %v", got.Session, err)
	}
}

// What one session deletes, no other writes again after a loss of the file.
func TestTombstoneOfAnother(t *testing.T) {
	p := newPlaces(t)
	st := p.open(t)
	first, second := st.NewSession("http", ""), st.NewSession("http", "")
	rec := ready(t, first, wish("mcp-a"))
	marked, found, err := second.Tombstone(t.Context(), rec.Key())
	if err != nil || !found {
		t.Fatal(found, err)
	}
	if _, err := st.Settle(t.Context(), store.Outcome{Record: marked, Result: store.Deleted}); err != nil {
		t.Fatal(err)
	}
	if got, ok, err := first.Use(t.Context(), rec.Key()); err != nil || ok {
		t.Errorf("its first owner still finds %s: %v", got.Name, err)
	}
}
