package tools_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Sessions that come for a call and go leave no more than the newest 200 commands that have ended;
// what runs stays whatever its age.
func TestCommandsDoNotPileUp(t *testing.T) {
	inShells(t, func(t *testing.T, r *rig, name, dir string) {
		dir = filepath.Join(dir, ".smol-mcp")
		for i := range 250 {
			for _, kind := range []string{"job", "stdout", "stderr"} {
				file := filepath.Join(dir, fmt.Sprintf("old%09d.%s", i, kind))
				first := "0 1.00 - ok"
				if i == 249 {
					first = "-"
				}
				text := fmt.Sprintf("%-48s\n1 1 other 1.00 1 1\nold\n", first)
				if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
				if err := os.Chtimes(file, time.Time{}, time.Now().Add(-time.Duration(i+1)*time.Minute)); err != nil {
					t.Fatal(err)
				}
			}
		}
		_, r.client = r.connect(rigOptions{})
		r.run(name, "true")
		count := func(pattern string) int {
			found, _ := filepath.Glob(filepath.Join(dir, pattern))
			return len(found)
		}
		// Those of before, the one that runs, and the new one.
		eventually(t, "the oldest are gone", func() bool { return count("*.job") <= 202 && count("old*.stdout") <= 201 })
		if count("old000000000.*") != 3 || count("old000000249.*") != 3 || count("*.job") < 199 {
			t.Errorf("%d are left, %d files of the newest, %d of the one that runs", count("*.job"), count("old000000000.*"), count("old000000249.*"))
		}
	})
}
