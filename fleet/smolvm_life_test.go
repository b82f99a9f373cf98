package fleet

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// inOrder answers with one reply after the other, the last one for ever.
func inOrder(replies ...func(http.ResponseWriter)) http.HandlerFunc {
	var n atomic.Int64
	return func(w http.ResponseWriter, _ *http.Request) {
		replies[min(int(n.Add(1)), len(replies))-1](w)
	}
}

func ok(body string) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) { reply(w, 200, "application/json", body) }
}

func refused(status int, text, code string) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		reply(w, status, "application/json", `{"error":"`+text+`","code":"`+code+`"}`)
	}
}

// A7: deleted is said only of what was seen gone.
func TestDelete(t *testing.T) {
	missing := refused(404, "machine 'vm' not found", "NOT_FOUND")
	alive := refused(500, "vm still alive after shutdown; not removing", "INTERNAL_ERROR")
	deleted := ok(`{"deleted":"vm"}`)
	drop := func(w http.ResponseWriter) {
		conn, _, _ := w.(http.Hijacker).Hijack()
		conn.Close()
	}
	for _, c := range []struct {
		what     string
		replies  []func(http.ResponseWriter)
		code     Code // empty: deleted
		maybe    bool
		why      string
		requests int
	}{
		{"gone", []func(http.ResponseWriter){deleted, missing}, "", false, "", 2},
		{"never there", []func(http.ResponseWriter){missing}, CodeNotFound, false, "not found", 1},
		{"lingers", []func(http.ResponseWriter){deleted, ok(vm), ok(vm), missing}, "", false, "", 4},
		{"stays", []func(http.ResponseWriter){deleted, ok(vm)}, CodeInternal, true, "still there (running, pid 7)", 0},
		{"not seen", []func(http.ResponseWriter){deleted, drop}, CodeUnreachable, true, "was not seen", 0},
		{"slow to die", []func(http.ResponseWriter){alive, alive, deleted, missing}, "", false, "", 4},
		{"gone by itself", []func(http.ResponseWriter){alive, missing, missing}, "", false, "", 3},
		{"never dies", []func(http.ResponseWriter){alive}, CodeInternal, true, "still alive", 6},
		{"children", []func(http.ResponseWriter){refused(409, "machine has clones: kid-1, kid-2", "CONFLICT")}, CodeConflict, false, "kid-1, kid-2", 1},
		{"other failure", []func(http.ResponseWriter){refused(500, "disk full", "INTERNAL_ERROR")}, CodeInternal, true, "disk full", 1},
	} {
		t.Run(c.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := serve(t, inOrder(c.replies...))
				begun := time.Now()
				_, err := s.Delete(t.Context(), "vm")
				if c.code == "" && err != nil {
					t.Error(err)
				}
				if c.code != "" {
					wantErr(t, err, c.code, c.maybe, c.why)
				}
				if n := len(s.requests()); c.requests > 0 && n != c.requests {
					t.Errorf("%d requests, want %d", n, c.requests)
				}
				if took := time.Since(begun); took > 20*time.Second {
					t.Errorf("it took %v", took)
				}
			})
		})
	}
}

// A3: a machine whose guest connections are all busy looks dead for a moment.
func TestUnreachableIsReadTwice(t *testing.T) {
	silent := strings.Replace(vm, "running", "unreachable", 1)
	for _, c := range []struct {
		second func(http.ResponseWriter)
		want   State
	}{{ok(vm), Running}, {ok(silent), Unreachable}} {
		s := serve(t, inOrder(ok(silent), c.second))
		m, err := s.Get(t.Context(), "vm")
		if err != nil || m.State != c.want || len(s.requests()) != 2 {
			t.Errorf("%s after %d requests, %v; want %s after 2", m.State, len(s.requests()), err, c.want)
		}
	}
}

// Every POST has a JSON body, and start says branchable in one spelling.
func TestStart(t *testing.T) {
	doc := func(names ...string) string {
		var params []string
		for _, n := range names {
			params = append(params, `{"in":"query","name":"`+n+`"}`)
		}
		return `{"paths":{"/api/v1/machines/{name}/start":{"post":{"parameters":[` + strings.Join(params, ",") + `]}}}}`
	}
	for doc, query := range map[string]string{
		doc(): "forkable", doc("forkable"): "forkable", doc("branchable"): "branchable", doc("forkable", "branchable"): "branchable",
	} {
		s := serve(t, routes(map[string]string{
			"GET /health": `{"status":"ok","version":"1.14.5"}`, "GET /api-docs/openapi.json": doc,
			"POST /api/v1/machines/vm/start": vm, "POST /api/v1/machines/vm/stop": vm,
		}))
		if _, err := s.Start(t.Context(), "vm", StartOptions{}); err != nil {
			t.Error(err)
		}
		if _, err := s.Stop(t.Context(), "vm", StopOptions{}); err != nil {
			t.Error(err)
		}
		if got := strings.Join(s.requests(), "; "); got != "POST /api/v1/machines/vm/start {}; POST /api/v1/machines/vm/stop {}" {
			t.Errorf("sent %s", got)
		}
		if _, err := s.Start(t.Context(), "vm", StartOptions{Branchable: true}); err != nil {
			t.Error(err)
		}
		if got := s.requests()[4]; got != "POST /api/v1/machines/vm/start?"+query+"=true {}" {
			t.Errorf("sent %s", got)
		}
	}
}

// A machine that ran already is not made branchable by a start, and its answer
// says so.
func TestStartNotBranchable(t *testing.T) {
	s := serve(t, routes(map[string]string{
		"GET /health": `{"status":"ok","version":"1.14.5"}`, "GET /api-docs/openapi.json": `{"paths":{"/x":{}}}`,
		"POST /api/v1/machines/vm/start": strings.Replace(vm, `"pid"`, `"forkable":false,"pid"`, 1),
	}))
	_, err := s.Start(t.Context(), "vm", StartOptions{Branchable: true})
	wantErr(t, err, CodeConflict, false, "without the means")
}

// A paused machine is resumed by start; smolvm refuses to boot it.
func TestStartResumes(t *testing.T) {
	paused := strings.Replace(vm, "running", "paused", 1)
	refusal := refused(409, "machine is a saved execution", "CONFLICT")
	s := serve(t, inOrder(refusal, ok(paused), ok(vm)))
	if m, err := s.Start(t.Context(), "vm", StartOptions{}); err != nil || m.State != Running {
		t.Errorf("%+v, %v", m, err)
	}
	if got := s.requests(); len(got) != 3 || got[2] != "POST /api/v1/machines/vm/resume {}" {
		t.Errorf("sent %q", got)
	}
	s = serve(t, inOrder(refusal, ok(strings.Replace(vm, "running", "frozen", 1))))
	_, err := s.Start(t.Context(), "vm", StartOptions{})
	wantErr(t, err, CodeConflict, false, "saved execution")
	s = serve(t, inOrder(refused(404, "not there", "NOT_FOUND")))
	_, err = s.Start(t.Context(), "vm", StartOptions{})
	wantErr(t, err, CodeNotFound, false)
	if len(s.requests()) != 1 {
		t.Errorf("sent %q", s.requests())
	}
}

func TestSuspend(t *testing.T) {
	const can = `{"paths":{"/api/v1/machines/{name}/pause":{"post":{}},"/api/v1/machines/{name}/resume":{"post":{}}}}`
	paused := strings.Replace(vm, "running", "paused", 1)
	s := serve(t, routes(map[string]string{
		"GET /health": `{"status":"ok","version":"1.18.0"}`, "GET /api-docs/openapi.json": can, "POST /api/v1/machines/vm/pause": paused,
	}))
	if m, err := s.Stop(t.Context(), "vm", StopOptions{KeepMemory: true}); err != nil || m.State != Suspended {
		t.Errorf("%+v, %v", m, err)
	}
	s = serve(t, routes(map[string]string{
		"GET /health": `{"status":"ok","version":"1.14.5"}`, "GET /api-docs/openapi.json": `{"paths":{"/x":{}}}`,
	}))
	_, err := s.Stop(t.Context(), "vm", StopOptions{KeepMemory: true})
	wantErr(t, err, CodeUnsupported, false, "smolvm 1.14.5")
}
