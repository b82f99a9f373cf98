//go:build linux

package engine_test

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Twenty commands at once on one machine, which does eight things at a time: all of them end
// as they should, and files are read beside them.
func TestTwentyCommandsAtOnce(t *testing.T) {
	p := spawn(t, nil)
	c := p.server(t, filepath.Dir(p.socket()))
	name := c.call("create-machine", map[string]any{"image": "builtin:busybox"})["machine"].(map[string]any)["name"].(string)
	c.call("write-file", map[string]any{"name": name, "path": "/root/text", "content": "beside them\n"})
	begin := time.Now()
	var group sync.WaitGroup
	var running atomic.Int64
	running.Store(20)
	for i := range 20 {
		group.Go(func() {
			defer running.Add(-1)
			arguments := map[string]any{"name": name, "command": fmt.Sprintf("sleep 4; echo %d; exit %d", i, i), "waitSecs": 120}
			res, err := c.session.CallTool(t.Context(), &mcp.CallToolParams{Name: "run-command", Arguments: arguments})
			if err != nil {
				t.Errorf("%d: %v", i, err)
				return
			}
			var out map[string]any
			text := res.Content[0].(*mcp.TextContent).Text
			if json.Unmarshal([]byte(text), &out) != nil || out["stdout"] != fmt.Sprintf("%d\n", i) || out["exitCode"] != float64(i) {
				t.Errorf("%d: %s", i, text)
			}
		})
	}
	var took []time.Duration
	for running.Load() > 0 {
		begun := time.Now()
		if read := c.call("read-file", map[string]any{"name": name, "path": "/root/text"}); read["content"] != "beside them\n" {
			t.Fatalf("read %v", read)
		}
		took = append(took, time.Since(begun))
		time.Sleep(50 * time.Millisecond) // as a client would
	}
	group.Wait()
	slices.Sort(took)
	t.Logf("all ended after %v; %d reads beside them took %v, the slowest %v", time.Since(begin).Round(time.Millisecond), len(took), took[len(took)/2].Round(time.Millisecond), took[len(took)-1].Round(time.Millisecond))
}
