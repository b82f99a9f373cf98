//go:build unix

package store_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"smol-mcp/store"
)

// onBoth runs a benchmark in memory and on disk.
func onBoth(b *testing.B, fn func(b *testing.B, p places)) {
	b.Run("tmpfs", func(b *testing.B) { fn(b, fastPlaces(b)) })
	b.Run("disk", func(b *testing.B) { fn(b, newPlaces(b)) })
}

// records fills a store as thirty machines do.
func records(b *testing.B, p places, n int) *store.Store {
	st := p.open(b)
	check(b, st.Fill(b.Context(), 0, n))
	return st
}

// raw opens a database of bbolt's own making, with rows like ours.
func raw(b *testing.B, p places, options *bolt.Options) *bolt.DB {
	check(b, os.MkdirAll(p.run, 0o700))
	db, err := bolt.Open(filepath.Join(p.run, "raw.db"), 0o600, options)
	check(b, err)
	check(b, db.Update(func(t *bolt.Tx) error {
		bucket, err := t.CreateBucketIfNotExists([]byte("machines"))
		for i := 0; err == nil && i < 30; i++ {
			err = bucket.Put([]byte(strconv.Itoa(i)), make([]byte, 400))
		}
		return err
	}))
	return db
}

func put(db *bolt.DB) error {
	return db.Update(func(t *bolt.Tx) error { return t.Bucket([]byte("machines")).Put([]byte("x"), make([]byte, 400)) })
}

func get(db *bolt.DB) error {
	return db.View(func(t *bolt.Tx) error { t.Bucket([]byte("machines")).Get([]byte("x")); return nil })
}

func BenchmarkWrite(b *testing.B) {
	onBoth(b, func(b *testing.B, p places) {
		b.Run("store", func(b *testing.B) {
			st := records(b, p, 30)
			for b.Loop() {
				_, err := st.Count(b.Context(), "x")
				check(b, err)
			}
		})
		b.Run("bbolt held open", func(b *testing.B) {
			db := raw(b, p, nil)
			defer db.Close()
			for b.Loop() {
				check(b, put(db))
			}
		})
		b.Run("bbolt opened each time", func(b *testing.B) {
			check(b, raw(b, p, nil).Close())
			for b.Loop() {
				db, err := bolt.Open(filepath.Join(p.run, "raw.db"), 0o600, nil)
				check(b, err)
				check(b, put(db))
				check(b, db.Close())
			}
		})
	})
}

func BenchmarkRead(b *testing.B) {
	onBoth(b, func(b *testing.B, p places) {
		b.Run("store", func(b *testing.B) {
			st := records(b, p, 30)
			for b.Loop() {
				_, err := st.Counted(b.Context(), "x")
				check(b, err)
			}
		})
		b.Run("bbolt held open", func(b *testing.B) {
			db := raw(b, p, nil)
			defer db.Close()
			for b.Loop() {
				check(b, get(db))
			}
		})
	})
}

// BenchmarkMachine is all the bookkeeping of one machine: intent, confirmation,
// tombstone, and the end of the record.
func BenchmarkMachine(b *testing.B) {
	onBoth(b, func(b *testing.B, p places) {
		st := records(b, p, 30)
		s := st.NewSession("stdio", "bench")
		n := 0
		for b.Loop() {
			n++
			w := wish("mcp-" + strconv.Itoa(n))
			rec, err := s.Intend(b.Context(), w)
			check(b, err)
			check(b, s.Confirm(b.Context(), rec, w.Name, time.Now()))
			rec, _, err = s.Tombstone(b.Context(), rec.Key())
			check(b, err)
			_, err = st.Settle(b.Context(), store.Outcome{Record: rec, Result: store.Deleted})
			check(b, err)
		}
	})
}

// BenchmarkTogether is what 32 goroutines of one process write, each by itself
// waiting for its own.
func BenchmarkTogether(b *testing.B) {
	onBoth(b, func(b *testing.B, p places) {
		b.Run("store", func(b *testing.B) {
			st := records(b, p, 30)
			together(b, func(i int) error {
				_, err := st.Count(b.Context(), strconv.Itoa(i))
				return err
			})
		})
		b.Run("one transaction each", func(b *testing.B) {
			st := records(b, p, 30)
			var mu sync.Mutex
			together(b, func(i int) error {
				mu.Lock()
				defer mu.Unlock()
				_, err := st.Count(b.Context(), strconv.Itoa(i))
				return err
			})
		})
	})
}

func together(b *testing.B, fn func(i int) error) {
	var wg sync.WaitGroup
	for i := range 32 {
		wg.Go(func() {
			for n := i; n < b.N; n += 32 {
				if err := fn(i); err != nil {
					b.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

// BenchmarkProbe looks whether 64 processes live.
func BenchmarkProbe(b *testing.B) {
	p := fastPlaces(b)
	for i := range 64 {
		st := p.open(b)
		_, err := st.NewSession("stdio", "bench").Intend(context.Background(), wish(fmt.Sprintf("mcp-%d", i)))
		check(b, err)
	}
	st := p.open(b)
	b.Run("of 64 processes", func(b *testing.B) {
		for b.Loop() {
			if _, err := st.Claim(b.Context(), claims()); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkVerify(b *testing.B) {
	for _, n := range []int{30, 1000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			p := fastPlaces(b)
			records(b, p, n)
			for b.Loop() {
				check(b, store.Verify(p.db()))
			}
		})
	}
}
