package fleettest

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
)

// The table finds what the service would drop in silence.
func TestCloudBodies(t *testing.T) {
	table, err := cloudRequests()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ route, body, wrong string }{
		{"POST /v1/machines", `{"source":{"type":"image","reference":"a"},"env":{"A":"b"},"ports":[{"port":80}],"network":{"mode":"open"},"name":null}`, ""},
		{"POST /v1/machines", `{"image":"alpine","cpus":1}`, "[body has the unknown field cpus body has the unknown field image body lacks source]"},
		{"POST /v1/machines", `{"source":{"type":"image","reference":7}}`, "[body.source.reference is a integer and not a string]"},
		{"POST /v1/machines", `{"source":{"type":"image","reference":"a"},"resources":{"gpus":1,"cpus":1.5},"ttlSeconds":-1}`,
			"[body.resources has the unknown field gpus body.resources.cpus is a number and not a integer body.ttlSeconds is a number and not a integer]"},
		{"POST /v1/machines", `{"source":{"type":"image","reference":"a"},"ports":[{"guest":80}],"env":{"A":1},"command":"sh"}`,
			"[body.command is no list body.env.A is a integer and not a string body.ports[0] has the unknown field guest body.ports[0] lacks port]"},
		{"POST /v1/machines/{id}/exec", `{"command":["true"],"timeoutSeconds":5,"stdin":"x"}`, ""},
		{"POST /v1/machines/{id}/exec", `{"command":["true"],"timeoutSecs":5,"workdir":"/"}`, "[body has the unknown field timeoutSecs body has the unknown field workdir]"},
		{"POST /v1/machines/{id}/start", ``, ""},
		{"POST /v1/machines/{id}/stop", `{"force":true}`, "[body has the unknown field force]"},
		{"POST /v1/machines/{id}/fork", `{"name":"x"}`, ""},
		{"POST /v1/machines/{id}/branches", `{"ttlSeconds":5}`, "[body has the unknown field ttlSeconds body lacks name]"},
		{"POST /v1/machines/{id}/branches", `nothing`, "[invalid character 'o' in literal null (expecting 'u')]"},
	} {
		schema, ok := table[c.route]
		if !ok {
			t.Fatalf("%s is not in the table", c.route)
		}
		got := ""
		if wrong := checkBody(schema, []byte(c.body)); len(wrong) > 0 {
			got = fmt.Sprint(wrong)
		}
		if got != c.wrong {
			t.Errorf("%s %s:\ngot  %s\nwant %s", c.route, c.body, got, c.wrong)
		}
	}
	for _, route := range cloudRoutes() {
		if _, ok := table[route.method+" "+route.path]; route.method == "POST" && !ok {
			t.Errorf("POST %s is not in the table", route.path)
		}
	}
}

// asker sends plain requests to a fake cloud, as any client could.
type asker struct {
	t     *testing.T
	url   string
	token string
}

func (a asker) ask(method, path, body string) (int, string, http.Header) {
	a.t.Helper()
	req, err := http.NewRequest(method, a.url+path, strings.NewReader(body))
	if err != nil {
		a.t.Fatal(err)
	}
	if a.token != "" {
		req.Header.Set("Authorization", "Bearer "+a.token)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		a.t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		a.t.Fatal(err)
	}
	return res.StatusCode, string(text), res.Header
}

// The fake refuses as the service was seen to.
func TestCloudRefusals(t *testing.T) {
	f := StartCloud(t, CloudOptions{})
	f.AddKey("smk_read", CloudKey{Tenant: CloudTenant, Scopes: []string{"machine:read"}})
	f.AddKey("smk_old", CloudKey{Tenant: CloudTenant, State: "expired"})
	f.AddKey("smk_b", CloudKey{Tenant: "tenant-b"})
	ok := `{"name":"vm","source":{"type":"image","reference":"alpine"},"network":{"mode":"open"}}`
	if status, body, _ := (asker{t, f.URL(), CloudToken}).ask("POST", "/v1/machines", ok); status != 201 || !strings.Contains(body, `"state":"stopped"`) {
		t.Fatalf("%d %s", status, body)
	}
	id := f.Machines()["vm"].ID
	for _, c := range []struct {
		token, method, path, body string
		status                    int
		says                      string
	}{
		{"", "GET", "/v1/machines", "", 401, ""},
		{"", "GET", "/nowhere", "", 401, ""},
		{"", "GET", "/health", "", 200, `"apiVersion":2`},
		{"smk_x", "GET", "/v1/machines", "", 401, `{"code":"unknown_key","error":"unknown API key"}`},
		{"smk_old", "GET", "/v1/machines", "", 401, `{"code":"expired_key","error":"API key has expired"}`},
		{CloudToken, "GET", "/nowhere", "", 404, ""},
		{CloudToken, "PATCH", "/v1/machines", "", 405, "method not allowed"},
		{CloudToken, "GET", "/v1/machines/mach-0", "", 404, "machine not found"},
		{"smk_b", "GET", "/v1/machines/" + id, "", 404, "machine not found"},
		{"smk_b", "GET", "/v1/machines", "", 200, "[]"},
		{"smk_read", "DELETE", "/v1/machines/" + id, "", 403, "missing scope: machine:delete"},
		{CloudToken, "POST", "/v1/machines", ok, 409, "machine name already in use: vm"},
		{CloudToken, "POST", "/v1/machines/" + id + "/pause", "", 409, "machine is stopped and not started"},
		{CloudToken, "POST", "/v1/machines/" + id + "/fork", `{"name":"x"}`, 409, "machine is stopped, branchable: false"},
		{CloudToken, "GET", "/v1/machines/" + id + "/events", "", 200, "machine created"},
		{CloudToken, "GET", "/v1/me", "", 200, `"tenantId":"tenant-a"`},
		{CloudToken, "DELETE", "/v1/machines/" + id, "", 204, ""},
		{CloudToken, "DELETE", "/v1/machines/" + id, "", 404, "machine not found"},
	} {
		status, body, header := asker{t, f.URL(), c.token}.ask(c.method, c.path, c.body)
		if status != c.status || !strings.Contains(body, c.says) || c.says == "" && body != "" {
			t.Errorf("%s %s: %d %q", c.method, c.path, status, body)
		}
		if !strings.HasPrefix(header.Get("X-Request-Id"), "req-") {
			t.Errorf("%s %s: no request id", c.method, c.path)
		}
	}
}

// A client that sends what the service does not know fails the test.
func TestCloudViolations(t *testing.T) {
	server, err := newCloudServer(CloudOptions{Data: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	server.keys[CloudToken] = CloudKey{Tenant: CloudTenant}
	ephemeral := `{"name":"vm","source":{"type":"image","reference":"alpine"},"ephemeral":true,"labels":{}}`
	r := &cloudCall{Request: &http.Request{Method: "POST"}, key: CloudKey{Tenant: CloudTenant}, body: []byte(ephemeral), out: http.Header{}}
	server.checkRequest(r, cloudRoutes()[3])
	if got := fmt.Sprint(server.violations); got != "[POST /v1/machines: body has the unknown field labels]" {
		t.Errorf("noticed %s", got)
	}
	log, err := os.ReadFile(server.opts.Data + "/violations.log")
	if err != nil || !strings.Contains(string(log), "labels") {
		t.Errorf("%q, %v", log, err)
	}
	if re := server.create(r); re.status != 201 || !json.Valid(re.body) {
		t.Errorf("the service drops it in silence: %d", re.status)
	}
	server.sweep()
	if len(server.machines) > 0 {
		t.Error("an ephemeral machine is deleted as soon as it does not run, and it is made stopped")
	}
}
