package fleet_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"smol-mcp/fleet"
	"smol-mcp/fleet/fleettest"
)

// A start that takes its time is looked at less and less often; how it went wrong is
// told in the service's words, with the last events.
func TestCloudStart(t *testing.T) {
	server := fleettest.StartCloud(t, fleettest.CloudOptions{Boot: 30 * time.Second})
	k := newClock()
	k.meant = server.Advance
	c := cloud(t, server, by(k))
	made(t, c, "vm")
	m, err := c.Start(t.Context(), "vm", fleet.StartOptions{})
	if err != nil || m.State != fleet.Running {
		t.Fatalf("%+v, %v", m, err)
	}
	waits := k.taken()
	if len(waits) < 10 || len(waits) > 25 || waits[0] != 250*time.Millisecond || waits[len(waits)-1] != 2*time.Second {
		t.Errorf("waited %v", waits)
	}
	spec := vm("bad")
	spec.Image = "fail-pull/x"
	if _, err := c.Create(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	_, err = c.Start(t.Context(), "bad", fleet.StartOptions{})
	want(t, err, fleet.CodeInternal, false, "start failed: pull fail-pull/x: access denied", "machine created", "until it is deleted")
	if m, err := c.Get(t.Context(), "bad"); err != nil || m.State != fleet.Failed || m.Word != "error" {
		t.Errorf("%+v, %v", m, err)
	}
}

// A service that never says that a machine is ready is asked by a command instead;
// with published ports its word is not waited for.
func TestCloudUnready(t *testing.T) {
	server := fleettest.StartCloud(t, fleettest.CloudOptions{Unready: true})
	k := newClock()
	c := cloud(t, server, by(k))
	made(t, c, "vm")
	got := sent(server, func() {
		if m, err := c.Start(t.Context(), "vm", fleet.StartOptions{}); err != nil || m.State != fleet.Running {
			t.Errorf("%+v, %v", m, err)
		}
	})
	if last := got[len(got)-1]; last != "POST /machines/ID/exec" || len(got) < 4 || len(got) > 8 {
		t.Errorf("sent %q", got)
	}
	// Where commands do not get through either, it is running all the same, and said so late.
	server.Fault(fleettest.CloudFault{Method: "POST", Path: "/exec", Times: -1, Status: 503})
	made(t, c, "deaf")
	begun := k.now()
	if m, err := c.Start(t.Context(), "deaf", fleet.StartOptions{}); err != nil || m.State != fleet.Running {
		t.Errorf("%+v, %v", m, err)
	}
	if took := k.now().Sub(begun); took < time.Minute || took > 2*time.Minute {
		t.Errorf("it took %v", took)
	}
	spec := vm("ports")
	spec.Network, spec.Ports = fleet.Network{Open: true}, []fleet.Port{{Guest: 80}}
	if _, err := c.Create(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	wantSent(t, server, func() { _, err := c.Start(t.Context(), "ports", fleet.StartOptions{}); mustNot(t, err) },
		"POST /machines/ID/start", "GET /machines/ID")
}

func mustNot(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// Starts and stops whose answers are lost are seen in the machine's state, and a
// start that never arrived is sent again.
func TestCloudLostChange(t *testing.T) {
	for _, drop := range []string{"before", "after"} {
		server := fleettest.StartCloud(t, fleettest.CloudOptions{})
		k := newClock()
		c := cloud(t, server, by(k))
		made(t, c, "vm")
		lose := func(path string) {
			server.Fault(fleettest.CloudFault{Method: "POST", Path: path, Drop: drop})
		}
		lose("/start")
		if m, err := c.Start(t.Context(), "vm", fleet.StartOptions{}); err != nil || m.State != fleet.Running {
			t.Errorf("start %s: %+v, %v", drop, m, err)
		}
		if n := server.Count("POST", "/start"); n != map[string]int{"before": 2, "after": 1}[drop] {
			t.Errorf("start %s: sent %d times", drop, n)
		}
		lose("/stop")
		if m, err := c.Stop(t.Context(), "vm", fleet.StopOptions{}); err != nil || m.State != fleet.Stopped {
			t.Errorf("stop %s: %+v, %v", drop, m, err)
		}
	}
}

// A service that cannot start anything is quoted, after the start was tried twice.
func TestCloudStartAway(t *testing.T) {
	server := fleettest.StartCloud(t, fleettest.CloudOptions{})
	k := newClock()
	c := cloud(t, server, by(k))
	made(t, c, "vm")
	server.Fault(fleettest.CloudFault{Method: "POST", Path: "/start", Times: -1, Status: 503, Body: "no node has room"})
	begun := k.now()
	_, err := c.Start(t.Context(), "vm", fleet.StartOptions{})
	want(t, err, fleet.CodeUnreachable, true, "no node has room")
	if n, took := server.Count("POST", "/start"), k.now().Sub(begun); n != 2 || took > time.Minute {
		t.Errorf("tried %d times in %v", n, took)
	}
}

// Memory that was kept is resumed by a start, also of another process.
func TestCloudSuspended(t *testing.T) {
	server := fleettest.StartCloud(t, fleettest.CloudOptions{})
	c := cloud(t, server)
	made(t, c, "vm")
	if _, err := c.Start(t.Context(), "vm", fleet.StartOptions{}); err != nil {
		t.Fatal(err)
	}
	if m, err := c.Stop(t.Context(), "vm", fleet.StopOptions{KeepMemory: true}); err != nil || m.State != fleet.Suspended {
		t.Fatalf("%+v, %v", m, err)
	}
	other := cloud(t, server)
	if m, err := other.Start(t.Context(), "vm", fleet.StartOptions{}); err != nil || m.State != fleet.Running {
		t.Errorf("%+v, %v", m, err)
	}
	if server.Count("POST", "/resume") != 1 || server.Count("POST", "/start") != 1 {
		t.Error("it was started and not resumed")
	}
	_, err := c.Start(t.Context(), "vm", fleet.StartOptions{Branchable: true})
	want(t, err, fleet.CodeConflict, false, "not created branchable")
}

// What others do with our machine meanwhile is noticed.
func TestCloudTouched(t *testing.T) {
	server := fleettest.StartCloud(t, fleettest.CloudOptions{})
	c, other := cloud(t, server, by(newClock())), cloud(t, server)
	made(t, c, "vm")
	if _, err := other.Start(t.Context(), "vm", fleet.StartOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := other.Stop(t.Context(), "vm", fleet.StopOptions{KeepMemory: true}); err != nil {
		t.Fatal(err)
	}
	if m, err := c.Start(t.Context(), "vm", fleet.StartOptions{}); err != nil || m.State != fleet.Running || server.Count("POST", "/resume") != 1 {
		t.Errorf("%+v, %v", m, err)
	}
	server.Fault(fleettest.CloudFault{Method: "POST", Path: "/stop", Status: 200, Body: "{}"}) // said, and not done
	_, err := c.Stop(t.Context(), "vm", fleet.StopOptions{})
	want(t, err, fleet.CodeTimeout, true, "still", "started")
	server.Fault(fleettest.CloudFault{Method: "POST", Path: "/stop", Status: 409, Body: "busy"})
	_, err = c.Stop(t.Context(), "vm", fleet.StopOptions{})
	want(t, err, fleet.CodeConflict, false, "busy")
}

// A deletion is seen to have happened, and its bill told, also when the answer was lost.
func TestCloudDelete(t *testing.T) {
	for what, fault := range map[string]fleettest.CloudFault{
		"answered": {Method: "PATCH"},
		"lost":     {Method: "DELETE", Drop: "after"},
		"never":    {Method: "DELETE", Drop: "before"},
		"503":      {Method: "DELETE", Status: 503, Done: true},
		"all lost": {Method: "DELETE", Drop: "after", Times: -1},
	} {
		server := fleettest.StartCloud(t, fleettest.CloudOptions{})
		k := newClock()
		c := cloud(t, server, by(k))
		made(t, c, "vm")
		if _, err := c.Start(t.Context(), "vm", fleet.StartOptions{}); err != nil {
			t.Fatal(err)
		}
		server.Advance(10 * time.Minute)
		server.Fault(fault)
		gone, err := c.Delete(t.Context(), "vm")
		if err != nil || gone.CostMicros < 6600 || gone.CostMicros > 6800 { // a sixth of four cents
			t.Errorf("%s: %+v, %v", what, gone, err)
		}
		if len(server.Machines()) > 0 {
			t.Errorf("%s: it is still there", what)
		}
	}
	server := fleettest.StartCloud(t, fleettest.CloudOptions{})
	c := cloud(t, server, by(newClock()))
	made(t, c, "vm")
	server.Fault(fleettest.CloudFault{Method: "DELETE", Status: 204})
	_, err := c.Delete(t.Context(), "vm")
	want(t, err, fleet.CodeInternal, true, "still there", "stopped")
	server.Fault(fleettest.CloudFault{Method: "DELETE", Times: -1, Status: 503, Body: "node away"})
	_, err = c.Delete(t.Context(), "vm")
	want(t, err, fleet.CodeUnreachable, true, "node away")
}

// Machines end by themselves: what is idle is stopped, what is old is deleted.
func TestCloudEnds(t *testing.T) {
	server := fleettest.StartCloud(t, fleettest.CloudOptions{})
	c := cloud(t, server)
	made(t, c, "vm")
	if _, err := c.Start(t.Context(), "vm", fleet.StartOptions{}); err != nil {
		t.Fatal(err)
	}
	server.Advance(14 * time.Minute)
	if _, err := c.Exec(t.Context(), "vm", run); err != nil { // use puts it off
		t.Error(err)
	}
	for _, step := range []struct {
		by    time.Duration
		state fleet.State
	}{{14 * time.Minute, fleet.Running}, {2 * time.Minute, fleet.Stopped}} {
		server.Advance(step.by)
		if m, err := c.Get(t.Context(), "vm"); err != nil || m.State != step.state {
			t.Errorf("%+v, %v", m, err)
		}
	}
	server.Advance(time.Hour)
	_, err := c.Exec(t.Context(), "vm", run)
	want(t, err, fleet.CodeNotFound, false)
}

// Branches by the route that there is, with the ends that the service gives them.
func TestCloudBranch(t *testing.T) {
	for _, old := range []bool{false, true} {
		server := fleettest.StartCloud(t, fleettest.CloudOptions{Old: old, BareKids: old})
		c := cloud(t, server, by(newClock()))
		spec := vm("source")
		spec.Branchable = true
		if _, err := c.Create(t.Context(), spec); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Start(t.Context(), "source", fleet.StartOptions{Branchable: true}); err != nil {
			t.Fatal(err)
		}
		for i, child := range []string{"one", "two"} {
			m, err := c.Branch(t.Context(), "source", fleet.BranchSpec{Name: child})
			if err != nil || m.Name != child || m.State != fleet.Running || m.ExpiresAt.IsZero() != old {
				t.Errorf("old %v: %+v, %v", old, m, err)
			}
			if n := server.Count("POST", "/branches"); old && n != 1 || !old && n != i+1 {
				t.Errorf("old %v: the newer route was tried %d times", old, n)
			}
		}
		m, err := c.Branch(t.Context(), "source", fleet.BranchSpec{Name: "three", StopSource: true})
		if old { // it cannot suspend, and leaves nothing half done
			want(t, err, fleet.CodeUnsupported, false, "could not be suspended")
		} else if source, getErr := c.Get(t.Context(), "source"); err != nil || getErr != nil || m.State != fleet.Running || source.State != fleet.Suspended {
			t.Errorf("%+v, %v; source %+v, %v", m, err, source, getErr)
		}
		if _, err := c.Get(t.Context(), "three"); old && fleet.CodeOf(err) != fleet.CodeNotFound {
			t.Errorf("left behind: %v", err)
		}
	}
}

// A branch whose answer is lost is found by its name and its source's mark; without
// a mark the caller has to look.
func TestCloudLostBranch(t *testing.T) {
	for _, bare := range []bool{false, true} {
		server := fleettest.StartCloud(t, fleettest.CloudOptions{BareKids: bare})
		c := cloud(t, server, by(newClock()))
		spec := vm("source")
		spec.Branchable = true
		if _, err := c.Create(t.Context(), spec); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Start(t.Context(), "source", fleet.StartOptions{}); err != nil {
			t.Fatal(err)
		}
		server.Fault(fleettest.CloudFault{Method: "POST", Path: "/branches", Drop: "before"})
		if m, err := c.Branch(t.Context(), "source", fleet.BranchSpec{Name: "one"}); err != nil || m.Name != "one" {
			t.Errorf("never carried out: %+v, %v", m, err)
		}
		server.Fault(fleettest.CloudFault{Method: "POST", Path: "/branches", Drop: "after"})
		m, err := c.Branch(t.Context(), "source", fleet.BranchSpec{Name: "two"})
		if bare {
			want(t, err, fleet.CodeConflict, true, "mark")
		} else if err != nil || m.Name != "two" || m.State != fleet.Running {
			t.Errorf("%+v, %v", m, err)
		}
		if n := len(server.Machines()); n != 3 {
			t.Errorf("%d machines", n)
		}
		var e *fleet.Error
		if _, err := c.Delete(t.Context(), "source"); !errors.As(err, &e) || e.Code != fleet.CodeConflict || !strings.Contains(e.Why, "one, two") {
			t.Errorf("a source with branches: %v", err)
		}
	}
}
