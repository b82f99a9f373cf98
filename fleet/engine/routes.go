//go:build unix

package engine

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"net/http"
	"net/url"
	"strings"
	"time"
)

const machinesPath = "/api/v1/machines"

// route is one thing that the engine answers. Its line is also its line in the
// OpenAPI document, so a client sees what this engine has.
type route struct {
	method, pattern string
	handle          func(*server, http.ResponseWriter, *call) error
	body            string   // schema of the request's body
	query           []string // parameters
	header          []string // of the request, that change the answer
}

// call is a request on a route.
type call struct {
	*http.Request
	vars map[string]string
}

// routes lists them all.
func routes() []route {
	const name = machinesPath + "/{name}"
	return []route{
		{method: "GET", pattern: "/health", handle: (*server).health},
		{method: "GET", pattern: "/readyz", handle: (*server).readyz},
		{method: "GET", pattern: "/api-docs/openapi.json", handle: (*server).openAPI},
		{method: "GET", pattern: machinesPath, handle: (*server).list},
		{method: "POST", pattern: machinesPath, handle: (*server).create, body: "CreateMachineRequest"},
		{method: "GET", pattern: name, handle: (*server).get},
		{method: "DELETE", pattern: name, handle: (*server).remove, query: []string{"force", "cascade"}},
		{method: "POST", pattern: name + "/start", handle: (*server).start},
		{method: "POST", pattern: name + "/stop", handle: (*server).stop},
		{method: "POST", pattern: name + "/exec", handle: (*server).exec, body: "ExecRequest"},
		{method: "POST", pattern: name + "/exec/stream", handle: (*server).execStream, body: "ExecRequest"},
		{method: "POST", pattern: name + "/jobs", handle: (*server).startJob, body: "JobRequest"},
		{method: "GET", pattern: name + "/files/{path...}", handle: (*server).download, header: []string{"Range"}},
		{method: "PUT", pattern: name + "/files/{path...}", handle: (*server).upload},
		{method: "GET", pattern: name + "/logs", handle: (*server).logs, query: []string{"follow", "tail", "format"}},
		{method: "GET", pattern: name + "/images", handle: (*server).machineImages},
		{method: "POST", pattern: name + "/images/pull", handle: (*server).pull, body: "PullImageRequest"},
	}
}

// ServeHTTP finds the route of a request. Unlike the mux of the standard library it
// answers unknown ones with an empty body, as smolvm does, and never redirects.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Trace-Id", traceID())
	status := http.StatusNotFound
	for _, t := range s.routes {
		vars, ok, err := match(t.pattern, r.URL.EscapedPath())
		switch {
		case err != nil:
			refuse(w, plain(http.StatusBadRequest, "Invalid URL: %v", err))
			return
		case !ok:
		case t.method != r.Method:
			status = http.StatusMethodNotAllowed
		default:
			begun := time.Now()
			err := t.handle(s, w, &call{r, vars})
			if err != nil {
				refuse(w, err)
			}
			s.opts.Log.Debug("request", "method", r.Method, "path", r.URL.Path, "took", time.Since(begun), "err", err)
			return
		}
	}
	refuse(w, plain(status, ""))
}

func traceID() string {
	b := make([]byte, 8)
	rand.Read(b)
	return hex.EncodeToString(b)
}

// match compares an escaped path with a pattern, element by element, so that an
// escaped slash stays inside its element.
func match(pattern, escaped string) (map[string]string, bool, error) {
	vars := map[string]string{}
	want, got := strings.Split(pattern, "/"), strings.Split(escaped, "/")
	for i, w := range want {
		if i >= len(got) {
			return nil, false, nil
		}
		if !strings.HasPrefix(w, "{") {
			if w != got[i] {
				return nil, false, nil
			}
			continue
		}
		value := got[i]
		name, rest := strings.CutSuffix(strings.Trim(w, "{}"), "...")
		if rest {
			value, got = strings.Join(got[i:], "/"), got[:i+1]
		}
		text, err := url.PathUnescape(value)
		if err != nil {
			return nil, true, err
		}
		vars[name] = text
	}
	return vars, len(got) == len(want), nil
}

// guestSlots is how many operations work in one guest at once; the next waits.
const guestSlots = 8

// slot takes one of a machine's, until the returned function is called.
func (s *server) slot(ctx context.Context, name string) (func(), error) {
	s.mu.Lock()
	c := s.slots[name]
	if c == nil {
		c = make(chan struct{}, guestSlots)
		s.slots[name] = c
	}
	s.mu.Unlock()
	select {
	case c <- struct{}{}:
		return func() { <-c }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// answerLimit is after which a client gets an empty 408 while the work goes on.
const answerLimit = 300 * time.Second

// detached carries out work that goes on when its client goes away, as it does on
// smolvm. A client that is gone gets nothing, one that waits too long a 408.
func detached[T any](s *server, r *call, work func(ctx context.Context) (T, error)) (T, error) {
	type result struct {
		v   T
		err error
	}
	done := make(chan result, 1)
	s.work.Go(func() {
		v, err := work(s.life)
		done <- result{v, err}
	})
	timer := time.NewTimer(answerLimit)
	defer timer.Stop()
	var none T
	select {
	case res := <-done:
		return res.v, res.err
	case <-r.Context().Done():
		return none, plain(http.StatusRequestTimeout, "")
	case <-timer.C:
		return none, plain(http.StatusRequestTimeout, "")
	}
}
