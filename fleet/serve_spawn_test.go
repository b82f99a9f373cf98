package fleet

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Only a socket that nobody listens on is removed.
func TestClearStale(t *testing.T) {
	dir, err := os.MkdirTemp("", "s") // short enough for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "below", "s")
	if err := clearStale(path); err != nil {
		t.Errorf("nothing there: %v", err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if err := clearStale(path); err == nil || !strings.Contains(err.Error(), "call again") {
		t.Errorf("somebody listens: %v", err)
	}
	l.Close()
	if err := clearStale(path); err != nil {
		t.Errorf("nobody listens: %v", err)
	}
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("the socket is there: %v", err)
	}
	if err := os.WriteFile(path, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := clearStale(path); err == nil || !strings.Contains(err.Error(), "not a socket") {
		t.Errorf("a file: %v", err)
	}
}
