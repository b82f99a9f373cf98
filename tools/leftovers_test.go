package tools_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"smol-mcp/store"
)

// crashEnv tells the test binary to be a session that records machines and dies.
const crashEnv = "SMOL_TEST_CRASH"

// TestCrashingSession is the crashed session of the tests below, in a process of its own.
func TestCrashingSession(t *testing.T) {
	dir := os.Getenv(crashEnv)
	if dir == "" {
		t.Skip("it is run by other tests, to crash")
	}
	st := store.New(store.Options{RuntimeDir: filepath.Join(dir, "run"), StateDir: filepath.Join(dir, "state"), Kind: "stdio"})
	s := st.NewSession("stdio", "")
	for _, name := range []string{"mcp-left", "mcp-other"} {
		rec, err := s.Intend(t.Context(), store.Wish{Target: "local", Name: name, Kind: store.Ephemeral, Image: "alpine:3.20"})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Confirm(t.Context(), rec, name, rec.Created); err != nil {
			t.Fatal(err)
		}
	}
	p, err := os.FindProcess(os.Getpid())
	if err == nil {
		err = p.Kill()
	}
	t.Fatal("not killed: ", err)
}

// What a crashed session left is named as a new one opens, and belongs to the
// first that uses it.
func TestLeftovers(t *testing.T) {
	for _, protocol := range []string{"2025-11-25", "2026-07-28"} {
		t.Run(protocol, func(t *testing.T) {
			dir := t.TempDir()
			crash := exec.Command(os.Args[0], "-test.run=^TestCrashingSession$")
			crash.Env = append(os.Environ(), crashEnv+"="+dir)
			if out, err := crash.CombinedOutput(); err == nil || strings.Contains(string(out), "FAIL") {
				t.Fatalf("it did not crash: %v\n%s", err, out)
			}
			r := newRig(t, rigOptions{protocol: protocol, dir: dir})
			for _, name := range []string{"mcp-left", "mcp-other"} {
				r.exists(name)
			}
			text := r.client.InitializeResult().Instructions
			if !strings.Contains(text, "mcp-left (10 min)") || !strings.Contains(text, "mcp-other (10 min)") {
				t.Errorf("instructions end with %q", text[len(text)-200:])
			}
			for _, m := range r.call("list-machines", nil)["machines"].([]any) {
				if m := m.(map[string]any); m["owner"] != "crashed-session" || m["ephemeral"] != true || m["expiresAt"] == nil {
					t.Errorf("listed as %v", m)
				}
			}
			r.run("mcp-left", "true")
			if m := r.call("get-machine", map[string]any{"name": "mcp-left"}); m["owner"] != "this-session" || m["image"] != "alpine:3.20" {
				t.Errorf("after its use: %v", m)
			}
		})
	}
}
