package fleet_test

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"smol-mcp/fleet"
	"smol-mcp/fleet/fleettest"
)

func broken(maybe bool) error {
	return &fleet.Error{Code: fleet.CodeUnreachable, Op: "call", Why: "connection reset by peer", MaybeDone: maybe}
}

// calls is every method of a fleet, on a machine that exists.
func calls(ctx context.Context, f fleet.Fleet) map[string]func() error {
	return map[string]func() error{
		"Info":     func() error { _, err := f.Info(ctx); return err },
		"List":     func() error { _, err := f.List(ctx); return err },
		"Get":      func() error { _, err := f.Get(ctx, "vm"); return err },
		"Logs":     func() error { _, err := f.Logs(ctx, "vm", fleet.LogQuery{Tail: 1}); return err },
		"Download": func() error { _, err := f.Download(ctx, "vm", "/x", &bytes.Buffer{}, 0); return err },
		"Delete":   func() error { _, err := f.Delete(ctx, "vm"); return err },
		"Create":   func() error { _, err := f.Create(ctx, fleet.Spec{Name: "vm-2"}); return err },
		"Start":    func() error { _, err := f.Start(ctx, "vm", fleet.StartOptions{}); return err },
		"Stop":     func() error { _, err := f.Stop(ctx, "vm", fleet.StopOptions{}); return err },
		"Branch":   func() error { _, err := f.Branch(ctx, "vm", fleet.BranchSpec{Name: "kid"}); return err },
		"Exec": func() error {
			_, err := f.Exec(ctx, "vm", fleet.Command{Argv: []string{"true"}, Timeout: time.Second})
			return err
		},
		"Upload": func() error { return f.Upload(ctx, "vm", "/x", strings.NewReader("x"), 1) },
		"Pull":   func() error { _, err := f.Pull(ctx, "vm", "alpine"); return err },
	}
}

// What only reads is repeated, and Delete; nothing else ever is.
func TestRetry(t *testing.T) {
	safe := map[string]bool{"Info": true, "List": true, "Get": true, "Logs": true, "Download": true, "Delete": true}
	for method := range calls(nil, nil) {
		t.Run(method, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mem := fleettest.NewMemory(fleettest.MemoryOptions{})
				prepare(t, mem)
				before := mem.Count(method)
				mem.Fault(fleettest.Fault{Method: method, Times: 2, Err: broken(true)})
				err := calls(t.Context(), fleet.Retry(mem))[method]()
				want := 1
				if safe[method] {
					want = 3
				}
				if n := mem.Count(method) - before; n != want || (err == nil) != safe[method] {
					t.Errorf("sent %d times, want %d: %v", n, want, err)
				}
			})
		})
	}
}

func prepare(t *testing.T, mem *fleettest.Memory) {
	t.Helper()
	if _, err := mem.Create(t.Context(), fleet.Spec{Name: "vm"}); err != nil {
		t.Fatal(err)
	}
	if err := mem.Upload(t.Context(), "vm", "/x", strings.NewReader("x"), 1); err != nil {
		t.Fatal(err)
	}
}

func TestRetryGivesUp(t *testing.T) {
	for code, want := range map[fleet.Code]int{
		fleet.CodeUnreachable: 3, fleet.CodeTimeout: 1, fleet.CodeNotFound: 1, fleet.CodeCancelled: 1, fleet.CodeUnavailable: 1, fleet.CodeInternal: 1,
	} {
		synctest.Test(t, func(t *testing.T) {
			mem := fleettest.NewMemory(fleettest.MemoryOptions{})
			mem.Fault(fleettest.Fault{Err: &fleet.Error{Code: code, Op: "x", Why: "y"}})
			begun := time.Now()
			_, err := fleet.Retry(mem).List(t.Context())
			if n := mem.Count("List"); n != want || fleet.CodeOf(err) != code {
				t.Errorf("%s: sent %d times, %v", code, n, err)
			}
			if took := time.Since(begun); took > 2*time.Second {
				t.Errorf("it took %v", took)
			}
		})
	}
}

func TestRetryHearsCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := fleettest.NewMemory(fleettest.MemoryOptions{})
		ctx, cancel := context.WithCancel(t.Context())
		mem.Fault(fleettest.Fault{Err: broken(false), Hook: func(context.Context) { cancel() }})
		begun := time.Now()
		_, err := fleet.Retry(mem).List(ctx)
		if fleet.CodeOf(err) != fleet.CodeUnreachable || mem.Count("List") != 1 || time.Since(begun) > 0 {
			t.Errorf("%d calls in %v, %v", mem.Count("List"), time.Since(begun), err)
		}
	})
}

// The answer of a delete is lost, and a second finds nothing: it is deleted. One
// that finds nothing at once says so.
func TestRetryDelete(t *testing.T) {
	mem := fleettest.NewMemory(fleettest.MemoryOptions{})
	prepare(t, mem)
	mem.Fault(fleettest.Fault{Method: "Delete", Times: 1, LostReply: true})
	if _, err := fleet.Retry(mem).Delete(t.Context(), "vm"); err != nil || len(mem.Machines()) != 0 {
		t.Errorf("%v, machines %v", err, mem.Machines())
	}
	if _, err := fleet.Retry(mem).Delete(t.Context(), "vm"); fleet.CodeOf(err) != fleet.CodeNotFound {
		t.Error(err)
	}
}

// A download is not begun again once bytes were written.
func TestRetryDownload(t *testing.T) {
	mem := fleettest.NewMemory(fleettest.MemoryOptions{})
	prepare(t, mem)
	mem.Fault(fleettest.Fault{Method: "Download", LostReply: true}) // after the bytes
	var got bytes.Buffer
	n, err := fleet.Retry(mem).Download(t.Context(), "vm", "/x", &got, 0)
	if fleet.CodeOf(err) != fleet.CodeUnreachable || n != 1 || got.String() != "x" || mem.Count("Download") != 1 {
		t.Errorf("%d calls wrote %q, %d, %v", mem.Count("Download"), got.String(), n, err)
	}
}
