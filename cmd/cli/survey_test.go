package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"smol-mcp/store"
)

// A deletion is under way only while its process lives.
func TestTellEnded(t *testing.T) {
	sv := store.Survey{Processes: []store.Process{{ID: "a", Life: "alive"}, {ID: "d", Life: "dead"}, {ID: "u", Life: "unproven"}}}
	for _, claimer := range []string{"a", "d", "u", "gone"} {
		sv.Machines = append(sv.Machines, store.Standing{Record: store.Record{Claimer: claimer}, Fate: store.FateClaimed, Reason: "is deleting it"})
	}
	sv.Machines = append(sv.Machines, store.Standing{Record: store.Record{Claimer: "d"}, Fate: store.FateWait, Reason: "is deleting it"})
	tellEnded(sv)
	for i, m := range sv.Machines {
		if ended := strings.Contains(m.Reason, "was deleting it; the next server"); ended != (i == 1) {
			t.Errorf("%s of %s: %s", m.Fate, m.Record.Claimer, m.Reason)
		}
	}
}

// What keeps a directory from being made is told, and nothing is made.
func TestCanMake(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := canMake(filepath.Join(dir, "a", "b")); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(filepath.Join(dir, "a")); err == nil {
		t.Error("it was made")
	}
	if err := canMake(filepath.Join(file, "a")); err == nil || !strings.Contains(err.Error(), "not a directory") {
		t.Errorf("below a file: %v", err)
	}
}
