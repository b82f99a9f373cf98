package tools_test

import (
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"smol-mcp/tools"
)

// as is another session of the rig's process.
func (r *rig) as(change func(*tools.Options)) *rig {
	r.t.Helper()
	other := &rig{t: r.t, memory: r.memory, fleet: r.fleet, store: r.store, options: r.options, dir: r.dir}
	change(&other.options)
	other.session, other.client = other.connect(rigOptions{})
	return other
}

func principal(name string) func(*tools.Options) {
	return func(o *tools.Options) { o.Principal = name }
}

// What is recorded for one principal is not there for another, by whatever way it is
// named, and stays untouched.
func TestPrincipals(t *testing.T) {
	r := newRig(t, rigOptions{})
	a, b := r.as(principal("token:a")), r.as(principal("token:b"))
	name := a.machine(map[string]any{"name": "mcp-of-a"})
	a.machine(map[string]any{"name": "kept"})
	r.machine(map[string]any{"name": "mcp-of-user"})

	for tool, arguments := range map[string]map[string]any{
		"get-machine": nil, "start-machine": nil, "stop-machine": nil, "branch-machine": nil, "machine-logs": nil,
		"run-command": {"command": "true"},
		"read-file":   {"path": "/etc/passwd"},
		"write-file":  {"path": "/tmp/x", "content": "x"},
		"pull-image":  {"image": "alpine:3.20"},
	} {
		all := map[string]any{"name": name}
		for k, v := range arguments {
			all[k] = v
		}
		if text := b.refused(tool, all); !strings.HasPrefix(text, "NOT_FOUND: ") || strings.Contains(text, "token:a") {
			t.Errorf("%s of another's machine: %s", tool, text)
		}
	}
	if out := b.call("delete-machine", map[string]any{"name": name}); out["alreadyGone"] != true {
		t.Errorf("delete-machine of another's machine: %v", out)
	}
	for who, sees := range map[*rig][]string{a: {"kept", "mcp-of-a"}, b: nil, r: {"kept", "mcp-of-a", "mcp-of-user"}} {
		var names []string
		list := who.call("list-machines", nil)
		for _, m := range list["machines"].([]any) {
			names = append(names, m.(map[string]any)["name"].(string))
		}
		if !slices.Equal(names, sees) || len(list["problems"].([]any)) != 0 {
			t.Errorf("%q sees %v, problems %v", who.options.Principal, names, list["problems"])
		}
	}
	for _, uri := range []string{"smol://machine/local/mcp-of-a/file/etc/passwd", "smol://machine/local/mcp-of-a/logs"} {
		if _, err := b.client.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: uri}); err == nil || !strings.Contains(err.Error(), "NOT_FOUND") {
			t.Errorf("%s: %v", uri, err)
		}
	}
	if text := b.refused("get-machine", map[string]any{"name": "mcp-of-aa"}); strings.Contains(text, "mcp-of-a,") || strings.Contains(text, "mcp-of-a?") {
		t.Errorf("a near name tells of another's machine: %s", text)
	}
	if text := b.refused("create-machine", map[string]any{"image": "alpine:3.20", "name": "mcp-of-a"}); !strings.HasPrefix(text, "CONFLICT") {
		t.Errorf("a taken name: %s", text)
	}
	if out := a.run(name, "echo there"); out["stdout"] != "there\n" {
		t.Errorf("after all that its owner finds %v", out)
	}
}

// The machines of a read-only token are looked at, not touched; others name their tools.
func TestPermit(t *testing.T) {
	r := newRig(t, rigOptions{})
	r.machine(map[string]any{"name": "kept"})
	for what, c := range map[string]struct {
		permit   tools.Permit
		listed   []string
		refused  string
		argument map[string]any
	}{
		"read-only": {tools.Permit{ReadOnly: true}, []string{"get-machine", "list-machines", "machine-logs", "read-file"}, "run-command", map[string]any{"name": "kept", "command": "true"}},
		"named":     {tools.Permit{Tools: []string{"get-machine", "run-once"}}, []string{"get-machine", "run-once"}, "delete-machine", map[string]any{"name": "kept"}},
		"none":      {tools.Permit{ReadOnly: true, Tools: []string{"run-once"}}, nil, "run-once", map[string]any{"image": "alpine:3.20", "command": "true"}},
	} {
		t.Run(what, func(t *testing.T) {
			limited := r.as(func(o *tools.Options) { o.Principal, o.Permit = "token:"+what, func() tools.Permit { return c.permit } })
			list, err := limited.client.ListTools(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, tool := range list.Tools {
				names = append(names, tool.Name)
			}
			for _, name := range c.listed {
				if !slices.Contains(names, name) {
					t.Errorf("%s is not listed", name)
				}
			}
			if slices.Contains(names, c.refused) || what == "named" && len(names) != 2 {
				t.Errorf("listed: %v", names)
			}
			if text := limited.refused(c.refused, c.argument); !strings.HasPrefix(text, "UNSUPPORTED: ") || !strings.Contains(text, "token does not permit") {
				t.Errorf("%s: %s", c.refused, text)
			}
			if text := limited.try("get-machine", map[string]any{"name": "kept"}); what != "none" && text.IsError {
				t.Errorf("get-machine: %s", words(text))
			}
		})
	}
	if r.call("get-machine", map[string]any{"name": "kept"})["state"] != "running" {
		t.Error("the machine does not run any more")
	}
}

// A token's machines are counted over its sessions.
func TestPermitMachines(t *testing.T) {
	r := newRig(t, rigOptions{})
	two := func(o *tools.Options) {
		o.Principal, o.Permit = "token:two", func() tools.Permit { return tools.Permit{Machines: 2} }
	}
	first, second := r.as(two), r.as(two)
	r.machine(nil)
	gone := first.machine(nil)
	second.machine(nil)
	for _, who := range []*rig{first, second} {
		if text := who.refused("create-machine", map[string]any{"image": "alpine:3.20"}); !strings.HasPrefix(text, "QUOTA: ") || !strings.Contains(text, gone) {
			t.Errorf("a third machine: %s", text)
		}
	}
	first.call("delete-machine", map[string]any{"name": gone})
	second.machine(nil)
	if n := len(r.names()); n != 3 {
		t.Errorf("%d machines, want 3: %v", n, r.names())
	}
}

// Sessions of a principal that share machines do not take them from each other.
func TestLease(t *testing.T) {
	r := newRig(t, rigOptions{})
	lease := r.as(principal("token:a"))
	shared := func(o *tools.Options) {
		o.Principal = "token:a"
		o.Lease = func(bool) *tools.Session { return lease.session }
	}
	first, second := r.as(shared), r.as(shared)
	name := first.machine(nil)
	first.machine(map[string]any{"name": "mcp-own"})
	second.run(name, "echo mine > /root/mark")
	if err := first.session.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if names := r.names(); !slices.Equal(names, []string{name}) {
		t.Fatalf("after the end of the first session there are %v", names)
	}
	if out := second.run(name, "cat /root/mark"); out["stdout"] != "mine\n" {
		t.Errorf("the second session finds %v", out)
	}
	if m := second.call("get-machine", map[string]any{"name": name}); m["owner"] != "this-session" {
		t.Errorf("shown as %v", m)
	}
	if err := lease.session.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if names := r.names(); len(names) != 0 {
		t.Errorf("after the end of the lease there are %v", names)
	}
}

// Clients of a lease that follow the same log do not end it for each other.
func TestFollowTogether(t *testing.T) {
	r, heard := follower(t, "2026-07-28")
	near, far := mcp.NewInMemoryTransports()
	if _, err := r.session.Server().Connect(t.Context(), near, nil); err != nil {
		t.Fatal(err)
	}
	other, err := mcp.NewClient(&mcp.Implementation{Name: "other", Version: "1"}, nil).Connect(t.Context(), far, &mcp.ClientSessionOptions{ProtocolVersion: "2026-07-28"})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	name := r.machine(nil)
	uri := "smol://machine/local/" + name + "/logs"
	for _, c := range []*mcp.ClientSession{r.client, other} {
		if err := c.Subscribe(t.Context(), &mcp.SubscribeParams{URI: uri}); err != nil {
			t.Fatal(err)
		}
	}
	looks := func() int { return r.memory.Count("Logs") }
	eventually(t, "it is followed", func() bool { return looks() > 4 })
	if err := other.Unsubscribe(t.Context(), &mcp.UnsubscribeParams{URI: uri}); err != nil {
		t.Fatal(err)
	}
	r.memory.Print(name, "new")
	if p := hear(t, heard); p.URI != uri {
		t.Errorf("heard %v", p)
	}
	if err := r.client.Unsubscribe(t.Context(), &mcp.UnsubscribeParams{URI: uri}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "nobody follows it any more", func() bool {
		before := looks()
		time.Sleep(100 * time.Millisecond) // ten times the pause between looks
		return looks() == before
	})
}

// What a token may do changes under its sessions.
func TestPermitChanges(t *testing.T) {
	r := newRig(t, rigOptions{})
	var now atomic.Pointer[tools.Permit]
	now.Store(&tools.Permit{})
	c := r.as(func(o *tools.Options) {
		o.Principal, o.Permit = "token:it", func() tools.Permit { return *now.Load() }
	})
	c.session, c.client = c.connect(rigOptions{protocol: "2025-11-25"}) // whose clients keep no lists
	listed := func(name string) bool {
		t.Helper()
		list, err := c.client.ListTools(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(list.Tools, func(tool *mcp.Tool) bool { return tool.Name == name })
	}
	name := c.machine(nil)
	for range 2 { // the change holds in both directions
		c.run(name, "true")
		now.Store(&tools.Permit{ReadOnly: true})
		if text := c.refused("run-command", map[string]any{"name": name, "command": "true"}); !strings.HasPrefix(text, "UNSUPPORTED: ") || listed("run-command") || !listed("get-machine") {
			t.Errorf("read-only: %s", text)
		}
		now.Store(&tools.Permit{})
		if !listed("run-command") {
			t.Error("run-command does not come back")
		}
	}
	now.Store(&tools.Permit{Machines: 1})
	if text := c.refused("create-machine", map[string]any{"image": "alpine:3.20"}); !strings.HasPrefix(text, "QUOTA: ") {
		t.Errorf("one machine: %s", text)
	}
	now.Store(&tools.Permit{Machines: 2})
	c.machine(nil)
}
