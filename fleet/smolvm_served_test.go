package fleet

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// engine is a smolvm whose release can be changed under the client.
type engine struct {
	mu      sync.Mutex
	version string
	began   time.Time
	paths   []string // "METHOD path" below a machine
	extra   string   // of the health answer
	schemas string
	asked   int // OpenAPI documents given
}

func (e *engine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch r.URL.Path {
	case "/health":
		reply(w, 200, "application/json", fmt.Sprintf(`{"status":"ok","version":%q,"uptime_seconds":%d%s}`,
			e.version, int(time.Since(e.began).Seconds()), e.extra))
	case openapiPath:
		e.asked++
		var paths []string
		for _, p := range e.paths {
			method, path, _ := strings.Cut(p, " ")
			paths = append(paths, fmt.Sprintf(`"/api/v1/machines/{name}%s":{%q:{"requestBody":{"content":{"application/json":{"schema":{"$ref":"#/components/schemas/ForkRequest"}}}}}}`,
				path, strings.ToLower(method)))
		}
		reply(w, 200, "application/json", `{"info":{"version":"0.5.2"},"paths":{`+strings.Join(paths, ",")+`},"components":{"schemas":{`+e.schemas+`}}}`)
	default:
		reply(w, 200, "application/json", strings.Replace(vm, `"vm"`, `"kid"`, 1))
	}
}

const (
	oldSchemas = `"CreateMachineRequest":{"properties":{"cmd":{},"mounts":{},"overlayGb":{}}},"ForkRequest":{"properties":{"name":{}}}`
	newSchemas = `"CreateMachineRequest":{"properties":{"cmd":{},"mounts":{},"overlayGb":{}}},"ForkRequest":{"properties":{"name":{},"freezeSource":{}}}`
)

func TestFeatures(t *testing.T) {
	for _, c := range []struct {
		what   string
		engine *engine
		hostOS string
		want   Info
		branch string // the request that a branch sends
	}{
		{"1.9.3", &engine{version: "1.9.3", paths: []string{"POST /fork", "POST /images/pull"}, schemas: oldSchemas}, "linux",
			Info{Engine: "smolvm", Version: "1.9.3", Can: Features{Branch: true, Pull: true, Mounts: true, Overlay: true, Cmd: true}},
			`POST /api/v1/machines/vm/fork {"name":"kid"}`},
		{"1.14.5", &engine{version: "1.14.5", paths: []string{"POST /fork", "POST /branches", "POST /images/pull"}, schemas: oldSchemas}, "linux",
			Info{Engine: "smolvm", Version: "1.14.5", Can: Features{Branch: true, Pull: true, Mounts: true, Overlay: true, Cmd: true}},
			`POST /api/v1/machines/vm/branches {"name":"kid"}`},
		{"1.23.0", &engine{version: "1.23.0", paths: []string{"POST /branches", "POST /pause", "POST /resume"}, schemas: newSchemas}, "darwin",
			Info{Engine: "smolvm", Version: "1.23.0", Can: Features{Branch: true, BranchRunning: true, Suspend: true, HostPull: true, Mounts: true, Overlay: true, Cmd: true}},
			`POST /api/v1/machines/vm/branches {"freezeSource":true,"name":"kid"}`},
		{"ours", &engine{version: "0.2.0", extra: `,"engine":"qemu","accel":"kvm","isolation":"hardware VM"`, paths: []string{"POST /branches"}, schemas: newSchemas}, "linux",
			Info{Engine: "qemu", Version: "0.2.0", Accel: "kvm", Isolation: "hardware VM", Can: Features{Branch: true, BranchRunning: true, HostPull: true, Mounts: true, Overlay: true, Cmd: true}},
			`POST /api/v1/machines/vm/branches {"freezeSource":true,"name":"kid"}`},
		{"windows", &engine{version: "1.23.0", paths: []string{"POST /branches"}}, "windows",
			Info{Engine: "smolvm", Version: "1.23.0", Can: Features{HostPull: true}}, ""},
		{"no branches", &engine{version: "1.8.0", paths: []string{"POST /pause"}}, "linux",
			Info{Engine: "smolvm", Version: "1.8.0"}, ""},
	} {
		t.Run(c.what, func(t *testing.T) {
			c.engine.began = time.Now()
			s := serve(t, c.engine.ServeHTTP)
			s.hostOS = c.hostOS
			info, err := s.Info(t.Context())
			if err != nil || info != c.want {
				t.Errorf("%v\n got %+v\nwant %+v", err, info, c.want)
			}
			_, err = s.Branch(t.Context(), "vm", BranchSpec{Name: "kid", StopSource: true})
			requests := s.requests()
			if c.branch == "" {
				wantErr(t, err, CodeUnsupported, false)
				if c.hostOS == "windows" && !strings.Contains(err.Error(), "Windows") {
					t.Errorf("the reason is %v", err)
				}
			} else if err != nil || requests[len(requests)-1] != c.branch {
				t.Errorf("sent %s, %v\nwant %s", requests[len(requests)-1], err, c.branch)
			}
		})
	}
}

// The engine is asked once. After new connections its health tells whether it is
// still the same, and only another one is asked again.
func TestFeaturesAreCached(t *testing.T) {
	e := &engine{version: "1.14.5", began: time.Now().Add(-time.Hour), paths: []string{"POST /fork"}, schemas: oldSchemas}
	s := serve(t, e.ServeHTTP)
	look := func(asked, requests int, can bool) {
		t.Helper()
		before := len(s.requests())
		info, err := s.Info(t.Context())
		if err != nil || info.Can.Suspend != can {
			t.Errorf("%+v, %v", info, err)
		}
		if e.asked != asked || len(s.requests())-before != requests {
			t.Errorf("%d documents and %d requests, want %d and %d", e.asked, len(s.requests())-before, asked, requests)
		}
	}
	look(1, 2, false)
	look(1, 0, false)
	s.pool.CloseIdleConnections() // as an idle time does
	look(1, 1, false)
	look(1, 0, false)

	e.mu.Lock() // the same release starts anew, built with more
	e.began, e.paths = time.Now(), []string{"POST /pause", "POST /resume"}
	e.mu.Unlock()
	s.pool.CloseIdleConnections()
	look(2, 2, true)

	e.mu.Lock() // another release
	e.version = "1.13.0"
	e.mu.Unlock()
	s.pool.CloseIdleConnections()
	look(3, 2, true)
	look(3, 0, true)
}

func TestFeaturesFail(t *testing.T) {
	for _, doc := range []string{"", "no JSON", "{}", `{"paths":[]}`} {
		s := serve(t, routes(map[string]string{"GET /health": `{"status":"ok","version":"1.14.5"}`, "GET /api-docs/openapi.json": doc}))
		_, err := s.Info(t.Context())
		wantErr(t, err, CodeInternal, false, "OpenAPI")
	}
	s := serve(t, routes(map[string]string{"GET /health": `{"status":"ok","version":"1.14.5"}`}))
	_, err := s.Info(t.Context())
	wantErr(t, err, CodeUnsupported, false)
}

func TestAtLeast(t *testing.T) {
	for _, c := range []struct {
		version, wanted string
		want            bool
	}{
		{"1.14.5", "1.14.0", true}, {"1.14.0", "1.14.0", true}, {"1.14", "1.14.0", true}, {"1.9.3", "1.14.0", false},
		{"1.100.0", "1.14.0", true}, {"2", "1.14.0", true}, {"v1.14.1", "1.14.0", true}, {"1.14.0-rc1", "1.14.0", true},
		{"1.14.0+g12", "1.14.0", true}, {"1.13.9-rc99", "1.14.0", false}, {"", "1.14.0", false}, {"dev", "1.14.0", false}, {"dev", "", true}, {"0.0.0", "", true}, {"1.14.0", "1.14", true},
	} {
		if got := atLeast(c.version, c.wanted); got != c.want {
			t.Errorf("atLeast(%q, %q) is %v", c.version, c.wanted, got)
		}
	}
}
