package tools_test

import (
	"context"
	"strings"
	"testing"

	"smol-mcp/fleet"
	"smol-mcp/fleet/fleettest"
)

// Commands that could not be listed are not the same as none.
func TestCommandsNotKnown(t *testing.T) {
	r := newRig(t, rigOptions{})
	name := r.machine(nil)
	if out := r.call("get-machine", map[string]any{"name": name}); out["commandsNote"] != nil {
		t.Errorf("of a guest that answers: %v", out)
	}
	for what, c := range map[string]struct {
		fault fleettest.Fault
		want  string
	}{
		"silent":  {fleettest.Fault{Hook: func(ctx context.Context) { <-ctx.Done() }}, "did not answer within 3s"},
		"refused": {fleettest.Fault{Err: fleet.Errorf(fleet.CodeUnreachable, "exec", "the agent is gone")}, "the agent is gone"},
		"off":     {fleettest.Fault{Err: fleet.Errorf(fleet.CodeNotReady, "exec", "it does not run")}, ""},
		"shell":   {fleettest.Fault{Err: fleet.Errorf(fleet.CodeInternal, "exec", "failed to spawn sh: no such file")}, ""},
	} {
		c.fault.Method = "Exec"
		r.memory.Fault(c.fault)
		out := r.call("get-machine", map[string]any{"name": name})
		note, _ := out["commandsNote"].(string)
		if out["commands"] != nil || (note == "") != (c.want == "") || !strings.Contains(note, c.want) || note != "" && !strings.Contains(note, "some may run") {
			t.Errorf("%s: %v", what, out)
		}
		r.memory.ClearFaults()
	}
	r.call("stop-machine", map[string]any{"name": name})
	if out := r.call("get-machine", map[string]any{"name": name}); out["commandsNote"] != nil {
		t.Errorf("of one that is off: %v", out)
	}
}
