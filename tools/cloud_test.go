package tools_test

import (
	"context"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"smol-mcp/fleet"
	"smol-mcp/fleet/fleettest"
	"smol-mcp/store"
)

// inCloud creates a machine in the cloud and returns its name.
func (c *chooser) inCloud(arguments ...string) string {
	c.t.Helper()
	return c.call("create-machine", with(image, append(arguments, "target", "cloud")...))["machine"].(map[string]any)["name"].(string)
}

// Ephemeral machines get an end; kept ones do not.
func TestEndsAreAlwaysSet(t *testing.T) {
	c := inMode(t, "both")
	name := c.inCloud()
	m := c.call("get-machine", map[string]any{"name": name, "target": "cloud"})
	if left := m["expiresAt"].(float64) - float64(time.Now().Unix()); left < 3500 || left > 3600 {
		t.Errorf("it ends in %v s", left)
	}
	kept := c.inCloud("name", "kept")
	if m := c.call("get-machine", map[string]any{"name": kept, "target": "cloud"}); m["expiresAt"] != nil || m["ephemeral"] != false {
		t.Errorf("a kept machine: %v", m)
	}
}

// W19: results warn as a machine's end comes near, and say afterwards why it is gone.
func TestEndIsWarnedOf(t *testing.T) {
	c := inMode(t, "both")
	name := c.inCloud()
	text := func() string {
		res, err := c.client.CallTool(t.Context(), &mcp.CallToolParams{Name: "get-machine", Arguments: map[string]any{"name": name, "target": "cloud"}})
		if err != nil {
			t.Fatal(err)
		}
		if len(res.Content) == 1 {
			return ""
		}
		return res.Content[1].(*mcp.TextContent).Text
	}
	if warning := text(); warning != "" {
		t.Errorf("warned at once: %s", warning)
	}
	c.cloud.Change(name, func(m *fleet.Machine) {
		m.CreatedAt, m.ExpiresAt = time.Now().Add(-53*time.Minute), time.Now().Add(7*time.Minute+time.Second)
	})
	if warning := text(); !strings.Contains(warning, name) || !strings.Contains(warning, "about 7 min") || !strings.Contains(warning, "Nothing extends") {
		t.Errorf("near its end: %q", warning)
	}
	c.cloud.Change(name, func(m *fleet.Machine) { m.ExpiresAt = time.Now().Add(-time.Second) })
	text()
	if _, err := c.cloud.Delete(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	if text := c.refused("get-machine", map[string]any{"name": name, "target": "cloud"}); !strings.HasPrefix(text, "NOT_FOUND") || !strings.Contains(text, "time to live was over") {
		t.Errorf("after its end: %q", text)
	}
}

// An account that is full is told with what of ours fills it.
func TestQuotaNamesOurMachines(t *testing.T) {
	c := inMode(t, "both")
	mine := c.inCloud()
	if _, err := c.cloud.Create(t.Context(), fleet.Spec{Name: "foreign", Image: "alpine"}); err != nil {
		t.Fatal(err)
	}
	c.cloud.Fault(fleettest.Fault{Method: "Create", Err: &fleet.Error{Code: fleet.CodeQuota, Op: "create machine", Why: "machine count quota exceeded: your plan allows 2 machines"}})
	text := c.refused("create-machine", with(image, "target", "cloud"))
	if !strings.HasPrefix(text, "QUOTA: ") || !strings.Contains(text, mine+" (this-session, running)") || !strings.Contains(text, "1 of the account are not recorded here") || strings.Contains(text, "foreign") {
		t.Errorf("refused with %q", text)
	}
	recs, err := c.store.Records(t.Context())
	if err != nil || len(recs) != 1 {
		t.Errorf("records: %v %v", recs, err)
	}
}

// What the cloud cannot do is refused and not dropped, before anything is sent.
func TestCloudRefusals(t *testing.T) {
	c := inMode(t, "both")
	root := t.TempDir()
	for _, more := range []map[string]any{
		{"mounts": []any{map[string]any{"source": root, "target": "/mnt"}}},
		{"overlayGb": 2},
		{"cmd": []any{"sleep", "1"}},
		{"image": root + "/x.tar"},
	} {
		arguments := with(image, "target", "cloud")
		for k, v := range more {
			arguments[k] = v
		}
		if text := c.refused("create-machine", arguments); !strings.HasPrefix(text, "UNSUPPORTED: ") && !strings.HasPrefix(text, "INVALID: ") {
			t.Errorf("%v: refused with %q", more, text)
		}
	}
	if n := c.cloud.Count("Create"); n > 0 {
		t.Errorf("%d creates were sent", n)
	}
}

// A branch gets its end from its source; where that is not what its name promises, the
// result says so.
func TestEndsOfBranches(t *testing.T) {
	c := inMode(t, "cloud")
	for _, test := range []struct{ source, child, note string }{
		{"mcp-source", "mcp-child", ""},
		{"mcp-source", "kept", "kept is not kept for long"},
		{"source", "mcp-child", "has set no end to mcp-child"},
		{"source", "kept", ""},
	} {
		arguments := with(image, "name", test.source)
		arguments["branchable"] = true
		c.call("create-machine", arguments)
		out := c.call("branch-machine", map[string]any{"name": test.source, "childName": test.child})
		note, _ := out["note"].(string)
		if !strings.Contains(note, test.note) || test.note == "" && strings.Contains(note, "end") {
			t.Errorf("%s of %s: note %q", test.child, test.source, note)
		}
		for _, name := range []string{test.child, test.source} {
			c.call("delete-machine", map[string]any{"name": name})
		}
	}
}

// A machine that another computer has marked is somebody's.
func TestMachinesOfOtherComputers(t *testing.T) {
	c := inMode(t, "cloud")
	for name, owner := range map[string]string{"theirs": "another", "plain": ""} {
		if _, err := c.cloud.Create(t.Context(), fleet.Spec{Name: name, Image: "alpine"}); err != nil {
			t.Fatal(err)
		}
		c.cloud.Change(name, func(m *fleet.Machine) { m.Owner = owner })
	}
	for name, want := range map[string]string{"theirs": "another-session", "plain": "none"} {
		if m := c.call("get-machine", map[string]any{"name": name}); m["owner"] != want {
			t.Errorf("%s: owner %v", name, m["owner"])
		}
	}
}

// Of what one account has, the names that we make up tell which computer it is for.
func TestMadeUpNames(t *testing.T) {
	c := &chooser{rig: newRig(t, rigOptions{mode: "both", mark: "0123456789abcdef"})}
	for target, want := range map[string]string{"local": `^mcp-[a-z0-9]{12}$`, "cloud": `^mcp-0123[a-z0-9]{8}$`} {
		out := c.call("create-machine", map[string]any{"target": target, "image": "alpine", "start": false})
		name, _ := out["machine"].(map[string]any)["name"].(string)
		if !regexp.MustCompile(want).MatchString(name) || (target == "local") == strings.HasPrefix(name, "mcp-0123") {
			t.Errorf("%s: made up %q", target, name)
		}
	}
}

// unauthorized is what the cloud's client answers while the key is refused.
var unauthorized = &fleet.Error{Code: fleet.CodeCloudUnauthorized, Op: "use the cloud", Why: "the service does not accept the key: unknown API key", Next: "put a valid key into SMOL_CLOUD_TOKEN"}

// A key that is revoked while machines exist: every call says so, the machines of this
// computer go on, and the records stay until a key can delete.
func TestRevokedKey(t *testing.T) {
	c := inMode(t, "both")
	name := c.inCloud()
	kept := c.inCloud("name", "kept")
	c.cloud.Fault(fleettest.Fault{Err: unauthorized})
	for tool, arguments := range map[string]map[string]any{
		"list-machines": {}, "get-machine": {"name": name}, "create-machine": image, "run-command": {"name": name, "command": []string{"true"}},
		"run-once": with(image, "command", "true"), "read-file": {"name": name, "path": "/x"}, "write-file": {"name": name, "path": "/x", "content": ""},
		"start-machine": {"name": name}, "stop-machine": {"name": name}, "delete-machine": {"name": name}, "branch-machine": {"name": name},
		"machine-logs": {"name": name},
	} {
		if text := c.refused(tool, with(arguments, "target", "cloud")); !strings.HasPrefix(text, "CLOUD_UNAUTHORIZED: ") || !strings.Contains(text, "SMOL_CLOUD_TOKEN") {
			t.Errorf("%s: refused with %q", tool, text)
		}
	}
	c.call("create-machine", with(image, "target", "local"))
	err := c.session.Close(context.Background())
	if fleet.CodeOf(err) != fleet.CodeCloudUnauthorized {
		t.Errorf("the end said %v", err)
	}
	if got := c.made(); got != [2]int{0, 2} {
		t.Errorf("machines left: %v", got)
	}
	rec, found, err := c.store.Find(t.Context(), store.Key{Target: "cloud", Account: "t1", Name: name})
	if err != nil || !found || rec.Phase != store.Deleting {
		t.Errorf("the record: %+v %v %v", rec, found, err)
	}
	// Another key of the same account.
	c.cloud.ClearFaults()
	if err := c.options.Remover.Remove(t.Context(), rec); err != nil {
		t.Error(err)
	}
	if left := c.cloud.Machines(); len(left) != 1 || left[0].Name != kept {
		t.Errorf("left: %v", left)
	}
}

// A key of another account does not see our machines, and must neither forget nor delete.
func TestSwitchedTenant(t *testing.T) {
	c := inMode(t, "both")
	name := c.inCloud()
	c.tenant.Store(tenant{account: "t2"})
	c.cloud.Fault(fleettest.Fault{Method: "Get", Err: &fleet.Error{Code: fleet.CodeNotFound, Op: "get machine"}})
	c.cloud.Fault(fleettest.Fault{Method: "Delete", Err: &fleet.Error{Code: fleet.CodeNotFound, Op: "delete machine"}})
	for _, tool := range []string{"get-machine", "delete-machine"} { // not "gone": it runs, and is billed
		if text := c.refused(tool, map[string]any{"name": name, "target": "cloud"}); !strings.HasPrefix(text, "NOT_FOUND") || !strings.Contains(text, "on record for another account") {
			t.Errorf("%s: refused with %q", tool, text)
		}
	}
	if out := c.call("delete-machine", map[string]any{"name": "mcp-never", "target": "cloud"}); out["alreadyGone"] != true {
		t.Errorf("deleted: %v", out)
	}
	if err := c.session.Close(context.Background()); err == nil || !strings.Contains(err.Error(), `"t1"`) {
		t.Errorf("the end said %v", err)
	}
	rec, found, err := c.store.Find(t.Context(), store.Key{Target: "cloud", Account: "t1", Name: name})
	if err != nil || !found || len(c.cloud.Machines()) != 1 {
		t.Fatalf("the record: %+v %v %v", rec, found, err)
	}
	c.tenant.Store(tenant{account: "t1"})
	c.cloud.ClearFaults()
	if err := c.options.Remover.Remove(t.Context(), rec); err != nil || len(c.cloud.Machines()) > 0 {
		t.Errorf("with the first key: %v, left %v", err, c.cloud.Machines())
	}
}

// An account that changes between the look at it and the answer "not there" does not
// make a record go.
func TestTenantSwitchedMeanwhile(t *testing.T) {
	c := inMode(t, "both")
	name := c.inCloud()
	c.cloud.Fault(fleettest.Fault{Method: "Get", Hook: func(context.Context) { c.tenant.Store(tenant{account: "t2"}) }, Err: &fleet.Error{Code: fleet.CodeNotFound, Op: "get machine"}})
	rec, found, err := c.store.Find(t.Context(), store.Key{Target: "cloud", Account: "t1", Name: name})
	if err != nil || !found {
		t.Fatal(found, err)
	}
	if err := c.options.Remover.Remove(t.Context(), rec); fleet.CodeOf(err) != fleet.CodeCloudUnauthorized {
		t.Errorf("removed: %v", err)
	}
	if _, found, err := c.store.Find(t.Context(), rec.Key()); err != nil || !found {
		t.Errorf("the record: %v %v", found, err)
	}
}

// A followed log is let go of when the key is refused, and the client hears of it.
func TestRefusedKeyEndsFollowing(t *testing.T) {
	heard := make(chan *mcp.ResourceUpdatedNotificationParams, 10)
	c := &chooser{rig: newRig(t, rigOptions{mode: "cloud", protocol: "2025-11-25", memory: pretend, client: &mcp.ClientOptions{
		ResourceUpdatedHandler: func(_ context.Context, req *mcp.ResourceUpdatedNotificationRequest) { heard <- req.Params },
	}})}
	name := c.call("create-machine", image)["machine"].(map[string]any)["name"].(string)
	if err := c.client.Subscribe(t.Context(), &mcp.SubscribeParams{URI: "smol://machine/cloud/" + name + "/logs"}); err != nil {
		t.Fatal(err)
	}
	c.cloud.Fault(fleettest.Fault{Method: "Logs", Err: unauthorized})
	hear(t, heard)
	looks := c.cloud.Count("Logs")
	time.Sleep(50 * time.Millisecond) // five looks' time
	if more := c.cloud.Count("Logs") - looks; more > 0 {
		t.Errorf("%d more looks", more)
	}
}

// An error names only so many.
func TestManyQuotaMachines(t *testing.T) {
	c := inMode(t, "cloud")
	for range 15 {
		c.call("create-machine", image)
	}
	c.cloud.Fault(fleettest.Fault{Method: "Create", Err: &fleet.Error{Code: fleet.CodeQuota, Op: "create machine", Why: "concurrency limit reached"}})
	text := c.refused("create-machine", image)
	if n := strings.Count(text, "this-session"); n != 12 || !strings.Contains(text, "and 3 more") {
		t.Errorf("%d named: %q", n, text)
	}
}

// A list to which no fleet answered tells the words of all, and one that says no time shows
// none.
func TestListOfNone(t *testing.T) {
	c := inMode(t, "both")
	name := c.inCloud()
	c.cloud.Change(name, func(m *fleet.Machine) { m.CreatedAt = time.Time{} })
	if m := c.call("get-machine", map[string]any{"name": name, "target": "cloud"}); m["createdAt"] != 0.0 {
		t.Errorf("made at %v", m["createdAt"])
	}
	c.memory.Fault(fleettest.Fault{Method: "List", Err: &fleet.Error{Code: fleet.CodeUnavailable, Op: "start the engine", Why: "no engine here", Next: "install one"}})
	c.cloud.Fault(fleettest.Fault{Method: "List", Err: unauthorized})
	text := c.refused("list-machines", nil)
	for _, want := range []string{"UNAVAILABLE: list machines.", "local: ", "no engine here", "cloud: CLOUD_UNAUTHORIZED", "does not accept the key", "install one"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q does not say %q", text, want)
		}
	}
}
