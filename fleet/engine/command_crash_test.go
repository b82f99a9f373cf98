//go:build linux

package engine_test

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// A sent is a command of TestCommandsOutliveKills, which prints its part of random bytes.
type sent struct {
	tag, line string
	out, err  []byte
	code      float64
	id        string // as the client was told; "" when its call never returned
	refusal   string // what the client was told instead
}

// Server and engine are killed at random instants while commands run in a real guest: each
// command that was told of, or began, has the right exit code and every byte once.
// SMOL_TEST_KILLS=100 kills a hundred times.
func TestCommandsOutliveKills(t *testing.T) {
	kills := 3
	if n, err := strconv.Atoi(os.Getenv("SMOL_TEST_KILLS")); err == nil {
		kills = n
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 2))
	p := spawn(t, nil)
	dir := filepath.Dir(p.socket())
	c := p.server(t, dir)
	name := c.call("create-machine", map[string]any{"image": "builtin:busybox", "name": "kept"})["machine"].(map[string]any)["name"].(string)
	source := make([]byte, 30_000)
	for i := range source {
		source[i] = byte(random.UintN(256))
	}
	c.call("write-file", map[string]any{"name": name, "path": "/root/source", "content": base64.StdEncoding.EncodeToString(source), "encoding": "base64"})
	c.call("write-file", map[string]any{"name": name, "path": "/root/marks", "content": ""})
	for kill := range kills {
		var all []*sent
		calls := make(chan *sent, 2)
		for i := range cap(calls) {
			one := newSent(fmt.Sprintf("t%d-%d", kill, i), source, random)
			all = append(all, one)
			wait := []int{0, 2, 40}[random.IntN(3)]
			go func() { one.begin(t, c, name, wait); calls <- one }()
		}
		time.Sleep(time.Duration(random.IntN(2500)) * time.Millisecond) // the instant of the kill
		c.dies(t, p, kill%3)
		for range all {
			<-calls // at the latest, they end with the server
		}
		_ = c.cmd.Process.Kill() // it may have been
		c = p.server(t, dir)
		for _, one := range all {
			c.outlived(name, one)
		}
	}
}

// dies kills the engine and the server, the server alone, or the engine under a server that
// holds still meanwhile, so that it does not start one itself.
func (c *client) dies(t *testing.T, p *program, kind int) {
	t.Helper()
	if kind == 2 {
		must(t, c.cmd.Process.Signal(syscall.SIGSTOP))
		p.again(t)
		must(t, c.cmd.Process.Signal(syscall.SIGCONT))
		return
	}
	must(t, c.cmd.Process.Signal(syscall.SIGKILL))
	if kind == 0 {
		p.again(t)
	}
}

func newSent(tag string, source []byte, random *rand.Rand) *sent {
	first, chunks, size, code := random.IntN(10), 2+random.IntN(6), 1+random.IntN(1500), random.IntN(120)
	part := source[first*size:][:chunks*size]
	return &sent{tag: tag, out: part, err: part, code: float64(code), line: fmt.Sprintf(": %[1]s; echo %[1]s begun >>/root/marks; i=%[2]d; while [ $i -lt %[3]d ]; do dd if=/root/source bs=%[4]d skip=$i count=1 2>/dev/null ; { dd if=/root/source bs=%[4]d skip=$i count=1 2>/dev/null; } >&2; "+
		"sleep 0.%[5]d; i=$((i+1)); done; echo %[1]s ended >>/root/marks; exit %[6]d", tag, first, first+chunks, size, random.IntN(6), code)}
}

// begin runs the command, and notes what is told of it. The call may be cut off.
func (one *sent) begin(t *testing.T, c *client, name string, wait int) {
	res, err := c.session.CallTool(t.Context(), &mcp.CallToolParams{Name: "run-command", Arguments: map[string]any{"name": name, "command": one.line, "waitSecs": wait}})
	switch {
	case err != nil: // the server died
	case res.IsError:
		one.refusal = res.Content[0].(*mcp.TextContent).Text
	default:
		one.id, _ = res.StructuredContent.(map[string]any)["commandId"].(string)
	}
}

// outlived sees that a command is whole, or never began.
func (c *client) outlived(name string, one *sent) {
	c.t.Helper()
	marks := func() string {
		return c.call("read-file", map[string]any{"name": name, "path": "/root/marks"})["content"].(string)
	}
	listed := ""
	eventually(c.t, one.tag+" is at rest", func() bool {
		commands, _ := c.call("get-machine", map[string]any{"name": name})["commands"].([]any)
		for _, l := range commands {
			if l := l.(map[string]any); strings.HasPrefix(l["command"].(string), ": "+one.tag+";") {
				listed = l["commandId"].(string)
				return l["state"] != "running"
			}
		}
		return !strings.Contains(marks(), one.tag+" begun\n")
	})
	switch begun, ended := strings.Count(marks(), one.tag+" begun\n"), strings.Count(marks(), one.tag+" ended\n"); {
	case begun != ended || begun > 1 || listed == "" && (begun > 0 || one.id != "") || one.id != "" && one.id != listed:
		c.t.Errorf("%s began %d and ended %d times, was told as %q, and is listed as %q", one.tag, begun, ended, one.id, listed)
		return
	case begun == 0:
		c.t.Logf("%s never began: %s", one.tag, one.refusal)
		return
	case one.refusal != "" && !strings.Contains(one.refusal, listed):
		c.t.Errorf("%s began as %s, and was told as %q", one.tag, listed, one.refusal)
	}
	read := c.call("read-command", map[string]any{"name": name, "commandId": listed})
	if read["exitCode"] != one.code || read["note"] != nil {
		c.t.Errorf("%s: exit code %v, not %v; note %v", one.tag, read["exitCode"], one.code, read["note"])
	}
	for stream, want := range map[string][]byte{"stdout": one.out, "stderr": one.err} {
		if got := c.everything(name, listed, stream); !bytes.Equal(got, want) {
			c.t.Errorf("%s of %s: %d bytes that are not the %d that it printed", stream, one.tag, len(got), len(want))
		}
	}
}
