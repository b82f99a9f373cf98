package tools_test

import (
	"os"
	"strings"
	"testing"
)

// A signal comes once to each process, since a second one often means to give up at once.
func TestSignalledOnce(t *testing.T) {
	inShells(t, func(t *testing.T, r *rig, name, dir string) {
		ran := r.call("run-command", map[string]any{"name": name, "background": true,
			"command": "trap 'echo told' INT; for n in 1 2 3 4 5 6 7 8 9; do sleep 1000 & done; echo ready >" + dir + "/ready; while [ ! -e " + dir + "/go ]; do sleep 0.2 & wait $!; done"})
		eventually(t, "it listens", func() bool { _, err := os.Stat(dir + "/ready"); return err == nil })
		r.call("stop-command", map[string]any{"name": name, "commandId": ran["commandId"], "signal": "INT"})
		if err := os.WriteFile(dir+"/go", nil, 0o600); err != nil {
			t.Fatal(err)
		}
		got := r.call("read-command", map[string]any{"name": name, "commandId": ran["commandId"], "waitSecs": 60})
		if out, _ := got["stdout"].(string); got["running"] != false || strings.Count(out, "told") != 1 {
			t.Errorf("told: %v", got)
		}
		r.call("stop-command", map[string]any{"name": name, "commandId": ran["commandId"]}) // what it left
	})
}

// A command whose files were removed is stopped too.
func TestStopWithoutFiles(t *testing.T) {
	inShells(t, func(t *testing.T, r *rig, name, dir string) {
		ran := r.call("run-command", map[string]any{"name": name, "background": true, "command": "echo $$ >" + dir + "/pid; exec sleep 1000"})
		eventually(t, "it runs", func() bool { text, _ := os.ReadFile(dir + "/pid"); return strings.HasSuffix(string(text), "\n") })
		text, err := os.ReadFile(dir + "/pid")
		if err != nil {
			t.Fatal(err)
		}
		r.run(name, "rm -rf "+dir+"/.smol-mcp")
		r.refused("stop-command", map[string]any{"name": name, "commandId": ran["commandId"]})
		if stat, err := os.ReadFile("/proc/" + strings.TrimSpace(string(text)) + "/stat"); err == nil && !strings.Contains(string(stat), ") Z ") {
			t.Errorf("it is still there: %s", stat)
			r.run(name, "kill -9 "+string(text))
		}
	})
}
