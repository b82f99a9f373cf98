//go:build linux

package engine_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"smol-mcp/fleet/engine"
)

// Looking makes no place for machines or images, and where nothing is missing the plan is an empty list.
func TestLookingMakesNoPlaces(t *testing.T) {
	o := options(t)
	o.Cache, o.Data = filepath.Join(t.TempDir(), "cache"), filepath.Join(t.TempDir(), "data")
	findings, err := engine.Examine(t.Context(), o)
	must(t, err)
	codes := map[string]bool{}
	for _, f := range findings {
		codes[f.Code] = true
	}
	if !codes["images_ok"] {
		t.Errorf("found %+v", findings)
	}
	plan := exec.Command(shared.daemon, "setup", "--json", "--cache", o.Cache, "--kernel", o.Kernel)
	if out, err := plan.Output(); err != nil || string(out) != "[]\n" {
		t.Errorf("the plan is %s, %v", out, err)
	}
	for _, dir := range []string{filepath.Join(o.Cache, "images"), o.Data} { // what a probe of the hardware has shown is kept
		if _, err := os.Stat(dir); !os.IsNotExist(err) {
			t.Errorf("%s was made", dir)
		}
	}
}
