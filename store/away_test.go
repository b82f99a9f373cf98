//go:build unix

package store_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"smol-mcp/store"
)

// comesAndGoes has a directory go and come, as at logouts and logins, until stop. In between
// nothing can be made in its place. At the end it is there.
func comesAndGoes(t *testing.T, dir string, stop time.Time) {
	const pause = 200 * time.Microsecond // for others to meet it
	for n := 0; time.Now().Before(stop); n++ {
		away := fmt.Sprint(dir, "-", n)
		if err := os.Rename(dir, away); err != nil {
			t.Error(err)
			return
		}
		if err := os.WriteFile(dir, nil, 0o600); err != nil { // others have made it at once
			continue
		}
		time.Sleep(pause)
		if err := os.Remove(dir); err != nil {
			t.Error(err)
			return
		}
		if err := os.Rename(away, dir); err != nil && !errors.Is(err, os.ErrExist) {
			t.Error(err)
			return
		}
		time.Sleep(pause)
	}
}

// A runtime directory that goes away and cannot be made again is an error to whoever needs it and
// no crash, and all goes on when it is back.
func TestPlaceAway(t *testing.T) {
	base := fastPlaces(t)
	login := filepath.Join(filepath.Dir(base.run), "login")
	check(t, os.Mkdir(login, 0o700))
	p := places{filepath.Join(login, "run"), base.state}
	st := p.open(t, func(o *store.Options) { o.Wait = time.Second })
	ready(t, st.NewSession("stdio", "test"), wish("mcp-a"))
	stop := time.Now().Add(1500 * time.Millisecond)
	var all sync.WaitGroup
	all.Go(func() { comesAndGoes(t, login, stop) })
	for i, work := range []func(n int){
		func(int) { _, _ = st.Dir() },
		func(int) { _, _ = st.Dir() },
		func(int) { _ = st.Tend(t.Context()) },
		func(int) { _, _ = st.Claim(t.Context(), claims()) },
		func(n int) { endless(t, st, fmt.Sprint("mcp-b", n)) },
		func(n int) { endless(t, st, fmt.Sprint("mcp-c", n)) },
	} {
		all.Go(func() {
			for n := i; time.Now().Before(stop); n++ {
				work(n)
			}
		})
	}
	all.Wait()
	after := p.open(t, patient)
	ready(t, after.NewSession("stdio", "after"), wish("mcp-after"))
	if _, _, err := st.Find(t.Context(), local("mcp-after")); err != nil {
		t.Error(err)
	}
}

// endless is a session that wishes for a machine and ends, whatever comes of it.
func endless(t *testing.T, st *store.Store, name string) {
	s := st.NewSession("stdio", "test")
	_, _ = s.Intend(t.Context(), wish(name))
	_, _ = s.End(t.Context())
}

// A process whose directory is wiped while it writes itself down again is known by its newest
// file: when it has died, everybody sees so at once.
func TestWipedWhileWrittenAgain(t *testing.T) {
	p := newPlaces(t)
	st := p.open(t, patient)
	ready(t, st.NewSession("stdio", "first"), wish("mcp-a"))
	check(t, os.Remove(filepath.Join(p.run, "state.db"))) // so that all is written again
	_, err := st.Do(t.Context(), "x", func() error {
		if err := os.RemoveAll(filepath.Join(p.run, "inst")); err != nil {
			return err
		}
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		// this caller has left before its turn, and all it does is to make the file
		if _, err := st.NewSession("stdio", "second").Intend(gone, wish("mcp-b")); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		return nil
	})
	check(t, err)
	if _, err := st.Count(t.Context(), "y"); err != nil {
		t.Fatal(err)
	}
	check(t, st.Abort())
	other := p.open(t, patient)
	rec, ok, err := other.Find(t.Context(), local("mcp-a"))
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	if owner := other.NewSession("stdio", "other").Owner(rec); owner != store.CrashedSession {
		t.Errorf("its owner has died, and is taken for %s", owner)
	}
}
