package fleet_test

import (
	"strings"
	"testing"
	"time"

	"smol-mcp/fleet"
	"smol-mcp/fleet/fleettest"
)

// notFounds are bodies of a 404 that is not about a machine: of a proxy, a gateway, or
// a server that stands where the service should.
func notFounds() []string {
	return []string{"<html>not here</html>", `{"message":"no route matched"}`, "page not found", ""}
}

// Where something else answers in the service's place no machine is taken for gone:
// its record would be dropped, and it would cost money without anybody knowing.
func TestCloudNotTheService(t *testing.T) {
	for _, body := range notFounds() {
		server := fleettest.StartCloud(t, fleettest.CloudOptions{})
		c := cloud(t, server, by(newClock()))
		made(t, c, "vm")
		id := server.Machines()["vm"].ID
		server.Fault(fleettest.CloudFault{Status: 404, Body: body, Times: -1})
		for what, do := range map[string]func() error{
			"list":         func() error { _, err := c.List(t.Context()); return err },
			"get":          func() error { _, err := c.Get(t.Context(), "vm"); return err },
			"get by id":    func() error { _, err := c.Get(t.Context(), id); return err },
			"delete":       func() error { _, err := c.Delete(t.Context(), "vm"); return err },
			"delete by id": func() error { _, err := c.Delete(t.Context(), id); return err },
			"whose":        func() error { _, err := cloud(t, server, by(newClock())).Account(t.Context()); return err },
		} {
			if err := do(); fleet.CodeOf(err) != fleet.CodeUnreachable {
				t.Errorf("%q: %s: %v", body, what, err)
			}
		}
		if len(server.Machines()) != 1 {
			t.Errorf("%q: %v", body, server.Machines())
		}
		server.ClearFaults()
		if _, err := c.Delete(t.Context(), "vm"); err != nil {
			t.Errorf("%q: when it is back: %v", body, err)
		}
	}
}

// A 404 to a delete counts only when the list does not show the machine.
func TestCloudDeleteContradicted(t *testing.T) {
	for _, body := range notFounds()[1:] {
		server := fleettest.StartCloud(t, fleettest.CloudOptions{})
		c := cloud(t, server, by(newClock()))
		made(t, c, "vm")
		server.Fault(fleettest.CloudFault{Method: "DELETE", Status: 404, Body: body})
		_, err := c.Delete(t.Context(), "vm")
		want(t, err, fleet.CodeInternal, true, `does not find the machine, and lists it as "stopped"`)

		// The same when only an earlier try may have been carried out.
		server.Fault(fleettest.CloudFault{Method: "DELETE", Status: 503})
		server.Fault(fleettest.CloudFault{Method: "DELETE", Nth: 2, Status: 404, Body: body})
		server.Fault(fleettest.CloudFault{Method: "GET", Path: "/machines/", Status: 404, Body: body})
		_, err = c.Delete(t.Context(), "vm")
		want(t, err, fleet.CodeInternal, true, "lists it as")
		server.ClearFaults()
		if _, err := c.Delete(t.Context(), "vm"); err != nil {
			t.Error(err)
		}
		_, err = c.Delete(t.Context(), "vm")
		want(t, err, fleet.CodeNotFound, false)
	}
}

// A machine that is listed without an id is there, though nothing can be asked of it.
func TestCloudListedWithoutID(t *testing.T) {
	server := fleettest.StartCloud(t, fleettest.CloudOptions{})
	c := cloud(t, server, by(newClock()))
	list := fleettest.CloudFault{Method: "GET", Path: "/machines$", Status: 200, Body: `{"machines":[{"id":null,"name":"vm","state":"started"}]}`, Times: -1}
	server.Fault(list)
	machines, err := c.List(t.Context())
	if err != nil || len(machines) != 1 || machines[0].Name != "vm" || machines[0].ID != "" {
		t.Errorf("%+v, %v", machines, err)
	}
	_, err = c.Get(t.Context(), "vm")
	want(t, err, fleet.CodeInternal, false, "without its id")
	_, err = c.Delete(t.Context(), "vm")
	want(t, err, fleet.CodeInternal, false, "without its id")
	server.Fault(fleettest.CloudFault{Method: "POST", Path: "/machines$", Drop: "after"})
	_, err = c.Create(t.Context(), vm("vm"))
	want(t, err, fleet.CodeInternal, true, "without an id")
	for _, sent := range server.Requests() {
		if strings.HasSuffix(sent.Path, "/machines/") {
			t.Errorf("sent %s %s", sent.Method, sent.Path)
		}
	}
}

// A refusal of any size is read in no time.
func TestCloudHugeRefusal(t *testing.T) {
	server := fleettest.StartCloud(t, fleettest.CloudOptions{})
	c := cloud(t, server, by(newClock()))
	for _, status := range []int{403, 409, 422, 500} {
		server.Fault(fleettest.CloudFault{Path: "/machines", Status: status, Body: strings.Repeat("Address: ", 20_000), Times: 3})
		begun := time.Now()
		_, err := c.List(t.Context())
		if took := time.Since(begun); err == nil || len(err.Error()) > 4096 || took > 2*time.Second {
			t.Errorf("HTTP %d took %v: %.100v", status, took, err)
		}
	}
}

// A filter between is not taken for a key that lacks a scope.
func TestCloudFiltered(t *testing.T) {
	server := fleettest.StartCloud(t, fleettest.CloudOptions{})
	c := cloud(t, server)
	made(t, c, "vm")
	server.Fault(fleettest.CloudFault{Path: "/exec", Status: 403, Body: "<html>blocked</html>"})
	_, err := c.Exec(t.Context(), "vm", run)
	want(t, err, fleet.CodeCloudUnauthorized, false, "web page", "something between refuses it")
	server.Fault(fleettest.CloudFault{Path: "/exec", Status: 403, Body: "missing scope: machine:exec"})
	_, err = c.Exec(t.Context(), "vm", run)
	want(t, err, fleet.CodeCloudUnauthorized, false, "missing scope", "use a key with the scope that it names")
}

// A branch of another installation's machine, whose answer is lost, is known by the marks
// that it has from its source; a machine of that name with other marks is not ours.
func TestCloudLostBranchOfOthers(t *testing.T) {
	server := fleettest.StartCloud(t, fleettest.CloudOptions{})
	other := cloud(t, server, func(o *fleet.CloudOptions) { o.Owner = "install-b" })
	spec := vm("source")
	spec.Branchable = true
	if _, err := other.Create(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	if _, err := other.Start(t.Context(), "source", fleet.StartOptions{}); err != nil {
		t.Fatal(err)
	}
	c := cloud(t, server, by(newClock()))
	server.Fault(fleettest.CloudFault{Method: "POST", Path: "/branches", Drop: "after"})
	if m, err := c.Branch(t.Context(), "source", fleet.BranchSpec{Name: "child"}); err != nil || m.Name != "child" {
		t.Errorf("%+v, %v", m, err)
	}
	made(t, c, "taken")
	server.Fault(fleettest.CloudFault{Method: "POST", Path: "/branches", Drop: "before"})
	_, err := c.Branch(t.Context(), "source", fleet.BranchSpec{Name: "taken"})
	want(t, err, fleet.CodeConflict, false, "mark")
	if n := len(server.Machines()); n != 3 {
		t.Errorf("%d machines", n)
	}
}

// A service that fails for a while takes nothing from a machine that boots or stops
// meanwhile; one that does not come back is not waited for long.
func TestCloudWeather(t *testing.T) {
	server := fleettest.StartCloud(t, fleettest.CloudOptions{})
	k := newClock()
	c := cloud(t, server, by(k))
	made(t, c, "vm")
	down := fleettest.CloudFault{Method: "GET", Path: "/machines/", Status: 502, Body: "<html>bad gateway</html>", Times: 8}
	server.Fault(down)
	if m, err := c.Start(t.Context(), "vm", fleet.StartOptions{}); err != nil || m.State != fleet.Running {
		t.Errorf("%+v, %v", m, err)
	}
	server.Fault(down)
	if m, err := c.Stop(t.Context(), "vm", fleet.StopOptions{}); err != nil || m.State != fleet.Stopped {
		t.Errorf("%+v, %v", m, err)
	}
	made(t, c, "late")
	server.Fault(fleettest.CloudFault{Method: "GET", Path: "/machines/", Status: 502, Times: -1})
	begun := k.now()
	_, err := c.Start(t.Context(), "late", fleet.StartOptions{})
	if took := k.now().Sub(begun); fleet.CodeOf(err) != fleet.CodeUnreachable || took < 30*time.Second || took > time.Minute {
		t.Errorf("after %v: %v", took, err)
	}
	server.ClearFaults()
	server.Fault(fleettest.CloudFault{Method: "GET", Path: "/machines/", Status: 401, Times: -1})
	begun = k.now()
	_, err = c.Start(t.Context(), "late", fleet.StartOptions{})
	if took := k.now().Sub(begun); fleet.CodeOf(err) != fleet.CodeCloudUnauthorized || took > time.Second {
		t.Errorf("after %v: %v", took, err)
	}
}
