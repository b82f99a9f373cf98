package tools_test

import (
	"strings"
	"testing"
)

// What a command writes by opening its output anew comes beside what it has written.
func TestOutputOpenedAnew(t *testing.T) {
	inShells(t, func(t *testing.T, r *rig, name, dir string) {
		ran := r.run(name, "echo first; echo second >/dev/stdout; echo third; echo 1 >&2; echo 2 >/dev/stderr; echo 3 >&2")
		if ran["stdout"] != "first\nsecond\nthird\n" || ran["stderr"] != "1\n2\n3\n" {
			t.Errorf("%q and %q", ran["stdout"], ran["stderr"])
		}
	})
}

// A line that begins as options do is a line.
func TestLineThatBeginsWithAnOption(t *testing.T) {
	inShells(t, func(t *testing.T, r *rig, name, dir string) {
		for line, code := range map[string]float64{"-x": 127, "+e": 127, "-c echo": 127} {
			if ran := r.run(name, line); ran["exitCode"] != code || strings.Contains(ran["stderr"].(string), "argument") {
				t.Errorf("%s: %v, %q", line, ran["exitCode"], ran["stderr"])
			}
		}
	})
}

// Output that could not be written since its directory is gone is not told as a full disk.
func TestDirectoryGone(t *testing.T) {
	inShells(t, func(t *testing.T, r *rig, name, dir string) {
		ran := r.run(name, "rm -rf "+dir+"/.smol-mcp; echo x >"+dir+"/.smol-mcp; echo said")
		if note, _ := ran["note"].(string); note == "" || strings.Contains(note, "full") {
			t.Errorf("%v", ran)
		}
	})
}

// However long an output is, a look at its command reads no more of it than it shows.
func TestLookAtALongOutput(t *testing.T) {
	r := newRig(t, rigOptions{})
	name := r.machine(nil)
	ran := r.run(name, "truncate -s 1000G /tmp/.smol-mcp/$SMOL_MCP_COMMAND.stdout; exit 3")
	if ran["stdoutBytes"] != float64(1000<<30) || ran["exitCode"] != 3.0 || ran["truncated"] != true {
		t.Errorf("ran: %v bytes, exit code %v, note %v", ran["stdoutBytes"], ran["exitCode"], ran["note"])
	}
	if read := r.read(name, ran, map[string]any{"offset": 1000<<30 - 10, "stream": "stdout"}); read["stdout"] != "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00" || read["nextOffset"] != float64(1000<<30) {
		t.Errorf("its end: %q, next %v", read["stdout"], read["nextOffset"])
	}
}
