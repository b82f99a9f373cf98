package store_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"smol-mcp/store"
)

// deleted has a machine of this process deleted, which some session knows of.
func deleted(t testing.TB, st *store.Store, s *store.Session, key store.Key) {
	t.Helper()
	rec, ok, err := s.Tombstone(t.Context(), key)
	if err != nil || !ok {
		t.Errorf("delete %s: %v %v", key.Name, ok, err)
		return
	}
	if left, err := st.Settle(t.Context(), store.Outcome{Record: rec, Result: store.Deleted}); err != nil || len(left) != 0 {
		t.Errorf("delete %s: %v %v", key.Name, left, err)
	}
}

// A machine that is deleted while its creation is being written down leaves nothing in the
// ledger, of which it would be recorded again.
func TestDeletedWhileConfirmed(t *testing.T) {
	p := fastPlaces(t)
	st := p.open(t, patient)
	s, other := st.NewSession("stdio", "owner"), st.NewSession("stdio", "other")
	end := time.Now().Add(time.Second)
	for n := 0; time.Now().Before(end) && !t.Failed(); n++ {
		w := wish(fmt.Sprintf("mcp-%d", n))
		rec, err := s.Intend(t.Context(), w)
		check(t, err)
		var both sync.WaitGroup
		both.Go(func() {
			if err := s.Confirm(t.Context(), rec, w.Name, time.Unix(1_700_000_000, 0)); err != nil {
				t.Error(err)
			}
		})
		both.Go(func() {
			for now := rec; now.Phase == store.Creating; { // as one does who looks at list-machines
				if now, _, err = st.Find(t.Context(), w.Key()); err != nil || t.Failed() {
					t.Error("not confirmed:", err)
					return
				}
			}
			deleted(t, st, other, w.Key())
		})
		both.Wait()
		p.empty(t)
	}
	check(t, p.open(t, patient).Tend(t.Context()))
	if recs, err := st.Records(t.Context()); err != nil || len(recs) != 0 {
		t.Errorf("recorded again: %v %v", recs, err)
	}
}

// asked is a context that runs a function when somebody first begins to wait for its end.
type asked struct {
	context.Context
	first func()
}

func (a asked) Done() <-chan struct{} {
	a.first()
	return a.Context.Done()
}

// A machine whose record is dropped, and its file not yet, when another process looks for the second
// time is not recorded again: a file counts as one without a record when both looks find it so.
func TestTendBetweenRecordAndFile(t *testing.T) {
	p := newPlaces(t)
	st := p.open(t, patient)
	s := st.NewSession("stdio", "owner")
	late := func(rec store.Record) (file string) { // drops the record alone, as each deletion does for a moment
		found, err := filepath.Glob(filepath.Join(p.state, "smol-mcp/hosts/*/ledger", rec.UID+".json"))
		if err != nil || len(found) != 1 {
			t.Fatal(found, err)
		}
		text, err := os.ReadFile(found[0])
		check(t, err)
		deleted(t, st, s, rec.Key())
		check(t, os.WriteFile(found[0], text, 0o600))
		return found[0]
	}
	first, second := late(ready(t, s, wish("mcp-one"))), ""
	between := sync.OnceFunc(func() { // the ledger was read, with the first alone in it
		check(t, os.Remove(first))
		second = late(ready(t, s, wish("mcp-two")))
	})
	check(t, p.open(t, patient).Tend(asked{t.Context(), between}))
	recs, err := st.Records(t.Context())
	check(t, err)
	for _, r := range recs {
		t.Errorf("%s was deleted, and is on record again as %s", r.Name, r.Phase)
	}
	check(t, os.Remove(second))
}
