//go:build linux

package engine_test

import (
	"path/filepath"
	"strings"
	"testing"
)

// What a command started ends with it, also what left its session, its group and its parents and
// dropped its environment: at a stop, when the time is over, and when the command itself has ended before.
func TestNothingEscapes(t *testing.T) {
	p := spawn(t, nil)
	c := p.server(t, filepath.Dir(p.socket()))
	name := c.call("create-machine", map[string]any{"image": "builtin:busybox"})["machine"].(map[string]any)["name"].(string)
	sh := func(line string) string {
		return c.call("run-command", map[string]any{"name": name, "command": line})["stdout"].(string)
	}
	const escape = "setsid env -i /bin/sh -c '(while :; do echo >>/run/beat; sleep 0.1; done) &'; "
	for what, one := range map[string]struct {
		then, timeout any
		stop          bool
	}{
		"stop":      {"sleep 1000", 600, true},
		"time-out":  {"sleep 1000", 3, false},
		"ended too": {"exit 0", 600, true},
	} {
		t.Run(what, func(t *testing.T) {
			sh("rm -f /run/beat")
			ran := c.call("run-command", map[string]any{"name": name, "command": escape + one.then.(string), "background": true, "timeoutSecs": one.timeout})
			eventually(t, "it beats", func() bool { return sh("cat /run/beat 2>/dev/null; true") != "" })
			if one.stop {
				if stopped := c.call("stop-command", map[string]any{"name": name, "commandId": ran["commandId"]}); stopped["running"] != false {
					t.Errorf("stopped: %v", stopped)
				}
			} else {
				c.call("read-command", map[string]any{"name": name, "commandId": ran["commandId"], "waitSecs": 30})
			}
			eventually(t, "it has ended", func() bool {
				return sh("a=$(wc -c </run/beat); sleep 1; [ $a = $(wc -c </run/beat) ] && echo ended") == "ended\n"
			})
		})
	}
	// No control group stays but that of the command that asks, and a spare one.
	eventually(t, "the control groups are gone", func() bool { return strings.Count(sh("ls /sys/fs/cgroup"), "smol-job-") <= 2 })
}
