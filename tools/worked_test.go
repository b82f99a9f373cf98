package tools_test

import (
	"context"
	"encoding/base64"
	"strings"
	"testing"
	"time"
)

func TestWorkedExample(t *testing.T) {
	for _, protocol := range []string{"2025-06-18", "2025-11-25", "2026-07-28"} {
		t.Run(protocol, func(t *testing.T) {
			r := newRig(t, rigOptions{protocol: protocol})
			made := r.call("create-machine", map[string]any{"image": "alpine:3.20"})
			m := made["machine"].(map[string]any)
			name := m["name"].(string)
			if made["ready"] != true || made["ephemeral"] != true || m["owner"] != "this-session" || m["state"] != "running" || m["image"] != "alpine:3.20" || m["network"] != "blocked" {
				t.Errorf("created: %v", made)
			}
			if !strings.HasPrefix(name, "mcp-") || len(name) != len("mcp-")+12 {
				t.Errorf("name %q", name)
			}
			r.call("write-file", map[string]any{"name": name, "path": "/workspace/hello.sh", "content": "echo hello $1\nexit 3\n"})
			ran := r.run(name, "sh /workspace/hello.sh wörld")
			if ran["stdout"] != "hello wörld\n" || ran["exitCode"] != 3.0 || ran["startedMachine"] != false || ran["running"] != false || ran["commandId"] == nil {
				t.Errorf("ran: %v", ran)
			}
			read := r.call("read-file", map[string]any{"name": name, "path": "/workspace/hello.sh"})
			if read["content"] != "echo hello $1\nexit 3\n" || read["eof"] != true || read["size"] != 21.0 {
				t.Errorf("read: %v", read)
			}
			if gone := r.call("delete-machine", map[string]any{"name": name}); gone["deleted"] != name || gone["alreadyGone"] != false {
				t.Errorf("deleted: %v", gone)
			}
			if left := r.names(); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

func TestSessionEndDeletesItsMachines(t *testing.T) {
	r := newRig(t, rigOptions{})
	for range 5 {
		r.machine(nil)
	}
	r.machine(map[string]any{"name": "kept"})
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
	defer cancel()
	if err := r.session.Close(ctx); err != nil {
		t.Error(err)
	}
	if left := r.names(); len(left) != 1 || left[0] != "kept" {
		t.Errorf("left: %v", left)
	}
}

func TestBytesAreExact(t *testing.T) {
	r := newRig(t, rigOptions{})
	name := r.machine(nil)
	raw := make([]byte, 1024)
	for i := range raw {
		raw[i] = byte(i * 7)
	}
	content := base64.StdEncoding.EncodeToString(raw)
	r.call("write-file", map[string]any{"name": name, "path": "/tmp/raw", "content": content, "encoding": "base64"})
	ran := r.run(name, "cat /tmp/raw")
	if ran["stdout"] != content || ran["encoding"].(map[string]any)["stdout"] != "base64" || ran["stdoutBytes"] != 1024.0 {
		t.Errorf("ran: %v", ran)
	}
	if text := r.refused("read-file", map[string]any{"name": name, "path": "/tmp/raw"}); !strings.Contains(text, "base64") {
		t.Errorf("refused with %q", text)
	}
	if read := r.call("read-file", map[string]any{"name": name, "path": "/tmp/raw", "encoding": "auto"}); read["content"] != content || read["encoding"] != "base64" {
		t.Errorf("read: %v", read)
	}
}
