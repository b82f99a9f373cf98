package store

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"

	bolt "go.etcd.io/bbolt"
)

// Count adds one to a counter in a transaction of its own and returns it.
func (s *Store) Count(ctx context.Context, name string) (int, error) {
	return s.Do(ctx, name, func() error { return nil })
}

// Do is Count with fn in the middle of the transaction.
func (s *Store) Do(ctx context.Context, name string, fn func() error) (int, error) {
	var n int
	err := s.update(ctx, func(t *tx) error {
		b := t.Bucket([]byte(bMeta))
		n, _ = strconv.Atoi(string(b.Get([]byte("test " + name))))
		n++
		if err := b.Put([]byte("test "+name), []byte(strconv.Itoa(n))); err != nil {
			return err
		}
		return fn()
	})
	return n, err
}

// Counted returns a counter.
func (s *Store) Counted(ctx context.Context, name string) (int, error) {
	var n int
	err := s.view(ctx, func(t *tx) error {
		n, _ = strconv.Atoi(string(t.Bucket([]byte(bMeta)).Get([]byte("test " + name))))
		return nil
	})
	return n, err
}

// View runs fn in a transaction that only reads.
func (s *Store) View(ctx context.Context, fn func() error) error {
	return s.view(ctx, func(t *tx) error {
		if _, err := t.records(); err != nil {
			return err
		}
		if err := fn(); err != nil {
			return err
		}
		_, err := t.records()
		return err
	})
}

// Swap replaces state.db by a copy of itself, as compaction does.
func (s *Store) Swap(ctx context.Context) error {
	return s.locked(ctx, func(f *os.File, root *os.Root) error { return rewrite(f, root) })
}

// TrustName leaves out the look whether state.db was swapped.
func (s *Store) TrustName() { s.trustName = true }

// CheckFile looks at a whole state.db that nobody is writing to, with our own
// eyes and with bbolt's.
func CheckFile(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := lockWait(f); err != nil {
		return err
	}
	if err := preflight(f); err != nil {
		return err
	}
	if _, err := verify(f); err != nil {
		return err
	}
	return withCopy(f, func(db *bolt.DB) error {
		return db.View(func(t *bolt.Tx) error {
			for err := range t.Check() {
				return fmt.Errorf("bbolt: %w", err)
			}
			return nil
		})
	})
}

// Verify looks at a state.db with our own eyes alone.
func Verify(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := preflight(f); err != nil {
		return err
	}
	_, err = verify(f)
	return err
}

// Patch changes a stored row behind the store's back, as another version might.
func (s *Store) Patch(ctx context.Context, key Key, fn func(map[string]json.RawMessage)) error {
	return s.update(ctx, func(t *tx) error {
		row := make(map[string]json.RawMessage)
		if ok, err := t.get(bMachines, key.bytes(), &row); err != nil || !ok {
			return fmt.Errorf("%v %w", ok, err)
		}
		fn(row)
		return t.put(bMachines, key.bytes(), row)
	})
}

// OpenUnchecked opens a file as a database without a look at it first.
func OpenUnchecked(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return guarded(f, func(*bolt.DB) error { return nil })
}

// Fill makes records numbered from i to below j in one transaction.
func (s *Store) Fill(ctx context.Context, i, j int) error {
	return s.update(ctx, func(t *tx) error {
		for n := i; n < j; n++ {
			if err := t.putRecord(numbered(n)); err != nil {
				return err
			}
		}
		return nil
	})
}

// Clear drops records numbered from i to below j.
func (s *Store) Clear(ctx context.Context, i, j int) error {
	return s.update(ctx, func(t *tx) error {
		for n := i; n < j; n++ {
			if err := t.dropRecord(numbered(n)); err != nil {
				return err
			}
		}
		return nil
	})
}

func numbered(n int) Record {
	return Record{
		UID: fmt.Sprintf("01a2282a-6f94-783d-99c6-%012d", n), Target: "local", Name: fmt.Sprintf("mcp-%012d", n), Kind: Ephemeral, Phase: Ready,
		Session: "01a2282a-6f94-783d-99c6-fa91125e0158", Instance: "01a2282a-6f94-783d-99c6-fa91125e0159", Image: "alpine", Network: "blocked",
	}
}

// Queued returns how many operations wait.
func (s *Store) Queued() int {
	s.queue.mu.Lock()
	defer s.queue.mu.Unlock()
	return len(s.queue.ops)
}

// Commits returns the number of the newest transaction that wrote.
func (s *Store) Commits() (id int) {
	s.view(context.Background(), func(t *tx) error {
		id = t.ID()
		return nil
	})
	return id
}

// Flush writes cursors now.
func (s *Store) Flush(ctx context.Context) error { return s.flush(ctx, true) }

// SetSchema says that another version wrote the file.
func (s *Store) SetSchema(ctx context.Context, v, minReader, minWriter int) error {
	return s.locked(ctx, func(f *os.File, root *os.Root) error {
		out, temp, err := lockedTemp(root, dbName)
		if err != nil {
			return err
		}
		err = withCopy(f, func(src *bolt.DB) error {
			return withNewDB(out, func(dst *bolt.DB) error {
				if err := bolt.Compact(dst, src, 0); err != nil {
					return err
				}
				return dst.Update(func(btx *bolt.Tx) error {
					t := &tx{Tx: btx, host: s.host}
					return t.put(bMeta, []byte("schema"), schemaRow{v, minReader, minWriter})
				})
			})
		})
		if err != nil {
			return err
		}
		return root.Rename(temp, dbName)
	})
}

// BootName is the name of R in S for a boot.
func BootName(id string) string { return bootName(id) }

// HoldPlace holds up whoever looks for the runtime directory, until the returned function is called.
func (s *Store) HoldPlace() (letGo func()) {
	s.placeMu.Lock()
	return s.placeMu.Unlock
}
