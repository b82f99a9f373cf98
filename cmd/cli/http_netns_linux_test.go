package cli

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A computer is a network of its own, joined to one other by a cable.
type computer struct{ name, address string }

// twoComputers makes two of them; they are gone with the test.
func twoComputers(t *testing.T) (server, client computer) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("networks can be made by root only")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("there is no ip program (iproute2)")
	}
	pid := os.Getpid()
	server, client = computer{fmt.Sprintf("smol-s%d", pid), "10.213.7.1"}, computer{fmt.Sprintf("smol-c%d", pid), "10.213.7.2"}
	t.Cleanup(func() {
		for _, c := range []computer{server, client} {
			_ = exec.Command("ip", "netns", "delete", c.name).Run() // it may not have been made
		}
	})
	for _, line := range []string{
		"netns add " + server.name, "netns add " + client.name,
		"-n " + server.name + " link add cable type veth peer name cable netns " + client.name,
		"-n " + server.name + " address add " + server.address + "/24 dev cable", "-n " + client.name + " address add " + client.address + "/24 dev cable",
		"-n " + server.name + " link set lo up", "-n " + server.name + " link set cable up", "-n " + client.name + " link set cable up",
	} {
		if out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput(); err != nil {
			t.Skipf("ip %s: %v: %s", line, err, out)
		}
	}
	return server, client
}

// from is an HTTP client whose connections begin at a computer.
func (c computer) from(t *testing.T) *http.Client {
	t.Helper()
	transport := &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		type dialed struct {
			conn net.Conn
			err  error
		}
		done := make(chan dialed, 1)
		go func() { // its thread is of that network for good, and ends with it
			runtime.LockOSThread()
			file, err := os.Open("/run/netns/" + c.name)
			if err == nil {
				defer file.Close()
				err = unix.Setns(int(file.Fd()), unix.CLONE_NEWNET)
			}
			if err != nil {
				done <- dialed{nil, err}
				return
			}
			conn, err := new(net.Dialer).DialContext(ctx, network, address)
			done <- dialed{conn, err}
		}()
		d := <-done
		return d.conn, d.err
	}}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// An agent on one computer drives machines on another, and nobody else does.
func TestTwoComputers(t *testing.T) {
	there, here := twoComputers(t)
	p := newHTTPPlace(t, "SMOL_MCP_HTTP_SESSION_IDLE_SECS=2", "SMOL_MCP_HTTP_HOST="+there.address, "SMOL_MCP_HTTP_ALLOWED_HOSTS="+there.address+",machines.example")
	s := p.start("ip", "netns", "exec", there.name)
	if !strings.Contains(s.url, there.address) {
		t.Fatalf("it listens at %s", s.url)
	}
	if err := s.raw(theToken).open(); err == nil {
		t.Fatal("the server is reached from outside of its network")
	}
	s.http = here.from(t)

	for what, c := range map[string]struct {
		token, host string
		status      int
	}{
		"no token": {"", "", 401}, "a wrong one": {theToken + "x", "", 401}, "the right one": {theToken, "", 200},
		"a host of the list": {theToken, "machines.example", 200}, "another host": {theToken, "evil.example", 403}, "the loopback's name": {theToken, "localhost", 403},
	} {
		req, err := http.NewRequestWithContext(t.Context(), "POST", s.url, strings.NewReader(initialize))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Accept", "application/json, text/event-stream")
		if c.token != "" {
			req.Header.Set("Authorization", "Bearer "+c.token)
		}
		req.Host = c.host
		res, err := s.http.Do(req)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		res.Body.Close()
		if res.StatusCode != c.status {
			t.Errorf("%s: %s", what, res.Status)
		}
	}

	// A session that is idle ends with its machine; a call that takes longer is carried out.
	idle, busy := s.raw(theToken), s.raw(theToken)
	for name, r := range map[string]*rawSession{"mcp-idle": idle, "mcp-busy": busy} {
		if err := r.open(); err != nil {
			t.Fatal(err)
		}
		if _, err := r.call(t.Context(), "create-machine", map[string]any{"image": "alpine:3.20", "network": "open", "name": name}); err != nil {
			t.Fatal(err)
		}
	}
	out, err := busy.call(t.Context(), "run-command", map[string]any{"name": "mcp-busy", "command": "sleep 5; echo done"})
	if err != nil || !strings.Contains(out, `\"stdout\":\"done`) {
		t.Errorf("the long call: %v %s", err, out)
	}
	if got := p.machines(); !slices.Equal(got, []string{"mcp-busy"}) {
		t.Errorf("afterwards there are %v", got)
	}
	if _, _, err := idle.post(t.Context(), `{"jsonrpc":"2.0","id":9,"method":"ping"}`); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("the idle session: %v", err)
	}
	eventually(t, "the other goes in the end", 20*time.Second, func() bool { return len(p.machines()) == 0 })
}
