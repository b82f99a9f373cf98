package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// memory reads a line of the server's status, in KiB.
func (s *httpServer) memory(field string) int {
	s.place.t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	if err != nil {
		s.place.t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), field+":")
	var n int
	if _, err := fmt.Sscan(rest, &n); err != nil {
		s.place.t.Fatal(err)
	}
	return n
}

// descriptors are what the open ones of the server lead to.
func (s *httpServer) descriptors() []string {
	s.place.t.Helper()
	all, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", s.cmd.Process.Pid))
	if err != nil {
		s.place.t.Fatal(err)
	}
	for i, fd := range all {
		if to, err := os.Readlink(fd); err == nil { // else it was closed meanwhile
			all[i] = to
		}
	}
	return all
}

// idleSessionKiB is what an idle session may cost.
const idleSessionKiB = 100

// A thousand idle sessions, each of which has listed its tools and called one.
func TestHTTPIdleMemory(t *testing.T) {
	const n = 1000
	p := newHTTPPlace(t)
	s := p.start()
	open := func(count int) {
		var work sync.WaitGroup
		places := make(chan struct{}, 8)
		for range count {
			places <- struct{}{}
			work.Go(func() {
				defer func() { <-places }()
				r := s.raw(theToken)
				if err := r.open(); err != nil {
					t.Error(err)
					return
				}
				for _, body := range []string{initialized, `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`} {
					if _, _, err := r.post(t.Context(), body); err != nil {
						t.Error(err)
					}
				}
				if _, err := r.call(t.Context(), "list-machines", nil); err != nil {
					t.Error(err)
				}
			})
		}
		work.Wait()
	}
	open(20) // what all share
	before := s.memory("VmRSS")
	open(n)
	each := float64(s.memory("VmRSS")-before) / n
	t.Logf("%d idle sessions cost %.1f KiB each; the server is at %d MiB", n, each, s.memory("VmRSS")/1024)
	if each > idleSessionKiB {
		t.Errorf("%.1f KiB, want at most %d", each, idleSessionKiB)
	}
	s.end(syscall.SIGTERM)
}
