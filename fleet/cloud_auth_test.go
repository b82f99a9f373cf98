package fleet_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"smol-mcp/fleet"
	"smol-mcp/fleet/fleettest"
)

// Without a key, and at an address to which none may be sent, nothing is sent.
func TestCloudNotConfigured(t *testing.T) {
	server := fleettest.StartCloud(t, fleettest.CloudOptions{})
	for what, change := range map[string]func(*fleet.CloudOptions){
		"no source": func(o *fleet.CloudOptions) { o.Token = nil },
		"empty":     func(o *fleet.CloudOptions) { o.Token = key(" \n") },
		"two lines": func(o *fleet.CloudOptions) { o.Token = key("smk_a\nsmk_b") },
		"not a key": func(o *fleet.CloudOptions) { o.Token = key("smk_ä") },
		"broken source": func(o *fleet.CloudOptions) {
			o.Token = func(context.Context) (string, error) { return "", errors.New("disk") }
		},
		"plain http":     func(o *fleet.CloudOptions) { o.URL = "http://api.example.com" },
		"another scheme": func(o *fleet.CloudOptions) { o.URL = "ftp://127.0.0.1" },
		"key in address": func(o *fleet.CloudOptions) { o.URL = "https://user:pass@api.example.com" },
	} {
		c := cloud(t, server, change)
		_, err := c.List(t.Context())
		want(t, err, fleet.CodeCloudNotConfigured, false)
		_, err = c.Account(t.Context())
		want(t, err, fleet.CodeCloudNotConfigured, false)
		want(t, c.Usable(t.Context()), fleet.CodeCloudNotConfigured, false, "SMOL_CLOUD_")
		if t.Failed() {
			t.Fatal(what)
		}
	}
	if n := len(server.Requests()); n > 0 {
		t.Errorf("%d requests", n)
	}
}

// A key that the service refuses is told once, and then every call is answered
// without a request; after half a minute one question asks whether it is good again.
func TestCloudRefusedKey(t *testing.T) {
	for state, words := range map[string]string{"": "unknown_key", "expired": "expired_key", "revoked": "revoked_key"} {
		server := fleettest.StartCloud(t, fleettest.CloudOptions{})
		k, source := newClock(), &keySource{token: "smk_0000"}
		if state != "" {
			server.AddKey("smk_0000", fleettest.CloudKey{Tenant: fleettest.CloudTenant, State: state})
		}
		c := cloud(t, server, by(k), from(source))
		list := func() {
			_, err := c.List(t.Context())
			want(t, err, fleet.CodeCloudUnauthorized, false, words, "x-request-id req-", "SMOL_CLOUD_TOKEN", "list machines")
		}
		wantSent(t, server, list, "GET /me")
		wantSent(t, server, func() {
			list()
			_, err := c.Create(t.Context(), vm("vm"))
			want(t, err, fleet.CodeCloudUnauthorized, false, words, "create machine vm")
			_, err = c.Exec(t.Context(), "vm", run)
			want(t, err, fleet.CodeCloudUnauthorized, false, words)
			_, err = c.Delete(t.Context(), "vm")
			want(t, err, fleet.CodeCloudUnauthorized, false, words)
			_, err = c.Info(t.Context())
			want(t, err, fleet.CodeCloudUnauthorized, false, words)
			want(t, c.Usable(t.Context()), fleet.CodeCloudUnauthorized, false, words)
		})
		k.ahead(31 * time.Second)
		wantSent(t, server, list, "GET /me")
		server.AddKey("smk_0000", fleettest.CloudKey{Tenant: fleettest.CloudTenant})
		wantSent(t, server, list)
		k.ahead(31 * time.Second)
		wantSent(t, server, func() {
			if _, err := c.List(t.Context()); err != nil || c.Usable(t.Context()) != nil {
				t.Error(err)
			}
		}, "GET /me", "GET /machines")
	}
}

// A key revoked while machines exist: the account stays known, and a new key at the
// source is used at once, also by the call that met the old one.
func TestCloudRevoked(t *testing.T) {
	server := fleettest.StartCloud(t, fleettest.CloudOptions{})
	source := &keySource{token: fleettest.CloudToken}
	c := cloud(t, server, from(source))
	made(t, c, "vm")
	account, err := c.Account(t.Context())
	if err != nil || account == "" {
		t.Fatalf("%q, %v", account, err)
	}
	server.RevokeKey(fleettest.CloudToken)
	wantSent(t, server, func() {
		for range 3 {
			_, err := c.Get(t.Context(), "vm")
			want(t, err, fleet.CodeCloudUnauthorized, false, "revoked_key")
		}
		if again, err := c.Account(t.Context()); err != nil || again != account {
			t.Errorf("account %q, %v", again, err)
		}
	}, "GET /machines/ID")
	server.AddKey("smk_1111", fleettest.CloudKey{Tenant: fleettest.CloudTenant})
	source.set("smk_1111")
	wantSent(t, server, func() {
		if m, err := c.Get(t.Context(), "vm"); err != nil || m.Name != "vm" {
			t.Error(err)
		}
	}, "GET /me", "GET /machines/ID")

	server.AddKey("smk_2222", fleettest.CloudKey{Tenant: fleettest.CloudTenant})
	var asked atomic.Int64
	turned := cloud(t, server, func(o *fleet.CloudOptions) {
		o.Token = func(context.Context) (string, error) { // it changes between the second request and its answer
			if asked.Add(1) <= 2 {
				return "smk_1111", nil
			}
			return "smk_2222", nil
		}
	})
	if _, err := turned.Account(t.Context()); err != nil {
		t.Fatal(err)
	}
	server.RevokeKey("smk_1111")
	wantSent(t, server, func() {
		if list, err := turned.List(t.Context()); err != nil || len(list) != 1 {
			t.Errorf("%v, %v", list, err)
		}
	}, "GET /machines", "GET /me", "GET /machines")
}

// A key of another tenant is refused without a look at its machines: they would
// make those that are recorded pass for deleted.
func TestCloudTenantSwitched(t *testing.T) {
	server := fleettest.StartCloud(t, fleettest.CloudOptions{})
	server.AddKey("smk_bbbb", fleettest.CloudKey{Tenant: "tenant-b"})
	source := &keySource{token: fleettest.CloudToken}
	c := cloud(t, server, from(source))
	made(t, c, "vm")
	account, _ := c.Account(t.Context())
	source.set("smk_bbbb")
	wantSent(t, server, func() {
		_, err := c.Get(t.Context(), "vm")
		want(t, err, fleet.CodeCloudUnauthorized, false, account, "restart")
		_, err = c.Delete(t.Context(), "vm")
		want(t, err, fleet.CodeCloudUnauthorized, false, account)
	}, "GET /me")
	if again, _ := c.Account(t.Context()); again != account {
		t.Errorf("account %q became %q", account, again)
	}
	other := cloud(t, server, from(source))
	if theirs, err := other.Account(t.Context()); err != nil || theirs == account {
		t.Errorf("both tenants are %q, %v", theirs, err)
	}
	source.set(fleettest.CloudToken)
	if _, err := c.Get(t.Context(), "vm"); err != nil {
		t.Error(err)
	}
}

// The account of a key that an earlier process has seen is known without a request,
// and the file that says so does not have the key.
func TestCloudAccountRemembered(t *testing.T) {
	server := fleettest.StartCloud(t, fleettest.CloudOptions{})
	dir := t.TempDir()
	keep := func(o *fleet.CloudOptions) { o.Dir = func() (string, error) { return dir, nil } }
	account, err := cloud(t, server, keep).Account(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c := cloud(t, server, keep)
	wantSent(t, server, func() {
		if again, err := c.Account(t.Context()); err != nil || again != account {
			t.Errorf("account %q, then %q, %v", account, again, err)
		}
	})
	wantSent(t, server, func() { _, err = c.List(t.Context()) }, "GET /machines")
	file := filepath.Join(dir, "cloud-accounts.json")
	if info, err := os.Stat(file); err != nil || info.Mode().Perm()&0o077 != 0 {
		t.Errorf("%v, %v", info, err)
	}
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if again, err := cloud(t, server, keep).Account(t.Context()); err != nil || again != account {
		t.Errorf("with a damaged file: %q, %v", again, err)
	}
	id, err := c.Identity(t.Context())
	if err != nil || id.Account != account || id.Tenant != fleettest.CloudTenant || id.Status != "active" || len(id.Scopes) == 0 {
		t.Errorf("%+v, %v", id, err)
	}
}

// A missing scope is named, and nothing is made that could not be deleted.
func TestCloudScopes(t *testing.T) {
	server := fleettest.StartCloud(t, fleettest.CloudOptions{})
	server.AddKey(fleettest.CloudToken, fleettest.CloudKey{Tenant: fleettest.CloudTenant, Scopes: []string{"machine:create", "machine:read"}})
	c := cloud(t, server)
	wantSent(t, server, func() {
		_, err := c.Create(t.Context(), vm("vm"))
		want(t, err, fleet.CodeCloudUnauthorized, false, "machine:delete")
	}, "GET /me")
	if err := server.Put(fleettest.CloudTenant, `{"name":"old","source":{"type":"image","reference":"a"}}`); err != nil {
		t.Fatal(err)
	}
	_, err := c.Exec(t.Context(), "old", run)
	want(t, err, fleet.CodeCloudUnauthorized, false, "missing scope: machine:exec", "use a key with the scope")
	if _, err := c.List(t.Context()); err != nil {
		t.Errorf("after a refusal for a scope: %v", err)
	}
}

// A service that does not tell its health serves all the same; one that is away does
// not.
func TestCloudHealth(t *testing.T) {
	for _, answer := range []string{`{"version":7,"apiVersion":"2","capabilities":{}}`, `{}`, `[]`, `<html>`} {
		server := fleettest.StartCloud(t, fleettest.CloudOptions{})
		server.Fault(fleettest.CloudFault{Path: "/health", Status: 200, Body: answer})
		info, err := cloud(t, server).Info(t.Context())
		if strings.HasPrefix(answer, "{") && (err != nil || info.Version == "" || !info.Can.Branch) {
			t.Errorf("%s: %+v, %v", answer, info, err)
		}
	}
	server := fleettest.StartCloud(t, fleettest.CloudOptions{})
	c := cloud(t, server, by(newClock()))
	server.Fault(fleettest.CloudFault{Path: "/health", Status: 404})
	if info, err := c.Info(t.Context()); err != nil || info.Engine != "cloud" || info.Version == "" {
		t.Errorf("%+v, %v", info, err)
	}
	wantSent(t, server, func() { // it is asked again, and then no more
		for range 3 {
			info, err := c.Info(t.Context())
			if err != nil || info.Version != "0.1.0" || !info.Can.BranchRunning {
				t.Errorf("%+v, %v", info, err)
			}
		}
	}, "GET /health")
	c = cloud(t, server, by(newClock()))
	if _, err := c.Account(t.Context()); err != nil {
		t.Fatal(err)
	}
	server.Fault(fleettest.CloudFault{Path: "/health", Drop: "before", Times: -1})
	_, err := c.Info(t.Context())
	want(t, err, fleet.CodeUnreachable, false)
}

// A redirect is told and not followed, so that no key goes where it leads.
func TestCloudRedirect(t *testing.T) {
	var met atomic.Int64
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { met.Add(1) }))
	defer other.Close()
	server := fleettest.StartCloud(t, fleettest.CloudOptions{Redirect: other.URL + "/v1/machines"})
	c := cloud(t, server)
	_, err := c.List(t.Context())
	want(t, err, fleet.CodeInternal, false, "307", "SMOL_CLOUD_URL")
	if met.Load() > 0 {
		t.Error("the redirect was followed")
	}
}

// The key is in no error, log or file, also when the service says it back.
func TestCloudSecret(t *testing.T) {
	const token = fleettest.CloudToken
	coded := base64.StdEncoding.EncodeToString([]byte(token))
	server := fleettest.StartCloud(t, fleettest.CloudOptions{})
	var text bytes.Buffer
	dir := t.TempDir()
	c := cloud(t, server, by(newClock()), func(o *fleet.CloudOptions) {
		o.Log = slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{Level: slog.LevelDebug}))
		o.Dir = func() (string, error) { return dir, nil }
	})
	made(t, c, "vm")
	for _, status := range []int{400, 402, 403, 404, 409, 422, 429, 500, 503, 401} {
		body := strings.Repeat("x", 1000) + " Bearer " + token + " " + coded
		server.Fault(fleettest.CloudFault{Method: "POST", Path: "/exec", Times: 4, Status: status, Body: body})
		_, err := c.Exec(t.Context(), "vm", run)
		var e *fleet.Error
		if !errors.As(err, &e) {
			t.Fatalf("%d: %v", status, err)
		}
		text.WriteString(e.Error() + e.Next)
		server.ClearFaults()
	}
	spec := vm("leaky")
	spec.Env = map[string]string{"TOKEN": "Bearer " + token}
	_, err := c.Create(t.Context(), spec)
	want(t, err, fleet.CodeInvalid, false, "TOKEN", "no guest may have")
	text.WriteString(err.Error())
	data, err := os.ReadFile(filepath.Join(dir, "cloud-accounts.json"))
	if err != nil {
		t.Fatal(err)
	}
	text.Write(data)
	for _, m := range server.Machines() {
		for k, v := range m.Env {
			text.WriteString(k + v)
		}
	}
	for _, form := range []string{token, token[:12], coded, coded[:12], base64.RawURLEncoding.EncodeToString([]byte(token))[:12]} {
		if strings.Contains(text.String(), form) {
			t.Errorf("%q is told: %s", form, text.String())
		}
	}
}
