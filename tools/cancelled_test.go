package tools_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"smol-mcp/fleet/fleettest"
)

// answers are the results of tools that the rig's session gives, also those whose client has gone.
func (r *rig) answers() <-chan *mcp.CallToolResult {
	all := make(chan *mcp.CallToolResult, 10)
	r.session.Server().AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			res, err := next(ctx, method, req)
			if result, ok := res.(*mcp.CallToolResult); ok {
				all <- result
			}
			return res, err
		}
	})
	return all
}

// What is said of a cancelled call is what became of its machine, and never that something
// is to be mended.
func TestCancelledIsNoFault(t *testing.T) {
	r := newRig(t, rigOptions{})
	answers := r.answers()
	image := map[string]any{"image": "alpine:3.20"}
	once := map[string]any{"image": "alpine:3.20", "command": "sleep 600"}
	for _, c := range []struct {
		tool      string
		arguments map[string]any
		method    string // in which it is cancelled
		nth       int
		want      []string // any of them
	}{
		{"create-machine", map[string]any{"image": "alpine:3.20", "name": "free"}, "Get", 1, []string{"nothing was created"}},
		{"create-machine", image, "Info", 1, []string{"nothing was created"}},
		{"create-machine", image, "Start", 1, []string{"is being deleted", "was deleted again"}},
		{"create-machine", image, "Exec", 1, []string{"is being deleted", "was deleted again"}},
		{"run-once", once, "Start", 1, []string{"is being deleted", "was deleted again"}},
		{"run-once", once, "Exec", 2, []string{"it is being deleted with all", "it was deleted with all"}},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		r.memory.Fault(fleettest.Fault{Method: c.method, Nth: c.nth, Hook: func(call context.Context) { cancel(); <-call.Done() }, Times: 1})
		if _, err := r.client.CallTool(ctx, &mcp.CallToolParams{Name: c.tool, Arguments: c.arguments}); err == nil {
			t.Errorf("%s, %s: not cancelled", c.tool, c.method)
		}
		text := words(<-answers)
		says := slices.ContainsFunc(c.want, func(s string) bool { return strings.Contains(text, s) })
		if !says || !strings.HasPrefix(text, "CANCELLED: ") || !strings.Contains(text, "the call was cancelled") || strings.Contains(text, "mend") || strings.Contains(text, "context canceled") || strings.Contains(text, "again; ") {
			t.Errorf("%s, %s: %s", c.tool, c.method, text)
		}
		r.memory.ClearFaults()
		eventually(t, "nothing is left", func() bool { return len(r.names()) == 0 })
	}
}
