package fleet_test

import (
	"bytes"
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"smol-mcp/fleet"
	"smol-mcp/fleet/fleettest"
)

// A refusal for the rate holds all requests back for as long as the service says, in
// seconds or by a date, and nobody hears of it.
func TestCloudRate(t *testing.T) {
	for what, c := range map[string]struct {
		header string
		waits  []time.Duration
	}{
		"seconds":  {"7", []time.Duration{7 * time.Second}},
		"date":     {"date", []time.Duration{20 * time.Second}},
		"nothing":  {"", []time.Duration{time.Second}},
		"zero":     {"0", []time.Duration{time.Second}},
		"nonsense": {"soon", []time.Duration{time.Second}},
	} {
		server := fleettest.StartCloud(t, fleettest.CloudOptions{})
		k := newClock()
		c2 := cloud(t, server, by(k))
		made(t, c2, "vm")
		fault := fleettest.CloudFault{Path: "/v1/machines", Status: 429, Header: map[string]string{"Retry-After": c.header}}
		if c.header == "date" {
			now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC) // by the service's own clock, which is not ours
			fault.Header["Date"], fault.Header["Retry-After"] = now.Format(http.TimeFormat), now.Add(20*time.Second).Format(http.TimeFormat)
		}
		server.Fault(fault)
		k.taken()
		if _, err := c2.Exec(t.Context(), "vm", run); err != nil { // it was refused before it ran
			t.Errorf("%s: %v", what, err)
		}
		if waits := k.taken(); !slices.Equal(waits, c.waits) {
			t.Errorf("%s: waited %v", what, waits)
		}
	}
	server := fleettest.StartCloud(t, fleettest.CloudOptions{})
	k := newClock()
	c := cloud(t, server, by(k))
	made(t, c, "vm")
	server.Fault(fleettest.CloudFault{Method: "PUT", Status: 429, Times: 3})
	if err := c.Upload(t.Context(), "vm", "/tmp/x", strings.NewReader("x"), 1); err != nil {
		t.Error(err)
	}
	if waits := k.taken(); !slices.Equal(waits, []time.Duration{time.Second, 2 * time.Second, 4 * time.Second}) {
		t.Errorf("refused again and again it waited %v", waits)
	}
	if got, err := server.Guest("vm").ReadFile("/tmp/x"); err != nil || string(got) != "x" {
		t.Errorf("%q, %v", got, err)
	}
}

// The limit holds for all calls of the process; waiting for it ends with the caller.
func TestCloudRateShared(t *testing.T) {
	server := fleettest.StartCloud(t, fleettest.CloudOptions{})
	k := newClock()
	ctx, cancel := context.WithCancel(t.Context())
	c := cloud(t, server, by(k))
	made(t, c, "vm")
	server.Fault(fleettest.CloudFault{Method: "GET", Times: -1, Status: 429, Header: map[string]string{"Retry-After": "25"}, Body: "slow down"})
	k.meant = func(time.Duration) { cancel() }
	_, err := c.Get(ctx, "vm")
	want(t, err, fleet.CodeCancelled, false, "rate limit")
	k.meant = nil
	before := server.Count("POST", "/exec")
	if _, err := c.Exec(t.Context(), "vm", run); err != nil {
		t.Error(err)
	}
	if waits := k.taken(); server.Count("POST", "/exec") != before+1 || len(waits) == 0 {
		t.Errorf("another call waited %v", waits)
	}
	_, err = c.Get(t.Context(), "vm") // it never ends
	want(t, err, fleet.CodeRateLimited, false, "slow down", "429", "wait 25s")
	if n := server.Count("GET", ""); n > 8 {
		t.Errorf("asked %d times", n)
	}
	server.ClearFaults()
	server.Fault(fleettest.CloudFault{Method: "GET", Status: 429, Header: map[string]string{"Retry-After": "3600"}})
	before = server.Count("GET", "")
	_, err = c.Get(t.Context(), "vm")
	want(t, err, fleet.CodeRateLimited, false, "wait 1h0m0s")
	if n := server.Count("GET", "") - before; n != 1 {
		t.Errorf("asked %d times to be told to come back in an hour", n)
	}
}

// A whole period's allowance is used without a refusal that anybody hears of, and
// more slowly towards its end.
func TestCloudRateSpent(t *testing.T) {
	server := fleettest.StartCloud(t, fleettest.CloudOptions{})
	k := newClock()
	k.meant = server.Advance
	c := cloud(t, server, by(k))
	made(t, c, "vm")
	server.Rate(fleettest.CloudTenant, 30, 20*time.Second)
	for range 70 {
		if _, err := c.Get(t.Context(), "vm"); err != nil {
			t.Fatal(err)
		}
	}
	refused := 0
	for _, r := range server.Requests() {
		if r.Status == http.StatusTooManyRequests {
			refused++
		}
	}
	if refused > 4 {
		t.Errorf("%d of 70 were refused", refused)
	}
	if len(k.taken()) < 40 {
		t.Error("no slower towards the end")
	}
}

// Failures of the service are tried again where that is safe, and only there.
func TestCloudRetries(t *testing.T) {
	server := fleettest.StartCloud(t, fleettest.CloudOptions{})
	k := newClock()
	c := cloud(t, server, by(k))
	made(t, c, "vm")
	get := func() error { _, err := c.Get(t.Context(), "vm"); return err }
	exec := func() error { _, err := c.Exec(t.Context(), "vm", run); return err }
	read := func() error {
		var b bytes.Buffer
		_, err := c.Download(t.Context(), "vm", "/etc/hostname", &b, 0)
		return err
	}
	write := func() error { return c.Upload(t.Context(), "vm", "/tmp/x", strings.NewReader("x"), 1) }
	for _, step := range []struct {
		what  string
		fault fleettest.CloudFault
		do    func() error
		tries int
		code  fleet.Code
	}{
		{"500 of a read", fleettest.CloudFault{Method: "GET", Times: 2, Status: 500}, get, 3, ""},
		{"503 of a read", fleettest.CloudFault{Method: "GET", Times: 2, Status: 503, Header: map[string]string{"Retry-After": "3"}}, get, 3, ""},
		{"504 of a read", fleettest.CloudFault{Method: "GET", Times: 1, Status: 504}, get, 2, ""},
		{"a broken read", fleettest.CloudFault{Method: "GET", Times: 2, Drop: "after"}, get, 3, ""},
		{"for ever", fleettest.CloudFault{Method: "GET", Times: -1, Status: 502}, get, 3, fleet.CodeUnreachable},
		{"400 of a read", fleettest.CloudFault{Method: "GET", Times: -1, Status: 400, Body: "no"}, get, 1, fleet.CodeInvalid},
		{"501 of a read", fleettest.CloudFault{Method: "GET", Times: -1, Status: 501, Body: "no"}, get, 1, fleet.CodeUnsupported},
		{"503 of an upload", fleettest.CloudFault{Method: "PUT", Times: 2, Status: 503}, write, 3, ""},
		{"a broken upload", fleettest.CloudFault{Method: "PUT", Times: 2, Drop: "after"}, write, 3, ""},
		{"a file", fleettest.CloudFault{Method: "GET", Times: 2, Drop: "after"}, read, 3, ""},
		{"503 of a command", fleettest.CloudFault{Method: "POST", Times: -1, Status: 503}, exec, 1, fleet.CodeUnreachable},
		{"500 of a command", fleettest.CloudFault{Method: "POST", Times: -1, Status: 500}, exec, 1, fleet.CodeInternal},
		{"a lost command", fleettest.CloudFault{Method: "POST", Times: -1, Drop: "after"}, exec, 1, fleet.CodeUnreachable},
	} {
		server.Fault(step.fault)
		before := len(server.Requests())
		if err := step.do(); fleet.CodeOf(err) != step.code {
			t.Errorf("%s: %v", step.what, err)
		} else if strings.HasSuffix(step.what, "command") && !fleet.MaybeDone(err) {
			t.Errorf("%s: it does not say that it may have been done: %v", step.what, err)
		}
		if n := len(server.Requests()) - before; n != step.tries {
			t.Errorf("%s: %d tries, want %d", step.what, n, step.tries)
		}
		server.ClearFaults()
	}
	for _, wait := range k.taken() {
		if wait > 6*time.Second {
			t.Errorf("waited %v", wait)
		}
	}
}
