package store_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"smol-mcp/store"
)

// beginning is the pause in which a call gets as far as the place, which is held then. One that is
// slower makes a round show nothing, and no test fail.
const beginning = 5 * time.Millisecond

// A wish that meets the end of its session is refused, or ends with it: no record is left that
// names an ended session as its live owner.
func TestWishMeetsEnd(t *testing.T) {
	for range 20 {
		st := fastPlaces(t).open(t, patient)
		s := st.NewSession("http", "")
		var wished sync.WaitGroup
		var wishErr error
		letGo := st.HoldPlace()
		wished.Go(func() { _, wishErr = s.Intend(t.Context(), wish("mcp-a")) })
		time.Sleep(beginning)
		ended, err := s.End(t.Context())
		letGo()
		wished.Wait()
		check(t, err)
		if wishErr != nil && !errors.Is(wishErr, store.ErrEnded) {
			t.Fatal(wishErr)
		}
		rec, ok, err := st.Find(t.Context(), local("mcp-a"))
		check(t, err)
		if ok && rec.Phase != store.Deleting {
			t.Fatalf("%s is %s, its session has ended and returned %v", rec.Name, rec.Phase, ended)
		}
	}
}

// A machine that is passed on to the lease, while that ends, ends with one of the two.
func TestUseMeetsEndOfLease(t *testing.T) {
	for range 20 {
		st := fastPlaces(t).open(t, patient)
		lease := st.NewSessionOf("token:a", "stateless", "")
		a, b := st.NewSessionOf("token:a", "http", ""), st.NewSessionOf("token:a", "http", "")
		a.ShareWith(func(bool) *store.Session { return lease })
		found := make(chan func(), 1)
		b.ShareWith(func(make bool) *store.Session {
			if make {
				found <- st.HoldPlace()
			}
			return lease
		})
		rec := ready(t, a, wish("mcp-a"))
		var used sync.WaitGroup
		var useErr error
		used.Go(func() { _, _, useErr = b.Use(t.Context(), rec.Key()) })
		letGo := <-found
		time.Sleep(beginning)
		_, err := lease.End(t.Context())
		letGo()
		used.Wait()
		check(t, err)
		if useErr != nil && !errors.Is(useErr, store.ErrEnded) {
			t.Fatal(useErr)
		}
		for _, s := range []*store.Session{a, b} {
			_, err := s.End(t.Context())
			check(t, err)
		}
		if rec, _, err = st.Find(t.Context(), rec.Key()); err != nil || rec.Phase != store.Deleting {
			t.Fatalf("%s is %s, and all sessions have ended: %v", rec.Name, rec.Phase, err)
		}
	}
}

// patient makes a store that a busy computer does not make give up.
func patient(o *store.Options) { o.Wait = time.Minute }
