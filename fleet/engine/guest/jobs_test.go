//go:build linux

package guest

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// What an account may do with files by one of its groups is done for it too, and the thread is
// as before then.
func TestAsGroup(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can be somebody else")
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before, err := unix.Getgroups()
	if err != nil {
		t.Fatal(err)
	}
	parent := t.TempDir()
	for _, dir := range []string{filepath.Dir(parent), parent} {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	shared := filepath.Join(parent, "shared")
	if err := os.Mkdir(shared, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(shared, 0, 88); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(shared, 0o770); err != nil {
		t.Fatal(err)
	}
	write := func(name string, groups ...uint32) error {
		who := account{cred: &syscall.Credential{Uid: 1234, Gid: 2345, Groups: groups}}
		return who.as(func() error { return os.WriteFile(filepath.Join(shared, name), nil, 0o600) })
	}
	if err := write("one", 77, 88); err != nil {
		t.Errorf("with the group: %v", err)
	}
	if err := write("other", 77); !os.IsPermission(err) {
		t.Errorf("without it: %v", err)
	}
	if after, err := unix.Getgroups(); err != nil || !slices.Equal(after, before) {
		t.Errorf("the thread has the groups %v, %v; before %v", after, err, before)
	}
	if err := os.WriteFile(filepath.Join(shared, "root"), nil, 0o600); err != nil {
		t.Errorf("the thread is not root's any more: %v", err)
	}
}
