//go:build linux

package store_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"smol-mcp/store"
)

// tmpfs mounts a small file system at dir.
func tmpfs(t *testing.T, dir, options string) {
	t.Helper()
	check(t, os.MkdirAll(dir, 0o700))
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "mode=700,"+options); err != nil {
		t.Skip("cannot mount here: ", err)
	}
	t.Cleanup(func() { syscall.Unmount(dir, syscall.MNT_DETACH) })
}

func remount(t *testing.T, dir, options string, flags uintptr) {
	t.Helper()
	check(t, syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_REMOUNT|flags, options))
}

// T24, I9: a first start on a full file system fails with a clear error and
// poisons nothing: with more room the next one succeeds.
func TestFirstStartOnFullDisk(t *testing.T) {
	for _, size := range []string{"4k", "8k", "12k", "16k", "20k", "24k", "32k", "36k"} {
		t.Run(size, func(t *testing.T) {
			p := newPlaces(t)
			tmpfs(t, p.run, "size="+size)
			st := p.open(t)
			_, err := st.NewSession("stdio", "test").Intend(t.Context(), wish("mcp-a"))
			if err != nil && !errors.Is(err, store.ErrFull) {
				t.Errorf("%s: %v", size, err)
			}
			refused := err != nil
			remount(t, p.run, "size=1m", 0)
			s := p.open(t).NewSession("stdio", "test")
			if _, err := s.Intend(t.Context(), wish("mcp-b")); err != nil {
				t.Errorf("with more room: %v", err)
			}
			_, again := st.NewSession("stdio", "test").Intend(t.Context(), wish("mcp-c"))
			if again != nil {
				t.Errorf("the process that was refused: %v", again)
			}
			t.Logf("refused: %v", refused)
			check(t, store.CheckFile(p.db()))
		})
	}
}

// fill leaves no room below dir.
func fill(t *testing.T, dir string) (free func()) {
	t.Helper()
	name := filepath.Join(dir, "filler")
	f, err := os.Create(name)
	check(t, err)
	for block := make([]byte, 4096); err == nil; {
		_, err = f.Write(block)
	}
	f.Close()
	return func() { check(t, os.Remove(name)) }
}

// T25, F21: with no room creates are refused, deletes go on.
func TestFullWhileRunning(t *testing.T) {
	p := newPlaces(t)
	tmpfs(t, p.run, "size=256k")
	st := p.open(t)
	s := st.NewSession("stdio", "test")
	var have []store.Record
	for i := range 20 {
		have = append(have, ready(t, s, wish(fmt.Sprintf("mcp-%d", i))))
	}
	free := fill(t, p.run)
	var err error
	made := 0
	for i := 0; err == nil && i < 5000; i++ {
		if _, err = s.Intend(t.Context(), wish(fmt.Sprintf("mcp-more-%d", i))); err == nil {
			made++
		}
	}
	if !errors.Is(err, store.ErrFull) {
		t.Fatalf("after %d more: %v", made, err)
	}
	for _, r := range have { // a tombstone may not fit; then a deletion does without
		if _, ok, err := s.Tombstone(t.Context(), r.Key()); err != nil && !errors.Is(err, store.ErrFull) || err == nil && !ok {
			t.Fatalf("tombstone on a full disk: %v %v", ok, err)
		}
		if _, err := st.Settle(t.Context(), store.Outcome{Record: r, Result: store.Deleted}); err != nil {
			t.Fatalf("deletion on a full disk: %v", err)
		}
	}
	free()
	if _, err := s.Intend(t.Context(), wish("mcp-after")); err != nil {
		t.Errorf("with room again: %v", err)
	}
	recs, err := st.Records(t.Context())
	if err != nil || len(recs) != made+1 {
		t.Errorf("%d records, want %d, %v", len(recs), made+1, err)
	}
	check(t, store.CheckFile(p.db()))
}

// T26, F22: without the ledger nothing is created, and the error says where.
func TestReadOnlyLedger(t *testing.T) {
	p := newPlaces(t)
	tmpfs(t, p.state, "size=1m")
	s := p.open(t).NewSession("stdio", "test")
	ready(t, s, wish("mcp-a"))
	remount(t, p.state, "size=1m", syscall.MS_RDONLY)
	_, err := s.Intend(t.Context(), wish("mcp-b"))
	if !errors.Is(err, store.ErrFull) || !strings.Contains(err.Error(), "/ledger") {
		t.Errorf("%v", err)
	}
	if _, ok, err := p.open(t).Find(t.Context(), local("mcp-b")); ok || err != nil {
		t.Errorf("the refused wish is recorded: %v %v", ok, err)
	}
	remount(t, p.state, "size=1m", 0)
	ready(t, s, wish("mcp-b"))
}

// T27, F20: the file is cut while it is being read.
func TestTruncatedUnderReader(t *testing.T) {
	p := fastPlaces(t)
	st := p.open(t)
	s := st.NewSession("stdio", "test")
	for i := range 200 {
		ready(t, s, wish(fmt.Sprintf("mcp-%d", i)))
	}
	cut := sync.OnceValue(func() error { return os.Truncate(p.db(), 8192) })
	check(t, st.View(t.Context(), cut)) // it is run again on what was built anew
	recs, err := st.Records(t.Context())
	if err != nil || len(recs) != 200 {
		t.Errorf("%d records, %v", len(recs), err)
	}
	for _, r := range recs {
		if r.Image != "alpine" || s.Owner(r) != store.ThisSession {
			t.Fatalf("%+v", r)
		}
	}
	bad, err := filepath.Glob(filepath.Join(p.state, "smol-mcp/hosts/*/quarantine/*"))
	if err != nil || len(bad) != 1 {
		t.Errorf("the broken file: %v %v", bad, err)
	}
	notices, err := st.Notices(t.Context())
	if err != nil || len(notices) != 1 || !strings.Contains(notices[0].Text, "damaged") {
		t.Errorf("notices: %v %v", notices, err)
	}
}

// T28: whatever is done to the file, no process dies, hangs or keeps its lock,
// and no live session's machine becomes due for it.
func TestMutants(t *testing.T) {
	p := fastPlaces(t)
	st := p.open(t)
	live := st.NewSession("stdio", "live")
	for i := range 60 {
		ready(t, live, wish(fmt.Sprintf("mcp-%d", i)))
	}
	for i := range 30 { // some history: free and stale pages
		rec, _, err := live.Tombstone(t.Context(), local(fmt.Sprintf("mcp-%d", i)))
		check(t, err)
		_, err = st.Settle(t.Context(), store.Outcome{Record: rec, Result: store.Deleted})
		check(t, err)
	}
	good, err := os.ReadFile(p.db())
	check(t, err)
	mutants := 1600
	if testing.Short() {
		mutants = 200
	}
	rnd := rand.New(rand.NewPCG(1, 28))
	kinds := make(map[string]int)
	for n := range mutants {
		name, bad := mutate(rnd, good)
		kinds[name]++
		check(t, os.WriteFile(p.db(), bad, 0o600))
		start := time.Now()
		other := p.open(t)
		recs, err := other.Claim(t.Context(), store.Claims{NoGrace: true, Again: true})
		if err != nil || len(recs) != 0 {
			t.Fatalf("mutant %d, %s: claimed %v, %v", n, name, recs, err)
		}
		if _, err := other.Count(t.Context(), "x"); err != nil {
			t.Fatalf("mutant %d, %s: %v", n, name, err)
		}
		check(t, other.Close())
		if d := time.Since(start); d > 2*time.Second {
			t.Errorf("mutant %d, %s: took %v", n, name, d)
		}
		f, err := os.OpenFile(p.db(), os.O_RDWR, 0)
		check(t, err)
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
			t.Fatalf("mutant %d, %s: the lock is held: %v", n, name, err)
		}
		f.Close()
		if _, err := st.Count(t.Context(), "x"); err != nil {
			t.Fatalf("mutant %d, %s: the live process: %v", n, name, err)
		}
	}
	t.Log(kinds)
	recs, err := st.Records(t.Context())
	check(t, err)
	if len(recs) != 30 {
		t.Errorf("%d records of 30", len(recs))
	}
}

// mutate returns a damaged copy of a file.
func mutate(rnd *rand.Rand, good []byte) (string, []byte) {
	const page = 4096
	b := append([]byte(nil), good...)
	pages := len(b) / page
	at := func(p int) []byte { return b[p*page : (p+1)*page] }
	switch rnd.IntN(8) {
	case 0:
		return "cut", b[:rnd.IntN(len(b))]
	case 1:
		clear(at(rnd.IntN(pages)))
		return "zeroed page", b
	case 2:
		for i, p := 0, at(rnd.IntN(pages)); i < page; i++ {
			p[i] = byte(rnd.Uint32())
		}
		return "garbage page", b
	case 3:
		copy(at(rnd.IntN(pages)), good[rnd.IntN(pages)*page:][:page])
		return "another page's content", b
	case 4:
		i, j := rnd.IntN(pages), rnd.IntN(pages)
		copy(at(i), good[j*page:][:page])
		copy(at(j), good[i*page:][:page])
		return "swapped pages", b
	case 5:
		b[rnd.IntN(len(b))] ^= 1 << rnd.IntN(8)
		return "flipped bit", b
	case 6:
		for range 8 {
			b[rnd.IntN(len(b))] ^= byte(rnd.Uint32())
		}
		return "flipped bytes", b
	}
	// a header of a page, which says what and how long it is
	p := at(rnd.IntN(pages))
	binary.NativeEndian.PutUint64(p[8:], rnd.Uint64())
	return "page header", b
}

// T29, I10: a freelist that bbolt panics over does not keep the lock.
func TestBadFreelist(t *testing.T) {
	p := newPlaces(t)
	st := p.open(t)
	ready(t, st.NewSession("stdio", "test"), wish("mcp-a"))
	freelist := func(change func(page []byte)) {
		b, err := os.ReadFile(p.db())
		check(t, err)
		for i := 0; i+4096 <= len(b); i += 4096 {
			if binary.NativeEndian.Uint16(b[i+8:]) == 0x10 {
				change(b[i:])
			}
		}
		check(t, os.WriteFile(p.db(), b, 0o600))
	}
	// of a count without bounds bbolt would die, out of memory
	freelist(func(page []byte) {
		binary.NativeEndian.PutUint16(page[10:], 0xFFFF)
		binary.NativeEndian.PutUint64(page[16:], 1<<50)
	})
	if err := store.Verify(p.db()); !errors.Is(err, store.ErrCorrupt) {
		t.Errorf("verify: %v", err)
	}
	freelist(func(page []byte) { binary.NativeEndian.PutUint16(page[8:], 0x02) })
	if err := store.OpenUnchecked(p.db()); !errors.Is(err, store.ErrCorrupt) {
		t.Errorf("bbolt, without a look first: %v", err)
	}
	f, err := os.OpenFile(p.db(), os.O_RDWR, 0)
	check(t, err)
	defer f.Close()
	check(t, syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB))
}

// T30: the file does not grow with what was, a large one becomes small again,
// and at its limit creates are refused.
func TestFileSize(t *testing.T) {
	size := func(p places) int64 {
		fi, err := os.Stat(p.db())
		check(t, err)
		return fi.Size()
	}
	p := fastPlaces(t)
	st := p.open(t)
	cycles, burst := 20000, 5000
	if testing.Short() {
		cycles, burst = 1000, 3000
	}
	check(t, st.Fill(t.Context(), 0, 30))
	for i := range cycles {
		check(t, st.Fill(t.Context(), 30+i, 31+i))
		check(t, st.Clear(t.Context(), i, i+1))
	}
	if n := size(p); n > 256<<10 {
		t.Errorf("%d bytes with 30 records after %d cycles", n, cycles)
	}
	check(t, st.Fill(t.Context(), cycles+30, cycles+30+burst))
	large := size(p)
	check(t, st.Clear(t.Context(), cycles, cycles+burst))
	if large < 1<<20 {
		t.Fatalf("%d records make only %d bytes", burst, large)
	}
	check(t, st.Tend(t.Context()))
	if n := size(p); n > 128<<10 {
		t.Errorf("%d bytes, and %d before, with 30 records", n, large)
	}
	check(t, store.CheckFile(p.db()))
	if testing.Short() {
		return
	}
	var err error
	for i := 0; err == nil && i < 50; i++ {
		err = st.Fill(t.Context(), 100000+i*1000, 100000+(i+1)*1000)
	}
	if !errors.Is(err, store.ErrFull) {
		t.Errorf("at the limit: %v", err)
	}
	if n := size(p); n > 9<<20 {
		t.Errorf("%d bytes", n)
	}
}
