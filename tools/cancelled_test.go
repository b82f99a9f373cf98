package tools_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"smol-mcp/fleet"
	"smol-mcp/fleet/fleettest"
	"smol-mcp/tools"
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

// A machine that is deleted while it is being created: its creation says so, and its name is free
// at once, however far the creation had got.
func TestDeletedWhileCreated(t *testing.T) {
	refusal := &fleet.Error{Code: fleet.CodeInvalid, Op: "create machine", Why: "no such image"}
	for what, c := range map[string]struct {
		fault fleettest.Fault
		want  string
	}{
		"before it is there": {fleettest.Fault{Method: "Create"}, "CONFLICT: create machine early. it was deleted while it was being created"},
		"while it starts":    {fleettest.Fault{Method: "Start"}, "CONFLICT: create machine early. it was deleted while it was being created"},
		"before a refusal":   {fleettest.Fault{Method: "Create", Err: refusal}, "INVALID: create machine. no such image"},
	} {
		t.Run(what, func(t *testing.T) {
			r := newRig(t, rigOptions{})
			other := r.as(func(*tools.Options) {})
			arguments := map[string]any{"image": "alpine:3.20", "name": "early"}
			c.fault.Times, c.fault.Hook = 1, func(context.Context) { other.call("delete-machine", map[string]any{"name": "early"}) }
			r.memory.Fault(c.fault)
			if text := r.refused("create-machine", arguments); !strings.HasPrefix(text, c.want) || strings.Contains(text, "mend") {
				t.Error(text)
			}
			if names := r.names(); len(names) > 0 {
				t.Errorf("left: %v", names)
			}
			r.machine(arguments)
		})
	}
}

// A name whose machine is on its way out is told as that, and not as a machine to be used.
func TestNameOnItsWayOut(t *testing.T) {
	r := newRig(t, rigOptions{})
	arguments := map[string]any{"image": "alpine:3.20", "name": "mcp-early"}
	r.machine(arguments)
	begun, goOn := make(chan struct{}), make(chan struct{})
	r.memory.Fault(fleettest.Fault{Method: "Delete", Times: 1, Hook: func(context.Context) { close(begun); <-goOn }})
	deleted := make(chan map[string]any, 1)
	go func() { deleted <- r.call("delete-machine", map[string]any{"name": "mcp-early"}) }()
	<-begun
	if text := r.refused("create-machine", arguments); !strings.Contains(text, "CONFLICT: create machine mcp-early. machine mcp-early is being deleted") {
		t.Error(text)
	}
	close(goOn)
	if gone := <-deleted; gone["alreadyGone"] != false {
		t.Errorf("deleted: %v", gone)
	}
	r.machine(arguments)
}
