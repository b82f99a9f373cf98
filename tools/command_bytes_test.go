package tools_test

import (
	"bytes"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"smol-mcp/tools"
)

// printed makes a machine with two random streams and a command that prints them at once.
func (r *rig) printed(random *rand.Rand, sizes [2]int) (name string, ran map[string]any, streams [2][]byte) {
	r.t.Helper()
	name = r.machine(nil)
	for i, size := range sizes {
		streams[i] = randomBytes(random, size)
		if err := r.memory.Upload(r.t.Context(), name, fmt.Sprintf("/root/%d", i), bytes.NewReader(streams[i]), int64(size)); err != nil {
			r.t.Fatal(err)
		}
	}
	ran = r.run(name, "cat /root/0 & cat /root/1 >&2; wait")
	if ran["stdoutBytes"] != float64(sizes[0]) || ran["stderrBytes"] != float64(sizes[1]) || ran["exitCode"] != 0.0 {
		r.t.Fatalf("%v: %v and %v bytes, exit code %v", sizes, ran["stdoutBytes"], ran["stderrBytes"], ran["exitCode"])
	}
	return name, ran, streams
}

// randomBytes are of one of the kinds that programs print: text of several scripts, control
// characters, NULs and carriage returns, bytes that are no UTF-8, or a mixture.
func randomBytes(random *rand.Rand, size int) []byte {
	kinds := []func() string{
		func() string { return string(rune('a' + random.IntN(26))) },
		func() string { return []string{"ä", "€", "😀", "漢", "\u00a0"}[random.IntN(5)] },
		func() string {
			return []string{"\x00", "\r", "\r\n", "\x1b[31m", "\x01", "\"", "\\", "\n"}[random.IntN(8)]
		},
		func() string { return string([]byte{byte(random.UintN(256))}) },
	}
	kind := random.IntN(len(kinds) + 2)
	var b bytes.Buffer
	for b.Len() < size {
		k := kind
		if k >= len(kinds) {
			k = random.IntN(len(kinds) - 1 + kind - len(kinds)) // mixtures with and without raw bytes
		}
		b.WriteString(kinds[k]())
		if b.Len() > 1<<16 {
			b.Write(b.Bytes()[:min(b.Len(), size-min(size, b.Len()))]) // long ones repeat
		}
	}
	return b.Bytes()[:size]
}

// Whatever the bytes, budgets and cursors: what is read together is what was printed, no
// result is over its budget, and each page moves on.
func TestOutputIsExact(t *testing.T) {
	random := rand.New(rand.NewPCG(6, 6))
	for _, sizes := range [][2]int{{0, 0}, {1, 0}, {0, 1}, {4096, 4097}, {70_000, 3}, {65_536, 65_537}, {300_000, 200_000}} {
		budget := []int{256, 5000, 65_536}[random.IntN(3)]
		r := newRig(t, rigOptions{limits: func(l *tools.Limits) { l.MaxOutputBytes = budget }})
		name, ran, streams := r.printed(random, sizes)
		for i, stream := range []string{"stdout", "stderr"} {
			for range 5 {
				from := random.IntN(sizes[i] + 2)
				page, next := r.page(name, ran, stream, from)
				if len(page) > budget || next != from+len(page) || !bytes.HasPrefix(streams[i][min(from, sizes[i]):], page) || len(page) == 0 && from < sizes[i] {
					t.Errorf("%s of %v from %d: %d bytes, next %d", stream, sizes, from, len(page), next)
				}
			}
			if sizes[i]/budget > 100 {
				continue
			}
			var all []byte
			for len(all) < sizes[i] {
				page, next := r.page(name, ran, stream, len(all))
				if all = append(all, page...); next != len(all) || len(page) == 0 {
					t.Fatalf("%s of %v: next is %d after %d bytes", stream, sizes, next, len(all))
				}
			}
			if !bytes.Equal(all, streams[i]) {
				t.Errorf("%s of %v with a budget of %d: the pages are not what was printed", stream, sizes, budget)
			}
		}
		r.both(name, ran, streams, budget)
	}
}

// page reads a page of one stream.
func (r *rig) page(name string, ran map[string]any, stream string, from int) (page []byte, next int) {
	r.t.Helper()
	read := r.read(name, ran, map[string]any{"stream": stream, "offset": from})
	encoding := "utf8"
	if e, ok := read["encoding"].(map[string]any); ok && e[stream] != nil {
		encoding = e[stream].(string)
	}
	return contentOf(r.t, map[string]any{"content": read[stream], "encoding": encoding}), int(read["nextOffset"].(float64))
}

// both reads both streams in one go, as one that follows does.
func (r *rig) both(name string, ran map[string]any, streams [2][]byte, budget int) {
	r.t.Helper()
	var all [2][]byte
	for round := 0; len(all[0])+len(all[1]) < len(streams[0])+len(streams[1]) && round < 40; round++ {
		res := r.try("read-command", map[string]any{"name": name, "commandId": ran["commandId"], "offset": len(all[0]), "stderrOffset": len(all[1])})
		if n, most := len(words(res)), max(50_000*budget/65_536, 10_000)+2_500; n > most {
			r.t.Errorf("a result of %d characters with a budget of %d", n, budget)
		}
		read := decoded(r.t, res)
		for i, stream := range []string{"stdout", "stderr"} {
			encoding := "utf8"
			if e, ok := read["encoding"].(map[string]any); ok && e[stream] != nil {
				encoding = e[stream].(string)
			}
			all[i] = append(all[i], contentOf(r.t, map[string]any{"content": read[stream], "encoding": encoding})...)
			if next := read[[]string{"nextOffset", "nextStderrOffset"}[i]]; next != float64(len(all[i])) {
				r.t.Fatalf("%s: next is %v after %d bytes", stream, next, len(all[i]))
			}
		}
	}
	for i := range all {
		if !bytes.HasPrefix(streams[i], all[i]) {
			r.t.Errorf("stream %d is not what was printed", i)
		}
	}
}

var long = flag.Bool("long", false, "run tests at full length")

// Ten megabytes come back whole; with -long fifty.
func TestLongOutputIsExact(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 7))
	size := 10 << 20
	if *long {
		size = 50 << 20
	}
	r := newRig(t, rigOptions{limits: func(l *tools.Limits) { l.MaxOutputBytes = 4 << 20 }})
	name, ran, streams := r.printed(random, [2]int{size, 1 << 20})
	var all []byte
	pages := 0
	for ; len(all) < len(streams[0]); pages++ {
		page, _ := r.page(name, ran, "stdout", len(all))
		if all = append(all, page...); len(page) == 0 {
			t.Fatalf("no bytes after %d", len(all))
		}
	}
	t.Logf("%d pages", pages)
	if !bytes.Equal(all, streams[0]) {
		t.Error("the pages are not what was printed")
	}
}

// Who follows a command that prints characters in halves gets each of them whole, and once.
func TestFollowing(t *testing.T) {
	r := newRig(t, rigOptions{})
	name := r.machine(nil)
	line := `i=0; while [ $i -lt 40 ]; do printf '\303'; sleep 0.02; printf '\244'; i=$((i+1)); done`
	ran := r.call("run-command", map[string]any{"name": name, "command": line, "waitSecs": 0})
	var text strings.Builder
	for offset, running := 0.0, true; running; {
		read := r.read(name, ran, map[string]any{"offset": offset})
		if read["encoding"] != nil {
			t.Fatalf("half a character: %v", read)
		}
		text.WriteString(read["stdout"].(string))
		offset, running = read["nextOffset"].(float64), read["running"].(bool)
	}
	if text.String() != strings.Repeat("ä", 40) {
		t.Errorf("followed %q", text.String())
	}
}

// A process that ends within a millisecond never loses what it said.
func TestQuickEnds(t *testing.T) {
	r := newRig(t, rigOptions{})
	name := r.machine(nil)
	var group sync.WaitGroup
	for i := range 4 {
		group.Go(func() {
			for j := range 25 {
				word := fmt.Sprintf("%d-%d\n", i, j)
				ran := decoded(t, r.try("run-command", map[string]any{"name": name, "command": []string{"sh", "-c", "echo $0 >&2; exit 1", strings.TrimSpace(word)}}))
				if ran["stderr"] != word || ran["exitCode"] != 1.0 {
					t.Errorf("%q: %v", word, ran)
				}
			}
		})
	}
	group.Wait()
}
