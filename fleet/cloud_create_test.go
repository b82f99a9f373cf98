package fleet_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"smol-mcp/fleet"
	"smol-mcp/fleet/fleettest"
)

// What was asked for is what is made, with its end and our mark.
func TestCloudCreate(t *testing.T) {
	server := fleettest.StartCloud(t, fleettest.CloudOptions{})
	c := cloud(t, server)
	spec := vm("vm")
	spec.Env = map[string]string{"A": "b"}
	spec.Network = fleet.Network{AllowHosts: []string{"example.com"}}
	spec.Ports = []fleet.Port{{Guest: 8080}}
	spec.StorageGB = 10
	m, err := c.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	if m.ExpiresAt.Sub(m.CreatedAt) != time.Hour || m.Network != "allow(example.com)" || m.Owner != "install-a" || m.Image != "alpine:3.20" {
		t.Errorf("%+v", m)
	}
	env := server.Machines()["vm"].Env
	if env["A"] != "b" || env["SMOL_MCP_OWNER"] != "install-a" || len(env["SMOL_MCP_CREATE"]) != 16 {
		t.Errorf("environment %v", env)
	}
	server.Advance(time.Hour)
	if _, err := c.Get(t.Context(), "vm"); fleet.CodeOf(err) != fleet.CodeNotFound {
		t.Errorf("after its time-to-live: %v", err)
	}
	made(t, c, "vm") // the name is free again, also for us
}

// A part of the wish that the service drops fails the create, and what was made is
// deleted: it would cost money for ever, or be open.
func TestCloudCreateDropped(t *testing.T) {
	for field, says := range map[string]string{
		"ttlSeconds":      "ttlSeconds 3600 (it says 0)",
		"autoStopSeconds": "autoStopSeconds 900 (it says 0)",
		"network":         `network allowCidrs (it says "open")`,
		"resources":       "cpus 1 (it says 4); memoryMb 512 (it says 8192)",
		"branchable":      "branchable",
		"ports":           "port 8080",
		"name":            "name vm",
	} {
		t.Run(field, func(t *testing.T) {
			server := fleettest.StartCloud(t, fleettest.CloudOptions{Drops: []string{field}})
			c := cloud(t, server, by(newClock()))
			spec := vm("vm")
			spec.Branchable = true
			if field == "ports" {
				spec.Ports, spec.Network.Open = []fleet.Port{{Guest: 8080}}, true
			}
			_, err := c.Create(t.Context(), spec)
			want(t, err, fleet.CodeUnsupported, false, says, "deleted again")
			if left := server.Machines(); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
	server := fleettest.StartCloud(t, fleettest.CloudOptions{Drops: []string{"ttlSeconds"}})
	server.Fault(fleettest.CloudFault{Method: "DELETE", Times: -1, Status: 503, Body: "node away"})
	_, err := cloud(t, server, by(newClock())).Create(t.Context(), vm("vm"))
	want(t, err, fleet.CodeUnsupported, true, "ttlSeconds", "could not be deleted", "node away")
}

// A create whose answer is lost makes one machine, whether or not it was carried out.
func TestCloudLostCreate(t *testing.T) {
	for what, c := range map[string]struct {
		faults []fleettest.CloudFault
		posts  int
		waits  []time.Duration
	}{
		"after": {[]fleettest.CloudFault{{Method: "POST", Path: "/machines$", Drop: "after"}}, 1, nil},
		"504":   {[]fleettest.CloudFault{{Method: "POST", Path: "/machines$", Status: 504, Done: true}}, 1, nil},
		"empty": {[]fleettest.CloudFault{{Method: "POST", Path: "/machines$", Status: 201, Done: true, Body: "{}"}}, 1, nil},
		"before": {[]fleettest.CloudFault{{Method: "POST", Path: "/machines$", Drop: "before"}}, 2,
			[]time.Duration{time.Second, 3 * time.Second, 10 * time.Second}},
		"late": {[]fleettest.CloudFault{{Method: "POST", Path: "/machines$", Drop: "after"}, {Method: "GET", Path: "/machines$", Times: 2, Status: 200, Body: "[]"}}, 1,
			[]time.Duration{time.Second, 3 * time.Second}},
		"after the second": {[]fleettest.CloudFault{{Method: "POST", Path: "/machines$", Drop: "after"}, {Method: "GET", Path: "/machines$", Times: 4, Status: 200, Body: "[]"}}, 2,
			[]time.Duration{time.Second, 3 * time.Second, 10 * time.Second}},
		"both": {[]fleettest.CloudFault{{Method: "POST", Path: "/machines$", Drop: "before"}, {Method: "POST", Path: "/machines$", Nth: 2, Drop: "after"}}, 2,
			[]time.Duration{time.Second, 3 * time.Second, 10 * time.Second}},
	} {
		t.Run(what, func(t *testing.T) {
			server := fleettest.StartCloud(t, fleettest.CloudOptions{})
			for _, f := range c.faults {
				server.Fault(f)
			}
			k := newClock()
			m, err := cloud(t, server, by(k)).Create(t.Context(), vm("vm"))
			if err != nil || m.Name != "vm" || m.ExpiresAt.IsZero() {
				t.Fatalf("%+v, %v", m, err)
			}
			if posts := server.Count("POST", "/machines"); posts != c.posts || len(server.Machines()) != 1 {
				t.Errorf("%d creates made %v", posts, server.Machines())
			}
			if waits := k.taken(); !slices.Equal(waits, c.waits) {
				t.Errorf("waited %v", waits)
			}
		})
	}
}

// What carries the name of a lost create but not its mark is somebody else's.
func TestCloudLostCreateOfOthers(t *testing.T) {
	others := `{"name":"vm","source":{"type":"image","reference":"a"},"env":{"SMOL_MCP_OWNER":"install-a"}}`
	server := fleettest.StartCloud(t, fleettest.CloudOptions{})
	if err := server.Put(fleettest.CloudTenant, others); err != nil {
		t.Fatal(err)
	}
	c := cloud(t, server, by(newClock()))
	_, err := c.Create(t.Context(), vm("vm"))
	want(t, err, fleet.CodeConflict, false, "already in use")
	server.Fault(fleettest.CloudFault{Method: "POST", Path: "/machines$", Drop: "before"})
	_, err = c.Create(t.Context(), vm("vm"))
	want(t, err, fleet.CodeConflict, false, "does not carry this call's mark")

	// They were faster than the second request: the list shows nothing until then.
	server.Fault(fleettest.CloudFault{Method: "POST", Path: "/machines$", Drop: "before"})
	server.Fault(fleettest.CloudFault{Method: "GET", Path: "/machines$", Times: 4, Status: 200, Body: "[]"})
	_, err = c.Create(t.Context(), vm("vm"))
	want(t, err, fleet.CodeConflict, false, "mark")
	if left := server.Machines(); len(left) != 1 || left["vm"].Env["SMOL_MCP_CREATE"] != "" {
		t.Errorf("left: %v", left)
	}
}

// Where the outcome stays open the error says that it may have been done.
func TestCloudCreateUnknown(t *testing.T) {
	server := fleettest.StartCloud(t, fleettest.CloudOptions{})
	k := newClock()
	c := cloud(t, server, by(k))
	server.Fault(fleettest.CloudFault{Method: "POST", Path: "/machines$", Times: -1, Status: 503, Body: "node away"})
	_, err := c.Create(t.Context(), vm("vm"))
	want(t, err, fleet.CodeUnreachable, true, "node away")
	if n := server.Count("POST", "/machines"); n != 3 {
		t.Errorf("sent %d times", n)
	}

	server.Fault(fleettest.CloudFault{Method: "GET", Path: "/machines$", Times: -1, Status: 503, Body: "list away"})
	_, err = c.Create(t.Context(), vm("vm"))
	want(t, err, fleet.CodeUnreachable, true, "node away", "list away")
	server.ClearFaults()

	ctx, cancel := context.WithCancel(t.Context())
	k.meant = func(time.Duration) { cancel() } // while it waits for the machine to appear
	server.Fault(fleettest.CloudFault{Method: "POST", Path: "/machines$", Drop: "before"})
	_, err = c.Create(ctx, vm("vm"))
	want(t, err, fleet.CodeCancelled, true, "answer was lost")
	k.meant = nil

	hidden := `[{"id":"mach-1","name":"vm","state":"stopped"}]` // without its environment nobody can tell whose it is
	server.Fault(fleettest.CloudFault{Method: "POST", Path: "/machines$", Drop: "before"})
	server.Fault(fleettest.CloudFault{Method: "GET", Path: "/machines$", Status: 200, Body: hidden})
	_, err = c.Create(t.Context(), vm("vm"))
	want(t, err, fleet.CodeConflict, true)
}

// What the service would drop or misunderstand is refused before it is sent.
func TestCloudCreateRefused(t *testing.T) {
	server := fleettest.StartCloud(t, fleettest.CloudOptions{})
	c := cloud(t, server)
	open := fleet.Network{Open: true}
	for what, c2 := range map[string]struct {
		change func(*fleet.Spec)
		code   fleet.Code
	}{
		"mounts":          {func(s *fleet.Spec) { s.Mounts = []fleet.Mount{{Source: "/", Target: "/x"}} }, fleet.CodeUnsupported},
		"overlay":         {func(s *fleet.Spec) { s.OverlayGB = 5 }, fleet.CodeUnsupported},
		"cmd":             {func(s *fleet.Spec) { s.Cmd = []string{"sleep"} }, fleet.CodeUnsupported},
		"ports, blocked":  {func(s *fleet.Spec) { s.Ports = []fleet.Port{{Guest: 80}} }, fleet.CodeUnsupported},
		"host port":       {func(s *fleet.Spec) { s.Ports, s.Network = []fleet.Port{{Guest: 80, Host: 81}}, open }, fleet.CodeUnsupported},
		"many ports":      {func(s *fleet.Spec) { s.Ports, s.Network = make([]fleet.Port, 5), open }, fleet.CodeUnsupported},
		"port 70000":      {func(s *fleet.Spec) { s.Ports, s.Network = []fleet.Port{{Guest: 70000}}, open }, fleet.CodeInvalid},
		"archive":         {func(s *fleet.Spec) { s.Image = "/tmp/image.tar" }, fleet.CodeUnsupported},
		"builtin":         {func(s *fleet.Spec) { s.Image = "builtin:busybox" }, fleet.CodeUnsupported},
		"no image":        {func(s *fleet.Spec) { s.Image = "" }, fleet.CodeInvalid},
		"our environment": {func(s *fleet.Spec) { s.Env = map[string]string{"SMOL_MCP_OWNER": "x"} }, fleet.CodeInvalid},
		"environment":     {func(s *fleet.Spec) { s.Env = map[string]string{"A-B": "x"} }, fleet.CodeInvalid},
	} {
		spec := vm("vm")
		c2.change(&spec)
		if _, err := c.Create(t.Context(), spec); fleet.CodeOf(err) != c2.code || fleet.MaybeDone(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if n := len(server.Requests()); n > 0 {
		t.Errorf("%d requests", n)
	}
}

// Limits of the account are told from mistakes, in the service's words.
func TestCloudQuota(t *testing.T) {
	for _, problem := range []bool{false, true} {
		server := fleettest.StartCloud(t, fleettest.CloudOptions{Problem: problem})
		c := cloud(t, server)
		server.Plan(fleettest.CloudTenant, 1, 1)
		made(t, c, "one")
		_, err := c.Create(t.Context(), vm("two"))
		want(t, err, fleet.CodeQuota, false, "your Standard plan allows 1 machines", "stopped ones count too", "422", "x-request-id")
		server.Plan(fleettest.CloudTenant, 9, 0)
		_, err = c.Create(t.Context(), vm("two"))
		want(t, err, fleet.CodeQuota, false, "concurrency limit")
		server.Broke(fleettest.CloudTenant, true)
		_, err = c.Create(t.Context(), vm("two"))
		want(t, err, fleet.CodeQuota, false, "budget", "402")
		server.Fault(fleettest.CloudFault{Method: "POST", Status: 422, Body: "Failed to deserialize the JSON body into the target type: missing field `source`"})
		_, err = c.Create(t.Context(), vm("two"))
		want(t, err, fleet.CodeInvalid, false, "missing field")
	}
}
