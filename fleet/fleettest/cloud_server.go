package fleettest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// CloudOptions say how a fake smol cloud behaves. The zero value is a service of
// the newest kind.
type CloudOptions struct {
	Data string        // where guests, faults.json, requests.log and violations.log are; a temporary directory when empty
	Boot time.Duration // how long a machine takes to start

	Old      bool     // an older service: fork without branches, text output, no ready, start blocks, no bill on delete
	NoFiles  bool     // no route for files
	NoPause  bool     // no suspended machines
	Unready  bool     // machines never say that they are ready
	Problem  bool     // refusals are application/problem+json
	Drops    []string // fields of a create that are ignored
	BareKids bool     // branches inherit neither environment nor ends
	Redirect string   // every answer sends the client there
}

// cloudServer answers the API of smol cloud. Machines are entries of a map, their
// disks directories below the data directory.
type cloudServer struct {
	opts     CloudOptions
	faults   *faultBook
	requests *requestBook
	table    map[string]any

	ctx    context.Context // ends with close
	cancel context.CancelFunc
	work   sync.WaitGroup // operations, also those whose client has gone

	mu         sync.Mutex
	ahead      time.Duration // of the real clock
	keys       map[string]CloudKey
	tenants    map[string]*cloudTenant
	machines   map[string]*cloudMachine // by id
	bills      map[string]cloudBill     // of deleted machines, by id
	serial     int                      // of events
	violations []string
}

func newCloudServer(opts CloudOptions) (*cloudServer, error) {
	if err := os.MkdirAll(filepath.Join(opts.Data, "machines"), 0o755); err != nil {
		return nil, err
	}
	table, err := cloudRequests()
	s := &cloudServer{
		opts: opts, table: table,
		faults: &faultBook{path: filepath.Join(opts.Data, "faults.json")}, requests: &requestBook{path: filepath.Join(opts.Data, "requests.log")},
		keys: map[string]CloudKey{}, tenants: map[string]*cloudTenant{}, machines: map[string]*cloudMachine{}, bills: map[string]cloudBill{},
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s, err
}

// close ends what the server does and every guest.
func (s *cloudServer) close() error {
	s.cancel()
	s.mu.Lock()
	var errs []error
	for _, m := range s.machines {
		if m.guest != nil {
			errs = append(errs, m.guest.Kill())
		}
	}
	s.mu.Unlock()
	s.work.Wait()
	return errors.Join(errs...)
}

// now is the service's time. s.mu is held.
func (s *cloudServer) now() time.Time { return time.Now().Add(s.ahead) }

// violate notes what no client may do. s.mu is not held.
func (s *cloudServer) violate(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := fmt.Sprintf(format, args...)
	s.violations = append(s.violations, text)
	appendFile(filepath.Join(s.opts.Data, "violations.log"), []byte(text+"\n"))
}

// cloudCall is one request on its way through the server.
type cloudCall struct {
	*http.Request
	key   CloudKey
	vars  map[string]string
	body  []byte
	out   http.Header // of the answer
	fault *SmolvmFault
}

// cloudRoute is a route of the service. scope is what a key needs for it; the real
// service's scopes for some of them are not known.
type cloudRoute struct {
	method, path, scope string
	handle              func(*cloudServer, *cloudCall) reply
}

func cloudRoutes() []cloudRoute {
	const m = "/v1/machines"
	return []cloudRoute{
		{"GET", "/v1/me", "", (*cloudServer).me},
		{"GET", "/v1/account", "machine:read", (*cloudServer).account},
		{"GET", m, "machine:read", (*cloudServer).list},
		{"POST", m, "machine:create", (*cloudServer).create},
		{"GET", m + "/{id}", "machine:read", (*cloudServer).get},
		{"DELETE", m + "/{id}", "machine:delete", (*cloudServer).remove},
		{"POST", m + "/{id}/start", "machine:create", (*cloudServer).start},
		{"POST", m + "/{id}/stop", "machine:create", (*cloudServer).stop},
		{"POST", m + "/{id}/pause", "machine:create", (*cloudServer).pause},
		{"POST", m + "/{id}/resume", "machine:create", (*cloudServer).resume},
		{"POST", m + "/{id}/branches", "machine:create", (*cloudServer).branch},
		{"POST", m + "/{id}/fork", "machine:create", (*cloudServer).branch},
		{"POST", m + "/{id}/exec", "machine:exec", (*cloudServer).exec},
		{"GET", m + "/{id}/files/{path...}", "machine:files", (*cloudServer).download},
		{"PUT", m + "/{id}/files/{path...}", "machine:files", (*cloudServer).upload},
		{"GET", m + "/{id}/events", "machine:read", (*cloudServer).events},
		{"GET", m + "/{id}/usage", "machine:read", (*cloudServer).usage},
	}
}

// missing reports whether this service has no such route.
func (s *cloudServer) missing(path string) bool {
	switch {
	case strings.HasSuffix(path, "/branches"), strings.HasSuffix(path, "/usage"):
		return s.opts.Old
	case strings.HasSuffix(path, "/pause"), strings.HasSuffix(path, "/resume"):
		return s.opts.Old || s.opts.NoPause
	case strings.Contains(path, "/files/"):
		return s.opts.NoFiles
	}
	return false
}

// ServeHTTP answers one request: the faults first, then the route.
func (s *cloudServer) ServeHTTP(w http.ResponseWriter, hr *http.Request) {
	r := &cloudCall{Request: hr, out: w.Header()}
	r.out.Set("X-Request-Id", "req-"+randomHex(6))
	if s.control(w, r) {
		return
	}
	entry := s.requests.begin(hr)
	var err error
	if r.body, err = io.ReadAll(hr.Body); err != nil {
		panic(http.ErrAbortHandler) // the client broke off, and nothing may be done of it
	}
	re := s.answer(r)
	if f := r.fault; f != nil {
		for k, v := range f.Header {
			r.out.Set(k, v)
		}
		if f.Drop != "" {
			s.requests.end(entry, int64(len(r.body)), 0, 0)
			panic(http.ErrAbortHandler) // net/http closes the connection
		}
	}
	s.requests.end(entry, int64(len(r.body)), re.status, len(re.body))
	if re.kind != "" {
		r.out.Set("Content-Type", re.kind)
	} else {
		r.out["Content-Type"] = nil
	}
	w.WriteHeader(re.status)
	w.Write(re.body)
}

// answer carries the call out, unless a fault says otherwise. The work goes on when
// the client goes away.
func (s *cloudServer) answer(r *cloudCall) reply {
	r.fault = s.faults.take(r.Method, r.URL.EscapedPath())
	done := make(chan reply, 1)
	s.work.Go(func() {
		f := r.fault
		if f != nil && f.LatencyMs > 0 {
			s.sleep(time.Duration(f.LatencyMs) * time.Millisecond)
		}
		switch {
		case f == nil || f.Status == 0 && f.Drop != "before":
			done <- s.route(r)
		case f.Status != 0 && f.Done:
			s.route(r)
			fallthrough
		default:
			done <- f.reply()
		}
	})
	return <-done
}

// sleep waits for d, but not when the server ends.
func (s *cloudServer) sleep(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.ctx.Done():
	}
}

// route finds who answers.
func (s *cloudServer) route(r *cloudCall) reply {
	escaped := r.URL.EscapedPath()
	for _, part := range strings.Split(strings.ToLower(strings.ReplaceAll(escaped, "%2E", ".")), "/") {
		if part == "." || part == ".." || part == "%2e" || part == "%2e%2e" {
			s.violate("%s %s would be another path for a proxy", r.Method, escaped)
		}
	}
	if strings.Contains(r.URL.RequestURI(), "smk_") {
		s.violate("a key stands in the address of %s", r.Method)
	}
	if s.opts.Redirect != "" {
		r.out.Set("Location", s.opts.Redirect)
		return reply{status: http.StatusTemporaryRedirect}
	}
	if escaped == "/health" {
		return s.health()
	}
	if re := s.admit(r); re != nil {
		return *re
	}
	s.sweep()
	known := false
	for _, route := range cloudRoutes() {
		vars, ok, err := match(route.path, escaped)
		if err != nil || !ok || s.missing(escaped) {
			continue
		}
		if known = true; route.method != r.Method {
			continue
		}
		r.vars = vars
		s.checkRequest(r, route)
		if re := s.allow(r, route.scope); re != nil {
			return *re
		}
		return route.handle(s, r)
	}
	if known {
		return *s.refuse(http.StatusMethodNotAllowed, "method not allowed")
	}
	return reply{status: http.StatusNotFound}
}

// checkRequest holds a body against the table of what the service knows.
func (s *cloudServer) checkRequest(r *cloudCall, route cloudRoute) {
	schema, known := s.table[route.method+" "+route.path]
	if !known {
		if route.method == "POST" {
			s.violate("POST %s is not in the table of requests", route.path)
		}
		return
	}
	for _, wrong := range checkBody(schema, r.body) {
		s.violate("%s %s: %s", route.method, route.path, wrong)
	}
}

// refuse is a refusal in the shape of this service: text, or a problem document.
func (s *cloudServer) refuse(status int, format string, args ...any) *reply {
	text := fmt.Sprintf(format, args...)
	if s.opts.Problem {
		re := jsonReply(map[string]any{"type": "about:blank", "title": http.StatusText(status), "status": status, "detail": text, "code": strings.ToLower(strings.ReplaceAll(http.StatusText(status), " ", "_"))})
		re.status, re.kind = status, "application/problem+json"
		return &re
	}
	return ref(textReply(status, "%s", text))
}

func (s *cloudServer) health() reply {
	h := map[string]any{"clusterId": "fake", "version": "0.1.0", "apiVersion": 2, "nodesTotal": 1, "nodesReady": 1, "uptimeSecs": 1}
	if !s.opts.Old {
		h["capabilities"] = []string{"machine.branch", "machine.branch_batch", "machine.branch_source_continues", "machine.lineage"}
	}
	return jsonReply(h)
}
