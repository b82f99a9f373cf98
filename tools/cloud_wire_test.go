package tools_test

import (
	"context"
	"encoding/base64"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"smol-mcp/fleet"
	"smol-mcp/fleet/fleettest"
)

// overWire is a session over the cloud's client and a fake service with real guests.
func overWire(t *testing.T, o rigOptions) *chooser {
	t.Helper()
	o.mode, o.wire = "cloud", true
	return &chooser{rig: newRig(t, o)}
}

// requests counts what was sent while do ran.
func (c *chooser) requests(do func()) int {
	before := len(c.wire.Requests())
	do()
	return len(c.wire.Requests()) - before
}

// Names are looked up once, and calls send no more than they need: the earlier server sent
// four requests for a command and six for a machine.
func TestRequestsInTheCloud(t *testing.T) {
	c := overWire(t, rigOptions{})
	c.call("list-machines", nil) // whose key it is
	c.targets()                  // and what the service can do: once in a process
	var name string
	for _, arguments := range []map[string]any{{"name": "chosen"}, nil} {
		if n := c.requests(func() { name = c.machine(arguments) }); n > 4 {
			t.Errorf("create-machine %v: %d requests: %v", arguments, n, c.wire.Requests())
		}
	}
	for _, test := range []struct {
		tool      string
		arguments map[string]any
		most      int
	}{
		{"run-command", map[string]any{"name": name, "command": "echo hello"}, 1},
		{"write-file", map[string]any{"name": name, "path": "/root/x", "content": "hello"}, 2},
		{"read-file", map[string]any{"name": name, "path": "/root/x"}, 2},
		{"get-machine", map[string]any{"name": name}, 2}, // one for the commands in it
		{"list-machines", nil, 1},
		{"machine-logs", map[string]any{"name": name}, 2},
	} {
		if n := c.requests(func() { c.call(test.tool, test.arguments) }); n > test.most {
			t.Errorf("%s: %d requests, at most %d are needed", test.tool, n, test.most)
		}
	}
	// Another session has to know whether the machine runs.
	other := &rig{t: t, memory: c.memory, wire: c.wire, options: c.options, store: c.store}
	other.session, other.client = other.connect(rigOptions{})
	if n := c.requests(func() { other.run(name, "true") }); n > 2 {
		t.Errorf("the first command of another session: %d requests", n)
	}
	if n := c.requests(func() { other.run(name, "true") }); n > 1 {
		t.Errorf("its second: %d requests", n)
	}
}

// What a user does with a machine, over the wire.
func TestWorkInTheCloud(t *testing.T) {
	c := overWire(t, rigOptions{})
	name := c.machine(nil)
	if out := c.run(name, "echo hello; echo oops >&2; exit 3"); out["stdout"] != "hello\n" || out["stderr"] != "oops\n" || out["exitCode"] != 3.0 {
		t.Errorf("ran: %v", out)
	}
	c.call("write-file", map[string]any{"name": name, "path": "/root/dir/x", "content": "a\x00b"})
	if out := c.call("read-file", map[string]any{"name": name, "path": "/root/dir/x"}); out["content"] != "a\x00b" || out["size"] != 3.0 {
		t.Errorf("read: %v", out)
	}
	c.call("stop-machine", map[string]any{"name": name})
	if out := c.run(name, "cat /root/dir/x"); out["startedMachine"] != true { // W34
		t.Errorf("ran in a stopped machine: %v", out)
	}
	c.wire.Advance(10 * time.Minute)
	if out := c.call("delete-machine", map[string]any{"name": name}); out["costMicros"] == nil || out["costMicros"].(float64) <= 0 {
		t.Errorf("deleted: %v", out)
	}
	if out := c.call("run-once", map[string]any{"image": "alpine:3.20", "command": "echo once"}); out["stdout"] != "once\n" {
		t.Errorf("ran once: %v", out)
	}
	if left := c.wire.Machines(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// Lost answers lose no machine: the create is found again by its name, and a deletion is
// done or goes on.
func TestLostAnswersInTheCloud(t *testing.T) {
	c := overWire(t, rigOptions{})
	for _, drop := range []string{"before", "after"} {
		c.wire.Fault(fleettest.CloudFault{Method: "POST", Path: "/v1/machines$", Drop: drop})
		name := c.machine(nil)
		if left := c.wire.Machines(); len(left) != 1 || left[name].Name != name {
			t.Errorf("create, lost %s: %v", drop, left)
		}
		c.wire.Fault(fleettest.CloudFault{Method: "DELETE", Drop: drop})
		c.call("delete-machine", map[string]any{"name": name})
		if left := c.wire.Machines(); len(left) > 0 {
			t.Errorf("delete, lost %s: %v", drop, left)
		}
	}
	recs, err := c.store.Records(t.Context())
	if err != nil || len(recs) > 0 {
		t.Errorf("records: %v %v", recs, err)
	}
}

// What the service cannot do is refused before it is sent, and nothing stays on record.
func TestRefusalsOverTheWire(t *testing.T) {
	c := overWire(t, rigOptions{})
	for want, more := range map[string]map[string]any{
		"publish ports of a machine with blocked egress": {"ports": []any{map[string]any{"guest": 80}}},
		"choose the host's port":                         {"ports": []any{map[string]any{"guest": 80, "host": 8080}}, "network": "open"},
		"no host path may be used":                       {"mounts": []any{map[string]any{"source": "/", "target": "/mnt"}}},
		"size the overlay disk":                          {"overlayGb": 3},
		"set the workload's command":                     {"cmd": []any{"sleep", "1"}},
		"files of this computer":                         {"image": "/images/x.tar"},
	} {
		arguments := with(image)
		for k, v := range more {
			arguments[k] = v
		}
		if text := c.refused("create-machine", arguments); !strings.Contains(text, want) {
			t.Errorf("%s: refused with %q", want, text)
		}
	}
	recs, err := c.store.Records(t.Context())
	if n := c.wire.Count("POST", "/v1/machines"); n > 0 || len(recs) > 0 || err != nil {
		t.Errorf("%d creates sent, records %v, %v", n, recs, err)
	}
}

// A full account says so with our own machines.
func TestQuotaOverTheWire(t *testing.T) {
	c := overWire(t, rigOptions{})
	c.wire.Plan(fleettest.CloudTenant, 1, 1)
	name := c.machine(map[string]any{"start": false})
	if text := c.refused("create-machine", image); !strings.HasPrefix(text, "QUOTA: ") || !strings.Contains(text, name+" (this-session") {
		t.Errorf("refused with %q", text)
	}
}

// A revoked key stops everything with one clear error, and few requests; a new key of the
// account goes on where the old one was.
func TestRevokedKeyOverTheWire(t *testing.T) {
	var key atomic.Value
	key.Store(fleettest.CloudToken)
	c := overWire(t, rigOptions{key: func(context.Context) (string, error) { return key.Load().(string), nil }})
	name := c.machine(nil)
	c.wire.RevokeKey(fleettest.CloudToken)
	sent := c.requests(func() {
		for range 5 {
			if text := c.refused("get-machine", map[string]any{"name": name}); !strings.HasPrefix(text, "CLOUD_UNAUTHORIZED: ") || !strings.Contains(text, "SMOL_CLOUD_TOKEN") {
				t.Errorf("refused with %q", text)
			}
		}
	})
	if sent > 2 {
		t.Errorf("%d requests with a refused key", sent)
	}
	if recs, err := c.store.Records(t.Context()); err != nil || len(recs) != 1 {
		t.Errorf("records: %v %v", recs, err)
	}
	c.wire.AddKey("smk_second", fleettest.CloudKey{Tenant: fleettest.CloudTenant})
	key.Store("smk_second")
	c.run(name, "true")
	c.wire.AddKey("smk_theirs", fleettest.CloudKey{Tenant: "tenant-b"})
	key.Store("smk_theirs")
	if text := c.refused("delete-machine", map[string]any{"name": name}); !strings.HasPrefix(text, "CLOUD_UNAUTHORIZED: ") {
		t.Errorf("with another account's key: %q", text)
	}
	key.Store("smk_second")
	c.call("delete-machine", map[string]any{"name": name})
}

// The key stands in no answer, log, record, environment or address, nor does its base64.
func TestKeyIsNowhere(t *testing.T) {
	c := overWire(t, rigOptions{level: slog.LevelDebug})
	name := c.machine(map[string]any{"env": map[string]any{"A": "b"}})
	var heard strings.Builder
	note := func(tool string, arguments map[string]any) {
		heard.WriteString(words(c.try(tool, arguments)) + "\n")
	}
	echo := fleettest.CloudToken // a service that repeats the key in its errors
	for _, status := range []int{400, 401, 403, 404, 409, 422, 500} {
		c.wire.Fault(fleettest.CloudFault{Status: status, Times: 2, Body: "you sent " + echo + " or " + base64.StdEncoding.EncodeToString([]byte(echo))})
		note("get-machine", map[string]any{"name": name})
		c.wire.ClearFaults()
		c.wire.AddKey(fleettest.CloudToken, fleettest.CloudKey{Tenant: fleettest.CloudTenant})
	}
	note("run-command", map[string]any{"name": name, "command": "env; cat /proc/self/environ"})
	note("create-machine", map[string]any{"image": "alpine:3.20", "name": name})
	note("list-machines", nil)
	res, err := c.client.ReadResource(t.Context(), targetsRequest())
	if err != nil {
		t.Fatal(err)
	}
	heard.WriteString(res.Contents[0].Text)
	for _, r := range c.wire.Requests() {
		heard.WriteString(r.Path + "?" + r.Query + "\n")
	}
	for _, m := range c.wire.Machines() {
		heard.WriteString(string(indented(t, m.Env)))
	}
	if err := c.store.Close(); err != nil {
		t.Error(err)
	}
	heard.WriteString(c.said.String())
	everything := map[string]string{"what was said": heard.String()}
	err = filepath.WalkDir(c.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		everything[path] = string(data)
		return err
	})
	if err != nil || len(everything) < 3 {
		t.Errorf("%d places looked at, %v", len(everything), err)
	}
	for place, text := range everything {
		for _, form := range []string{echo, strings.TrimPrefix(echo, "smk_"), base64.StdEncoding.EncodeToString([]byte(echo)),
			base64.RawStdEncoding.EncodeToString([]byte(echo)), base64.RawURLEncoding.EncodeToString([]byte("Bearer " + echo))} {
			if strings.Contains(text, form) {
				t.Errorf("the key is in %s", place)
			}
		}
	}
}

// A machine that its end has deleted is told of as such.
func TestEndOverTheWire(t *testing.T) {
	c := overWire(t, rigOptions{})
	name := c.machine(nil)
	m := c.call("get-machine", map[string]any{"name": name})
	if left := time.Until(time.Unix(int64(m["expiresAt"].(float64)), 0)); left < 59*time.Minute || left > time.Hour {
		t.Errorf("it ends in %v", left)
	}
	c.wire.Advance(61 * time.Minute)
	if text := c.refused("run-command", map[string]any{"name": name, "command": "true"}); fleet.Code(strings.SplitN(text, ":", 2)[0]) != fleet.CodeNotFound {
		t.Errorf("refused with %q", text)
	}
}
