//go:build unix

package cli

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"smol-mcp/store"
)

// An engine of another runtime directory keeps ours from starting; one that has ended does not.
func TestExamineLock(t *testing.T) {
	t.Setenv("XDG_DATA_HOME", t.TempDir())
	st := store.New(store.Options{RuntimeDir: filepath.Join(t.TempDir(), "run"), Kind: "doctor", Version: version, ReadOnly: true})
	defer st.Close()
	r, err := resolve(environment("SMOL_MCP_CONFIG="), "")
	if err != nil {
		t.Fatal(err)
	}
	codes := func() string {
		var all []string
		for _, f := range examineLock(t.Context(), &r.Config, st) {
			all = append(all, f.Level+" "+f.Code)
		}
		return strings.Join(all, ", ")
	}
	if got := codes(); got != "" {
		t.Errorf("where no engine ever was: %s", got)
	}
	data := engineData(os.LookupEnv)
	if err := os.Mkdir(data, 0o700); err != nil {
		t.Fatal(err)
	}
	held, err := os.Create(filepath.Join(data, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if got := codes(); got != "" {
		t.Errorf("with a free lock: %s", got)
	}
	if err := syscall.Flock(int(held.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if got := codes(); got != "error data_locked" {
		t.Errorf("with a lock that is held: %q", got)
	}
	r.LocalURL = "unix:///run/other.sock"
	if got := codes(); got != "" {
		t.Errorf("with an engine at a given address: %s", got)
	}
}
