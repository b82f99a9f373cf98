package reaper_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"smol-mcp/fleet"
	"smol-mcp/store"
)

func TestSessionEnd(t *testing.T) {
	p, w := newPlaces(t), newWorld()
	st := p.open(t)
	r := newReaper(st, w)
	s := st.NewSession("stdio", "test")
	for _, n := range []string{"mcp-a", "mcp-b", "mcp-c"} {
		mustMake(t, s, w, wish(n, store.Ephemeral), "")
	}
	mustMake(t, s, w, wish("kept", store.Persistent), "")
	recs, err := s.End(t.Context())
	check(t, err)
	check(t, r.Remove(t.Context(), recs...))
	check(t, st.Close())
	p.clean(t, w, "kept")
}

// W12: the end of a session is bounded, deletions are parallel, and what is
// left goes on being recorded.
func TestSessionEndIsBounded(t *testing.T) {
	p, w := newPlaces(t), newWorld()
	st := p.open(t)
	s := st.NewSession("stdio", "test")
	const n = 12
	for i := range n {
		mustMake(t, s, w, wish("mcp-"+string(rune('a'+i)), store.Ephemeral), "")
	}
	stuck := make(chan struct{})
	defer close(stuck)
	w.before = func(op, name string) error {
		if op == "delete" {
			select {
			case <-stuck:
			case <-time.After(100 * time.Millisecond):
				if name == "mcp-a" {
					<-stuck
				}
			}
		}
		return nil
	}
	recs, err := s.End(t.Context())
	check(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	start := time.Now()
	f := impatient{w}
	if err := newReaper(st, f).Remove(ctx, recs...); err == nil {
		t.Error("a stuck deletion is not reported")
	}
	if d := time.Since(start); d > 2*time.Second {
		t.Errorf("took %v", d)
	}
	if left := w.names(); len(left) != 1 || left["mcp-a"] == 0 {
		t.Errorf("left: %v", left)
	}
	check(t, st.Close())

	w.before = nil
	next := p.open(t)
	p.later(time.Minute)
	_, err = newReaper(next, w).Collect(t.Context(), false)
	check(t, err)
	check(t, next.Close())
	p.clean(t, w)
}

// impatient gives up on a call at the end of its context, as real clients do.
type impatient struct{ *world }

func (f impatient) Delete(ctx context.Context, name string) (fleet.Deletion, error) {
	done := make(chan error, 1)
	go func() {
		_, err := f.world.Delete(context.WithoutCancel(ctx), name)
		done <- err
	}()
	select {
	case err := <-done:
		return fleet.Deletion{}, err
	case <-ctx.Done():
		return fleet.Deletion{}, &fleet.Error{Code: fleet.CodeTimeout, Op: "delete " + name, MaybeDone: true, Err: ctx.Err()}
	}
}

// T34: after a crash, a call by name inside the grace goes on with the machine;
// without one it is deleted after the grace. One for a single command, and one whose
// client never saw its name, are deleted at the next sweep.
func TestCrashGrace(t *testing.T) {
	p, w := newPlaces(t), newWorld()
	first := p.open(t)
	s := first.NewSession("stdio", "first")
	kept := mustMake(t, s, w, wish("mcp-used", store.Ephemeral), "")
	mustMake(t, s, w, wish("mcp-left", store.Ephemeral), "")
	mustMake(t, s, w, wish("mcp-once", store.Once), "")
	unseen, err := s.Intend(t.Context(), wish("mcp-unseen", store.Ephemeral))
	check(t, err)
	_, err = w.create("mcp-unseen", "")
	check(t, err)
	check(t, first.Abort())

	st := p.open(t)
	r := newReaper(st, w)
	_, err = r.Sweep(t.Context())
	check(t, err)
	if left := w.names(); left["mcp-once"] != 0 || left["mcp-unseen"] != 0 || left["mcp-used"] == 0 || left["mcp-left"] == 0 {
		t.Errorf("after the first sweep: %v", left)
	}
	if unseen.UID == "" {
		t.Error("no record of the unseen machine")
	}
	p.later(5 * time.Minute)
	stranger := st.NewSessionOf("token-1", "http", "stranger")
	if rec, ok, err := stranger.Use(t.Context(), local("mcp-used")); err != nil || !ok || stranger.Owner(rec) != store.CrashedSession {
		t.Errorf("another principal's call: %v %v %s", ok, err, stranger.Owner(rec))
	}
	heir := st.NewSession("stdio", "heir")
	rec, ok, err := heir.Use(t.Context(), local("mcp-used"))
	if err != nil || !ok || rec.UID != kept.UID || heir.Owner(rec) != store.ThisSession {
		t.Fatalf("adoption: %+v %v %v", rec, ok, err)
	}
	p.later(6 * time.Minute)
	_, err = r.Sweep(t.Context())
	check(t, err)
	if left := w.names(); len(left) != 1 || left["mcp-used"] == 0 {
		t.Errorf("after the grace: %v", left)
	}
	recs, err := heir.End(t.Context())
	check(t, err)
	check(t, r.Remove(t.Context(), recs...))
	check(t, st.Close())
	p.clean(t, w)
}

// A process's death is heard of, long before the next sweep is due.
func TestDeathIsHeard(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("nothing tells of a death here")
	}
	p, w := newPlaces(t), newWorld()
	st := p.open(t)
	mustMake(t, st.NewSession("stdio", "watcher"), w, wish("mcp-mine", store.Ephemeral), "")
	r := newReaper(st, w)
	r.Start()
	defer r.Close()
	time.Sleep(1500 * time.Millisecond) // the first sweep is over, the next one far away
	other := p.open(t)
	mustMake(t, other.NewSession("stdio", "other"), w, wish("mcp-once", store.Once), "")
	check(t, other.Abort())
	start := time.Now()
	for w.names()["mcp-once"] != 0 {
		if time.Since(start) > 3*time.Second {
			t.Fatal("the death was not heard of")
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Logf("deleted %v after its owner's death", time.Since(start))
}

// T35: two sessions name the same orphan at once, while a sweep runs.
func TestAdoptionRace(t *testing.T) {
	for range 30 {
		p, w := newPlaces(t), newWorld()
		first := p.open(t)
		mustMake(t, first.NewSession("stdio", "first"), w, wish("mcp-a", store.Ephemeral), "")
		check(t, first.Abort())
		var wg sync.WaitGroup
		var owners [2]store.Owner
		var sessions [2]*store.Session
		for i := range owners {
			st := p.open(t)
			sessions[i] = st.NewSession("stdio", "heir")
			wg.Go(func() {
				rec, ok, err := sessions[i].Use(t.Context(), local("mcp-a"))
				if err != nil || !ok {
					t.Errorf("use: %v %v", ok, err)
				}
				owners[i] = sessions[i].Owner(rec)
			})
			wg.Go(func() {
				if _, err := newReaper(st, w).Sweep(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		mine := 0
		for _, o := range owners {
			if o == store.ThisSession {
				mine++
			} else if o != store.AnotherSession {
				t.Errorf("owner %s", o)
			}
		}
		if mine != 1 || w.names()["mcp-a"] == 0 {
			t.Fatalf("%d owners %v, machines %v", mine, owners, w.names())
		}
	}
}

// T40: branches go before what they are branches of; a persistent branch keeps
// its source.
func TestBranches(t *testing.T) {
	p, w := newPlaces(t), newWorld()
	st := p.open(t)
	r := newReaper(st, w)
	s := st.NewSession("stdio", "test")
	source := mustMake(t, s, w, wish("mcp-source", store.Ephemeral), "")
	child := wish("mcp-child", store.Ephemeral)
	child.Parent = source.UID
	mustMake(t, s, w, child, "mcp-source")
	keep := wish("keep", store.Persistent)
	keep.Parent = source.UID
	mustMake(t, s, w, keep, "mcp-source")

	recs, err := s.End(t.Context())
	check(t, err)
	if err := r.Remove(t.Context(), recs...); fleet.CodeOf(err) != fleet.CodeConflict {
		t.Errorf("the source of a persistent branch: %v", err)
	}
	if left := w.names(); len(left) != 2 || left["keep"] == 0 || left["mcp-source"] == 0 {
		t.Fatalf("left: %v", left)
	}
	rec, ok, err := st.Find(t.Context(), local("mcp-source"))
	if err != nil || !ok || !rec.Blocked || !strings.Contains(rec.Error, "keep") {
		t.Errorf("the source's record: %+v %v %v", rec, ok, err)
	}
	_, err = w.Delete(t.Context(), "keep") // by the user
	check(t, err)
	p.later(11 * time.Minute)
	_, err = r.Sweep(t.Context())
	check(t, err)
	check(t, st.Close())
	p.clean(t, w)
}

// T38: a machine that only has the name of ours is never deleted.
func TestForeignMachine(t *testing.T) {
	p, w := newPlaces(t), newWorld()
	st := p.open(t)
	r := newReaper(st, w)
	s := st.NewSession("stdio", "test")
	mustMake(t, s, w, wish("mcp-a", store.Ephemeral), "")
	// somebody deletes it behind our back and makes another
	_, err := w.Delete(t.Context(), "mcp-a")
	check(t, err)
	_, err = w.create("mcp-a", "")
	check(t, err)
	recs, err := s.End(t.Context())
	check(t, err)
	if err := r.Remove(t.Context(), recs...); fleet.CodeOf(err) != fleet.CodeConflict {
		t.Errorf("remove: %v", err)
	}
	check(t, st.Close())
	p.clean(t, w, "mcp-a")
}

// T36, F4: a machine that appears after its owner's death is deleted, since an
// answer that it is absent counts only after the create call's deadline.
func TestLateCreate(t *testing.T) {
	p, w := newPlaces(t), newWorld()
	first := p.open(t)
	late := wish("mcp-late", store.Ephemeral)
	late.Deadline = 3 * time.Minute
	_, err := first.NewSession("stdio", "first").Intend(t.Context(), late)
	check(t, err)
	check(t, first.Abort())

	st := p.open(t)
	r := newReaper(st, w)
	sweep := func() {
		t.Helper()
		_, err := r.Sweep(t.Context())
		check(t, err)
	}
	sweep() // not there
	rec, ok, err := st.Find(t.Context(), local("mcp-late"))
	if err != nil || !ok || rec.Phase != store.Deleting {
		t.Fatalf("after the first sweep: %+v %v %v", rec, ok, err)
	}
	_, err = w.create("mcp-late", "")
	check(t, err)
	p.later(2 * time.Minute)
	sweep()
	if left := w.names(); len(left) != 0 {
		t.Errorf("the late machine is still there: %v", left)
	}
	// The create call was the only one, and no deletion is under way: the name is free.
	s := st.NewSession("stdio", "x")
	again, err := s.Intend(t.Context(), late)
	check(t, err)
	check(t, s.Abandon(t.Context(), again))
	_, err = s.End(t.Context())
	check(t, err)
	check(t, st.Close())
	p.clean(t, w)
}

// An owner that was stopped between its intent and its create call sends it long
// after the intent. What counts is when it is known to have sent its last.
func TestLateCreateOfStoppedOwner(t *testing.T) {
	for _, dies := range []bool{false, true} {
		t.Run(fmt.Sprintf("dies %v", dies), func(t *testing.T) {
			p, w := newPlaces(t), newWorld()
			st, owner := p.open(t), p.open(t)
			s := owner.NewSession("stdio", "owner")
			late := wish("mcp-late", store.Ephemeral)
			late.Deadline = time.Minute
			_, err := s.Intend(t.Context(), late)
			check(t, err)
			p.later(time.Hour) // stopped; then it sends its call, and gives up on it or dies
			if dies {
				check(t, owner.Abort())
				_, err = newReaper(st, w).Sweep(t.Context())
				check(t, err)
			} else {
				rec, ok, err := s.Tombstone(t.Context(), local("mcp-late"))
				if err != nil || !ok {
					t.Fatal(ok, err)
				}
				check(t, newReaper(owner, w).Remove(t.Context(), rec))
			}
			_, err = w.create("mcp-late", "") // the call takes effect
			check(t, err)
			for range 2 {
				p.later(time.Minute)
				_, err = newReaper(st, w).Sweep(t.Context())
				check(t, err)
			}
			if left := w.names(); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

// F24: while the fleet does not answer, the record stays.
func TestFleetDown(t *testing.T) {
	p, w := newPlaces(t), newWorld()
	st := p.open(t)
	r := newReaper(st, w)
	s := st.NewSession("stdio", "test")
	mustMake(t, s, w, wish("mcp-a", store.Ephemeral), "")
	w.before = func(string, string) error { return errServer }
	rec, ok, err := s.Tombstone(t.Context(), local("mcp-a"))
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	if err := r.Remove(t.Context(), rec); err == nil {
		t.Error("a failed deletion is not reported")
	}
	for range 12 {
		p.later(6 * time.Minute)
		_, err := r.Sweep(t.Context())
		check(t, err)
	}
	if rec, ok, err = st.Find(t.Context(), local("mcp-a")); err != nil || !ok || rec.Attempts != 13 {
		t.Errorf("%+v %v %v", rec, ok, err)
	}
	w.before = nil
	p.later(6 * time.Minute)
	_, err = r.Sweep(t.Context())
	check(t, err)
	p.later(2 * time.Minute)
	_, err = r.Sweep(t.Context())
	check(t, err)
	_, err = s.End(t.Context())
	check(t, err)
	check(t, st.Close())
	p.clean(t, w)
}

// I15: a machine that another process is deleting is not deleted twice; the
// second waits for the first.
func TestRemoveWaitsForClaimer(t *testing.T) {
	p, w := newPlaces(t), newWorld()
	st, other := p.open(t), p.open(t)
	s := st.NewSession("stdio", "test")
	mustMake(t, s, w, wish("mcp-a", store.Ephemeral), "")
	rec, _, err := s.Tombstone(t.Context(), local("mcp-a"))
	check(t, err)
	again, ok, err := other.NewSession("stdio", "other").Tombstone(t.Context(), local("mcp-a"))
	if err != nil || !ok || again.UID != rec.UID {
		t.Fatal(again, ok, err)
	}
	done := make(chan error, 1)
	go func() { done <- newReaper(other, w).Remove(t.Context(), again) }()
	check(t, newReaper(st, w).Remove(t.Context(), rec))
	check(t, <-done)
	deletes := 0
	for _, c := range w.calls {
		if strings.HasPrefix(c, "delete") {
			deletes++
		}
	}
	if deletes != 1 {
		t.Errorf("%d deletions: %v", deletes, w.calls)
	}
}

// F21, F22: what cannot be recorded is not created.
// W10: records that cannot be written or read do not let a machine be made without one.
func TestNoRecordNoCreate(t *testing.T) {
	p, w := newPlaces(t), newWorld()
	st := p.open(t)
	s := st.NewSession("stdio", "test")
	mustMake(t, s, w, wish("mcp-a", store.Ephemeral), "")
	ledger, err := filepath.Glob(filepath.Join(p.state, "smol-mcp/hosts/*/ledger"))
	if err != nil || len(ledger) != 1 {
		t.Fatal(ledger, err)
	}
	check(t, os.Rename(ledger[0], ledger[0]+".away"))
	check(t, os.WriteFile(ledger[0], nil, 0o600))
	_, err = makeOne(t.Context(), s, w, wish("mcp-b", store.Ephemeral), "")
	if err == nil || !strings.Contains(err.Error(), ledger[0]) {
		t.Errorf("create without a ledger: %v", err)
	}
	if left := w.names(); left["mcp-b"] != 0 {
		t.Error("a machine was made without a record")
	}
	check(t, os.Remove(ledger[0]))
	check(t, os.Rename(ledger[0]+".away", ledger[0]))
	mustMake(t, s, w, wish("mcp-b", store.Ephemeral), "")
	recs, err := s.End(t.Context())
	check(t, err)
	check(t, newReaper(st, w).Remove(t.Context(), recs...))
	check(t, st.Close())
	p.clean(t, w)
}
