//go:build linux

package engine_test

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// A client speaks to a smol-mcp process that has machines on an engine of the test.
type client struct {
	t       *testing.T
	cmd     *exec.Cmd
	session *mcp.ClientSession
}

// server starts smol-mcp over the engine; dir is for its records.
func (p *program) server(t *testing.T, dir string) *client {
	t.Helper()
	must(t, build("smol-mcp"))
	c := &client{t: t, cmd: exec.Command(filepath.Join(shared.programs, "smol-mcp"))}
	c.cmd.Env = []string{"HOME=" + dir, "XDG_RUNTIME_DIR=" + dir, "PATH=" + os.Getenv("PATH"),
		"SMOL_LOCAL_URL=" + p.opts.Listen, "SMOL_MCP_MEMORY_MB=512", "SMOL_MCP_CPUS=1"}
	var err error
	c.session, err = mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).Connect(t.Context(), &mcp.CommandTransport{Command: c.cmd}, nil)
	must(t, err)
	t.Cleanup(func() { _ = c.session.Close() })
	return c
}

// call calls a tool and returns its result.
func (c *client) call(tool string, arguments map[string]any) map[string]any {
	c.t.Helper()
	res, err := c.session.CallTool(c.t.Context(), &mcp.CallToolParams{Name: tool, Arguments: arguments})
	must(c.t, err)
	text := res.Content[0].(*mcp.TextContent).Text
	if res.IsError {
		c.t.Fatalf("%s %v: %s", tool, arguments, text)
	}
	var out map[string]any
	must(c.t, json.Unmarshal([]byte(text), &out))
	return out
}

// A command in a real guest goes on when the server and the engine are killed, and its handle
// gives another server the right exit code, and every byte once. SMOL_TEST_STORY=180 makes it
// take three minutes, with the kill after twenty seconds.
func TestCommandOutlivesServerAndEngine(t *testing.T) {
	length, kill := 8, 2*time.Second
	if secs, err := strconv.Atoi(os.Getenv("SMOL_TEST_STORY")); err == nil {
		length, kill = secs, 20*time.Second
	}
	p := spawn(t, nil)
	dir := filepath.Dir(p.socket())
	first := p.server(t, dir)
	name := first.call("create-machine", map[string]any{"image": "builtin:busybox", "name": "kept"})["machine"].(map[string]any)["name"].(string)
	line := "i=0; while [ $i -lt " + strconv.Itoa(length) + " ]; do head -c 20000 /dev/urandom | tee -a /root/source; echo $i >&2; sleep 1; i=$((i+1)); done; exit 7"
	ran := first.call("run-command", map[string]any{"name": name, "command": line, "waitSecs": 1, "timeoutSecs": 900})
	if ran["running"] != true {
		t.Fatalf("ran: %v", ran)
	}
	short := first.call("run-command", map[string]any{"name": name, "command": "sleep 1000 & trap '' TERM; while :; do sleep 1; done", "waitSecs": 1, "timeoutSecs": 3})
	time.Sleep(kill) // the story's own clock
	must(t, first.cmd.Process.Kill())
	p.again(t)
	second := p.server(t, dir)
	read := map[string]any{"running": true}
	for end := time.Now().Add(time.Duration(length)*time.Second + time.Minute); read["running"] == true && time.Now().Before(end); {
		read = second.call("read-command", map[string]any{"name": name, "commandId": ran["commandId"], "waitSecs": 30})
	}
	if read["exitCode"] != 7.0 || read["durationMs"].(float64) < float64(length)*1000 || !strings.HasPrefix(read["stderr"].(string), "0\n1\n2\n") {
		t.Fatalf("at its end: %v, %v ms, stderr %q, note %v", read["exitCode"], read["durationMs"], read["stderr"], read["note"])
	}
	all := second.everything(name, ran["commandId"], "stdout")
	sum := sha256.Sum256(all)
	if source := second.call("run-command", map[string]any{"name": name, "command": "sha256sum /root/source"})["stdout"].(string); !strings.HasPrefix(source, hex.EncodeToString(sum[:])) {
		t.Errorf("what was read (%d bytes) is not what was printed: %x, %s", len(all), sum, source)
	}
	late := second.call("read-command", map[string]any{"name": name, "commandId": short["commandId"], "waitSecs": 20})
	if late["timedOut"] != true || late["running"] != false || late["exitCode"] != nil {
		t.Errorf("one whose time was over while nobody was there: %v", late)
	}
	if left := second.call("run-command", map[string]any{"name": name, "command": "ps | grep -c '[s]leep 1000'"})["stdout"]; left != "0\n" {
		t.Errorf("%q of it runs still", left)
	}
	second.rebooted(name)
}

// everything pages through an output of a command.
func (c *client) everything(name string, id any, stream string) []byte {
	c.t.Helper()
	var all []byte
	for {
		read := c.call("read-command", map[string]any{"name": name, "commandId": id, "stream": stream, "offset": len(all)})
		page := []byte(read[stream].(string))
		if encoding, ok := read["encoding"].(map[string]any); ok && encoding[stream] == "base64" {
			var err error
			page, err = base64.StdEncoding.DecodeString(string(page))
			must(c.t, err)
		}
		if all = append(all, page...); read["truncated"] != true {
			return all
		}
	}
}

// rebooted sees that the end of a command that a stop of its machine cut short is unknown.
func (c *client) rebooted(name string) {
	c.t.Helper()
	ran := c.call("run-command", map[string]any{"name": name, "command": "echo begun; sleep 1000", "background": true})
	c.call("stop-machine", map[string]any{"name": name})
	c.call("start-machine", map[string]any{"name": name})
	res, err := c.session.CallTool(c.t.Context(), &mcp.CallToolParams{Name: "read-command", Arguments: map[string]any{"name": name, "commandId": ran["commandId"]}})
	must(c.t, err)
	if text := res.Content[0].(*mcp.TextContent).Text; !res.IsError || !strings.HasPrefix(text, "NOT_FOUND") || !strings.Contains(text, "how it ended is not known") {
		c.t.Errorf("after a boot: %s", text)
	}
}

// TestCommandFigures measures what keeping its output in files and outliving its request
// costs a short command, with SMOL_TEST_FIGURES=1.
func TestCommandFigures(t *testing.T) {
	if os.Getenv("SMOL_TEST_FIGURES") == "" {
		t.Skip("measures; set SMOL_TEST_FIGURES=1")
	}
	p := spawn(t, nil)
	c := p.server(t, filepath.Dir(p.socket()))
	f := p.client(t)
	for _, image := range []string{"builtin:busybox"} {
		name := c.call("create-machine", map[string]any{"image": image})["machine"].(map[string]any)["name"].(string)
		var direct, wrapped []time.Duration
		for range 100 { // in turns, so that what else the computer does falls on both
			begun := time.Now()
			argv(t, f, name, "/bin/sh", "-c", "true")
			direct = append(direct, time.Since(begun))
			begun = time.Now()
			c.call("run-command", map[string]any{"name": name, "command": "true"})
			wrapped = append(wrapped, time.Since(begun))
		}
		slices.Sort(direct)
		slices.Sort(wrapped)
		t.Logf("%s: exec sh -c true %v, run-command true %v (medians); %v and %v (least)", image,
			direct[50].Round(100*time.Microsecond), wrapped[50].Round(100*time.Microsecond), direct[0].Round(100*time.Microsecond), wrapped[0].Round(100*time.Microsecond))
	}
}

// What write-file has answered for is there after the machine was killed.
func TestWrittenFileOutlivesKill(t *testing.T) {
	p := spawn(t, nil)
	c := p.server(t, filepath.Dir(p.socket()))
	name := c.call("create-machine", map[string]any{"image": "builtin:busybox"})["machine"].(map[string]any)["name"].(string)
	killed := func() {
		must(t, syscall.Kill(p.record(t, name).Process.PID, syscall.SIGKILL))
		eventually(t, "it is stopped", func() bool { return c.call("get-machine", map[string]any{"name": name})["state"] == "stopped" })
	}
	write := func(path, content string, more bool) {
		c.call("write-file", map[string]any{"name": name, "path": path, "content": content, "append": more})
	}
	for path, before := range map[string]string{"/srv/new/file": "", "/etc/motd": "before\n"} {
		write(path, before, false)
		write(path, "replaced\n", false)
		killed()
		write(path, "added\n", true)
		killed()
		if got := c.call("read-file", map[string]any{"name": name, "path": path})["content"]; got != "replaced\nadded\n" {
			t.Errorf("%s: %q", path, got)
		}
	}
}
