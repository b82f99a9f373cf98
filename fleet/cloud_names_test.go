package fleet_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"smol-mcp/fleet"
	"smol-mcp/fleet/fleettest"
)

// Once a name is known, each call by it is one request, and what it costs to make a
// machine and use it is counted.
func TestCloudRequests(t *testing.T) {
	server := fleettest.StartCloud(t, fleettest.CloudOptions{})
	c := cloud(t, server)
	if _, err := c.Info(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		what     string
		do       func() error
		requests string
	}{
		{"info", func() error { _, err := c.Info(t.Context()); return err }, ""},
		{"create", func() error { _, err := c.Create(t.Context(), vm("vm")); return err }, "POST /machines"},
		{"start", func() error { _, err := c.Start(t.Context(), "vm", fleet.StartOptions{}); return err }, "POST /machines/ID/start, GET /machines/ID"},
		{"exec", func() error { _, err := c.Exec(t.Context(), "vm", run); return err }, "POST /machines/ID/exec"},
		{"get", func() error { _, err := c.Get(t.Context(), "vm"); return err }, "GET /machines/ID"},
		{"upload", func() error { return c.Upload(t.Context(), "vm", "/tmp/x", strings.NewReader("x"), 1) }, "PUT /machines/ID/files/tmp/x"},
		{"logs", func() error { _, err := c.Logs(t.Context(), "vm", fleet.LogQuery{Tail: 9}); return err }, "GET /machines/ID/events"},
		{"start again", func() error { _, err := c.Start(t.Context(), "vm", fleet.StartOptions{}); return err }, "GET /machines/ID"},
		{"stop", func() error { _, err := c.Stop(t.Context(), "vm", fleet.StopOptions{}); return err }, "POST /machines/ID/stop, GET /machines/ID"},
		{"delete", func() error { _, err := c.Delete(t.Context(), "vm"); return err }, "DELETE /machines/ID, GET /machines/ID"},
	} {
		got := sent(server, func() {
			if err := step.do(); err != nil {
				t.Errorf("%s: %v", step.what, err)
			}
		})
		if strings.Join(got, ", ") != step.requests {
			t.Errorf("%s: sent %q", step.what, got)
		}
	}

	made(t, c, "vm")
	fresh := cloud(t, server)
	if _, err := fresh.Account(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantSent(t, server, func() { _, _ = fresh.Exec(t.Context(), "vm", run) }, "GET /machines", "POST /machines/ID/exec")
	wantSent(t, server, func() { _, _ = fresh.Exec(t.Context(), "vm", run) }, "POST /machines/ID/exec")
	wantSent(t, server, func() { _, _ = fresh.Get(t.Context(), "none") }, "GET /machines")
}

// A name whose machine was replaced behind our back means the new one.
func TestCloudStaleName(t *testing.T) {
	server := fleettest.StartCloud(t, fleettest.CloudOptions{})
	c, other := cloud(t, server), cloud(t, server)
	made(t, c, "vm")
	if _, err := c.Exec(t.Context(), "vm", run); err != nil {
		t.Fatal(err)
	}
	for _, again := range []bool{true, false} {
		if _, err := other.Delete(t.Context(), "vm"); err != nil {
			t.Fatal(err)
		}
		if !again {
			break
		}
		made(t, other, "vm")
		wantSent(t, server, func() {
			if res, err := c.Exec(t.Context(), "vm", run); err != nil || res.ExitCode != 0 {
				t.Errorf("%+v, %v", res, err)
			}
		}, "POST /machines/ID/exec", "GET /machines", "POST /machines/ID/exec")
	}
	_, err := c.Exec(t.Context(), "vm", run)
	want(t, err, fleet.CodeNotFound, false, "no machine of this name")
	_, err = c.Delete(t.Context(), "vm")
	want(t, err, fleet.CodeNotFound, false)
}

// Machines are found by name, also by one like an id, and by id.
func TestCloudNames(t *testing.T) {
	server := fleettest.StartCloud(t, fleettest.CloudOptions{})
	idLike := "mach-" + strings.Repeat("0", 32)
	for _, name := range []string{"mach-1", idLike} {
		if err := server.Put(fleettest.CloudTenant, `{"name":"`+name+`","source":{"type":"image","reference":"a"}}`); err != nil {
			t.Fatal(err)
		}
	}
	c := cloud(t, server)
	for name, state := range server.Machines() {
		for range 2 {
			if m, err := c.Get(t.Context(), name); err != nil || m.ID != state.ID {
				t.Errorf("%s: %+v, %v", name, m, err)
			}
			if m, err := c.Get(t.Context(), state.ID); err != nil || m.Name != name {
				t.Errorf("%s: %+v, %v", state.ID, m, err)
			}
		}
	}
	one, two := "mach-"+strings.Repeat("1", 32), "mach-"+strings.Repeat("2", 32)
	twins := `{"machines":[{"id":"` + one + `","name":"twin","state":"stopped"},{"id":"` + two + `","name":"twin","state":"stopped"},{"id":"` + idLike + `","name":null,"state":"x"},{},7]}`
	server.Fault(fleettest.CloudFault{Method: "GET", Path: "/machines$", Times: -1, Status: 200, Body: twins})
	_, err := c.Get(t.Context(), "twin")
	want(t, err, fleet.CodeConflict, false, one, two, "use the id")
	list, err := c.List(t.Context())
	if err != nil || len(list) != 3 || list[0].Name != idLike || list[0].State != fleet.Unknown || list[0].Word != "x" {
		t.Errorf("%+v, %v", list, err)
	}
}

// Many who want the list at once share requests, and none gets a list that is older
// than its wish.
func TestCloudListShared(t *testing.T) {
	server := fleettest.StartCloud(t, fleettest.CloudOptions{})
	c := cloud(t, server)
	made(t, c, "first")
	server.Fault(fleettest.CloudFault{Method: "GET", Path: "/machines$", LatencyMs: 200, Times: -1})
	var wg sync.WaitGroup
	for range 40 {
		wg.Go(func() {
			if list, err := c.List(t.Context()); err != nil || len(list) != 1 {
				t.Errorf("%v, %v", list, err)
			}
		})
	}
	wg.Wait()
	if n := server.Count("GET", "/machines"); n > 3 {
		t.Errorf("%d requests for 40 lists", n)
	}

	// The first request is under way when the machine is made: the second sees it.
	server.ClearFaults()
	old := `[{"id":"mach-1","name":"first","state":"stopped"}]`
	server.Fault(fleettest.CloudFault{Method: "GET", Path: "/machines$", LatencyMs: 300, Status: 200, Body: old})
	before := server.Count("GET", "/machines")
	wg.Go(func() { _, _ = c.List(t.Context()) })
	for server.Count("GET", "/machines") == before {
		time.Sleep(time.Millisecond) // until it is under way
	}
	made(t, cloud(t, server), "second")
	if list, err := c.List(t.Context()); err != nil || len(list) != 2 {
		t.Errorf("%v, %v", list, err)
	}
	wg.Wait()
}

// Who gives up waiting for a list neither ends nor spoils it for others.
func TestCloudListLeft(t *testing.T) {
	server := fleettest.StartCloud(t, fleettest.CloudOptions{})
	c := cloud(t, server)
	made(t, c, "vm")
	server.Fault(fleettest.CloudFault{Method: "GET", Path: "/machines$", LatencyMs: 200, Times: -1})
	var wg sync.WaitGroup
	for i := range 12 {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if i%2 == 0 {
				time.AfterFunc(time.Duration(i)*20*time.Millisecond, cancel)
				_, err := c.List(ctx)
				if code := fleet.CodeOf(err); code != "" && code != fleet.CodeCancelled {
					t.Error(err)
				}
				return
			}
			if list, err := c.List(ctx); err != nil || len(list) != 1 {
				t.Errorf("%v, %v", list, err)
			}
		})
	}
	wg.Wait()
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if _, err := c.List(t.Context()); fleet.CodeOf(err) != fleet.CodeCancelled {
		t.Errorf("after Close: %v", err)
	}
}
