//go:build linux

package engine_test

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"io"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"smol-mcp/fleet"
	"smol-mcp/fleet/engine/image"
)

// TestFigures measures what docs/benchmarks.md says, with SMOL_TEST_FIGURES=1.
func TestFigures(t *testing.T) {
	if os.Getenv("SMOL_TEST_FIGURES") == "" {
		t.Skip("measures; set SMOL_TEST_FIGURES=1")
	}
	p := spawn(t, nil)
	f := p.client(t)
	if err := f.Upload(t.Context(), booted(t, f, fleet.Spec{Name: "first", MemoryMB: 256, CPUs: 1}), "/x", strings.NewReader(""), 0); err != nil {
		t.Fatal(err)
	}
	idle := rss(t, p.cmd.Process.Pid)
	t.Logf("daemon, one machine: %d MiB RSS", idle>>20)
	t.Logf("create to ready from template, 256 MiB 1 CPU: %v", times(5, func(i int) { ready(t, f, fmt.Sprintf("t%d", i), 256, 1) }))
	first := time.Now()
	ready(t, f, "big", 512, 2)
	t.Logf("first of a shape, 512 MiB 2 CPUs: %v", time.Since(first).Round(time.Millisecond))
	t.Logf("create to ready from template, 512 MiB 2 CPUs: %v", times(3, func(i int) { ready(t, f, fmt.Sprintf("b%d", i), 512, 2) }))
	t.Logf("exec true: %v", times(20, func(int) { argv(t, f, "first", "true") }))
	t.Logf("exec sh -c true: %v", times(20, func(int) { argv(t, f, "first", "/bin/sh", "-c", "true") }))
	data := make([]byte, 64<<20)
	rand.Read(data)
	up := times(1, func(int) { must(t, f.Upload(t.Context(), "big", "/root/f", bytes.NewReader(data), int64(len(data)))) })
	down := times(1, func(int) { _, err := f.Download(t.Context(), "big", "/root/f", io.Discard, 0); must(t, err) })
	t.Logf("64 MiB: write %v, read %v", up, down)
	t.Logf("stop: %v", times(1, func(int) { _, err := f.Stop(t.Context(), "big", fleet.StopOptions{}); must(t, err) }))
	pid := p.record(t, "t0").Process.PID
	before := ticks(t, pid)
	time.Sleep(20 * time.Second) // the figure is over time
	t.Logf("idle machine of 256 MiB: %d MiB RSS, %d MiB PSS, %.1f %% of a core", rss(t, pid)>>20, pss(t, pid)>>20, float64(ticks(t, pid)-before)/20)
	begun := time.Now()
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() { ready(t, f, fmt.Sprintf("p%d", i), 256, 1) })
	}
	wg.Wait()
	t.Logf("8 at once from template: %v", time.Since(begun).Round(time.Millisecond))
	t.Logf("daemon, with %d machines: %d MiB RSS", 14, rss(t, p.cmd.Process.Pid)>>20)
	t.Logf("delete a running one: %v", times(5, func(i int) { _, err := f.Delete(t.Context(), fmt.Sprintf("p%d", i)); must(t, err) }))

	open := fleet.Network{Open: true}
	networked := func(i int) {
		booted(t, f, fleet.Spec{Name: fmt.Sprintf("n%d", i), MemoryMB: 256, CPUs: 1, Network: open})
	}
	networked(0) // makes the template
	t.Logf("create to ready with a network: %v", times(3, func(i int) { networked(i + 1) }))
	t.Logf("daemon, with 4 networks: %d MiB RSS", rss(t, p.cmd.Process.Pid)>>20)
	t.Logf("idle machine with a network: %d MiB RSS", rss(t, p.record(t, "n1").Process.PID)>>20)

	cold := spawn(t, func(p *program) { p.opts.Cold = true })
	g := cold.client(t)
	t.Logf("create to ready cold, 256 MiB 1 CPU: %v", times(3, func(i int) { ready(t, g, fmt.Sprintf("c%d", i), 256, 1) }))
	t.Logf("idle machine that booted cold: %d MiB RSS", rss(t, cold.record(t, "c0").Process.PID)>>20)
}

// TestImageFigures measures how an image of some size is prepared.
func TestImageFigures(t *testing.T) {
	if os.Getenv("SMOL_TEST_FIGURES") == "" {
		t.Skip("measures; set SMOL_TEST_FIGURES=1")
	}
	img := debianImage(t, "python3", "perl", "git", "binutils", "vim-runtime")
	server := httptest.NewServer(registry.New(registry.Logger(quiet())))
	defer server.Close()
	ref := strings.TrimPrefix(server.URL, "http://") + "/debian/big:12"
	tag, err := name.ParseReference(ref)
	must(t, err)
	must(t, remote.Write(tag, img))
	store, err := image.Open(t.TempDir())
	must(t, err)
	var got image.Image
	cold := times(1, func(int) { got, err = store.Ensure(t.Context(), ref); must(t, err) })
	warm := times(10, func(int) { _, err = store.Ensure(t.Context(), ref); must(t, err) })
	t.Logf("image of %d MiB packed, %d MiB disk: %v cold, %v warm", got.Packed>>20, got.Size>>20, cold, warm)
	other, err := image.Open(t.TempDir())
	must(t, err)
	t.Logf("builtin: %v", times(2, func(int) { _, err = other.Ensure(t.Context(), image.Builtin); must(t, err) }))
}

// spread is how long something took: least, median, most.
type spread []time.Duration

func (s spread) String() string {
	r := func(d time.Duration) time.Duration { return d.Round(100 * time.Microsecond) }
	if len(s) == 1 {
		return r(s[0]).String()
	}
	return fmt.Sprintf("%v (%v..%v of %d)", r(s[len(s)/2]), r(s[0]), r(s[len(s)-1]), len(s))
}

func times(n int, do func(i int)) spread {
	var all spread
	for i := range n {
		begun := time.Now()
		do(i)
		all = append(all, time.Since(begun))
	}
	slices.Sort(all)
	return all
}

// ready makes a machine and waits for its first answer.
func ready(t *testing.T, f fleet.Fleet, name string, memoryMB, cpus int) {
	t.Helper()
	if _, err := f.Create(t.Context(), fleet.Spec{Name: name, Image: image.Builtin, MemoryMB: memoryMB, CPUs: cpus}); err != nil {
		t.Error(err)
	}
	if _, err := f.Start(t.Context(), name, fleet.StartOptions{}); err != nil {
		t.Error(err)
	}
}

func argv(t *testing.T, f fleet.Fleet, name string, words ...string) {
	t.Helper()
	if res, err := f.Exec(t.Context(), name, fleet.Command{Argv: words, Timeout: time.Minute}); err != nil || res.ExitCode != 0 {
		t.Errorf("%+v, %v", res, err)
	}
}

// field reads a number of kibibytes from a file of /proc.
func field(t *testing.T, file, key string) int64 {
	t.Helper()
	text, err := os.ReadFile(file)
	must(t, err)
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, key+":"); ok {
			n, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			must(t, err)
			return n << 10
		}
	}
	t.Fatalf("%s has no %s", file, key)
	return 0
}

func rss(t *testing.T, pid int) int64 {
	return field(t, fmt.Sprintf("/proc/%d/status", pid), "VmRSS")
}

func pss(t *testing.T, pid int) int64 {
	return field(t, fmt.Sprintf("/proc/%d/smaps_rollup", pid), "Pss")
}

// ticks is the processor time of a process in hundredths of a second.
func ticks(t *testing.T, pid int) int64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	must(t, err)
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	user, err := strconv.ParseInt(fields[11], 10, 64)
	must(t, err)
	system, err := strconv.ParseInt(fields[12], 10, 64)
	must(t, err)
	return user + system
}
