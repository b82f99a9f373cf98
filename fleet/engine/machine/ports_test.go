//go:build unix

package machine

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// Of a machine that ends right after its start, and is seen to before the start is over, no port
// stays taken.
func TestPortsOfWhatEnded(t *testing.T) {
	qemu := filepath.Join(t.TempDir(), "qemu")
	program, err := os.Executable()
	must(t, err)
	must(t, os.WriteFile(qemu, fmt.Appendf(nil, "#!/bin/sh\n%s=1 GORACE=atexit_sleep_ms=0 exec '%s'\n", asQEMU, program), 0o700))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	port := l.Addr().(*net.TCPAddr).Port
	must(t, l.Close())
	m, vm := managerOf(t, qemu, Spec{Image: "none/none:1", Ports: []Port{{port, 80}}})
	digest := strings.Repeat("a", 64)
	images := filepath.Join(m.opts.Data, "images")
	must(t, os.WriteFile(filepath.Join(images, digest+".json"), fmt.Appendf(nil, `{"digest":"sha256:%s","references":["none/none:1"]}`, digest), 0o600))
	must(t, os.WriteFile(filepath.Join(images, digest+".ext4"), nil, 0o600))
	must(t, vm.change(func(r *Record) { r.Digest = "sha256:" + digest }))

	ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	for range 30 { // that many wait for the machine at each moment, so that one is next when the start lets go of it
		all.Go(func() {
			for ctx.Err() == nil {
				m.seen(vm)
			}
		})
	}
	starts := 0
	for ctx.Err() == nil {
		if _, err := m.Start(ctx, "m"); err == nil { // else it ended too early, or the port is somebody else's
			starts++
		}
		for m.seen(vm).State == Running {
			time.Sleep(time.Millisecond) // until it has ended, in a moment
		}
		vm.mu.Lock()
		taken := vm.ports != nil
		vm.mu.Unlock()
		if taken {
			t.Fatalf("start %d: port %d is listened at for a machine that has ended", starts, port)
		}
	}
	t.Logf("%d starts", starts)
}
