package fleet

import (
	"encoding/json"
	"fmt"
	"sort"
	"strings"
)

// Parity compares the routes of an API that this program knows with those that a
// document names. An unknown route is a decision to make: use it, or
// write down why not.
type Parity struct {
	Used    []Route `json:"used"`    // called, and in the document
	Missing []Route `json:"missing"` // called by every release of ours, and not in the document
	Skipped []Route `json:"skipped"` // in the document, and left alone on purpose
	Unknown []Route `json:"unknown"` // in the document, and not in our table

	// Called, and known to be served, though the document does not name them. Only
	// the cloud has such routes.
	Undocumented []Route `json:"undocumented,omitempty"`
}

// Route is one method and path of the API.
type Route struct {
	Method string `json:"method"`
	Path   string `json:"path"`          // parameters as {}
	By     string `json:"by,omitempty"`  // the method of Smolvm or Cloud that calls it
	Why    string `json:"why,omitempty"` // why nothing does
}

func (r Route) String() string { return r.Method + " " + r.Path }

// knownRoute is a row of the table. optional marks those that only some releases
// serve, so that their absence is not a fault.
type knownRoute struct {
	method, path string
	by, why      string
	optional     bool
}

// knownAPI is what we know of an API.
type knownAPI struct {
	routes   []knownRoute
	prefixes []skippedPart

	// silent is set when the document leaves out routes that are served: those that
	// are optional and called then are undocumented, and not just absent.
	silent bool
}

// skippedPart is a part of an API that is left alone as a whole.
type skippedPart struct{ path, why string }

// knownRoutes is every route of smolvm 1.9 to 1.23 that its document or source
// names.
var knownRoutes = []knownRoute{
	{"GET", "/health", "Info", "", false},
	{"GET", openapiPath, "OpenAPI", "", true}, // served, but not in the document itself
	{"GET", machinesPath, "List", "", false},
	{"POST", machinesPath, "Create", "", false},
	{"GET", machinesPath + "/{}", "Get", "", false},
	{"DELETE", machinesPath + "/{}", "Delete", "", false},
	{"POST", machinesPath + "/{}/start", "Start", "", false},
	{"POST", machinesPath + "/{}/stop", "Stop", "", false},
	{"POST", machinesPath + "/{}/pause", "Stop", "", true},
	{"POST", machinesPath + "/{}/resume", "Start", "", true},
	{"POST", machinesPath + "/{}/branches", "Branch", "", true},
	{"POST", machinesPath + "/{}/fork", "Branch", "", true},
	{"POST", machinesPath + "/{}/exec", "Exec", "", false},
	{"GET", machinesPath + "/{}/files/{}", "Download", "", false},
	{"PUT", machinesPath + "/{}/files/{}", "Upload", "", false},
	{"GET", machinesPath + "/{}/logs", "Logs", "", false},
	{"POST", machinesPath + "/{}/images/pull", "Pull", "", false},

	{"POST", machinesPath + "/{}/jobs", "RunJob", "", true}, // of our own engine
	{"POST", machinesPath + "/{}/exec/stream", "", "loses bytes that are not UTF-8 and cannot be taken up again; jobs write files in the guest instead", false},
	{"GET", machinesPath + "/{}/exec/interactive", "", "a terminal for people", true},
	{"POST", machinesPath + "/{}/run", "", "a throwaway copy inside a machine; run-once makes a machine of its own", false},
	{"GET", machinesPath + "/{}/images", "", "no tool asks which images a machine holds", false},
	{"POST", machinesPath + "/{}/resize", "", "no tool resizes disks", false},
	{"POST", machinesPath + "/{}/export", "", "pushes to a registry with a token; not for agents", false},
	{"POST", machinesPath + "/{}/sync", "", "mounts are seen live; staged ones are not made", true},
	{"GET", machinesPath + "/{}/egress-events", "", "needs an egress floor set by the operator", true},
	{"POST", machinesPath + "/{}/fork-release", "", "branches are not held back", true},
	{"POST", machinesPath + "/{}/branches/release", "", "branches are not held back", true},
	{"POST", machinesPath + "/{}/branch-release", "", "branches are not held back", true},
	{"POST", machinesPath + "/{}/checkpoint", "", "a suspended machine or a branch serves instead", true},
	{"PUT", machinesPath + "/{}/checkpoint", "", "a suspended machine or a branch serves instead", true},
	{"GET", "/readyz", "", "health says enough", true},
	{"GET", "/capacity", "", "for schedulers of nodes", false},
	{"GET", "/inflight", "", "for operators", true},
	{"GET", "/metrics", "", "for operators", true},
	{"POST", "/drain", "", "stops every machine of the computer", true},
	{"GET", "/p2p/blob/{}", "", "between nodes", true},
	{"POST", "/artifacts/warm", "", "between nodes", true},
	{"GET", "/swagger-ui", "", "for people", true},
}

// skippedPrefixes are parts of the smolvm API that are left alone.
var skippedPrefixes = []skippedPart{
	{"/api/v1/volumes", "host directories are mounts under the allowed roots"},
	{"/volumes", "host directories are mounts under the allowed roots"},
	{"/api/v1/pools", "warm pools for training"},
	{"/pools", "warm pools for training"},
	{"/api/v1/rollout-executors", "training of models"},
	{"/rollout-executors", "training of models"},
}

// CheckParity compares an engine's OpenAPI document with the table of smolvm.
func CheckParity(doc []byte) (Parity, error) {
	return knownAPI{routes: knownRoutes, prefixes: skippedPrefixes}.check(doc)
}

func (known knownAPI) check(doc []byte) (Parity, error) {
	var api openapi
	if err := json.Unmarshal(doc, &api); err != nil {
		return Parity{}, fmt.Errorf("the OpenAPI document: %w", err)
	}
	if len(api.Paths) == 0 {
		return Parity{}, fmt.Errorf("the OpenAPI document names no paths")
	}
	left := make(map[string]Route)
	for path, methods := range api.Paths {
		for method := range methods {
			if r := (Route{Method: strings.ToUpper(method), Path: plainPath(path)}); isMethod(r.Method) {
				left[r.String()] = r
			}
		}
	}
	var p Parity
	for _, k := range known.routes {
		r := Route{Method: k.method, Path: k.path, By: k.by, Why: k.why}
		_, served := left[r.String()]
		delete(left, r.String())
		switch {
		case k.by == "" && served:
			p.Skipped = append(p.Skipped, r)
		case served:
			p.Used = append(p.Used, r)
		case k.by != "" && !k.optional:
			p.Missing = append(p.Missing, r)
		case k.by != "" && known.silent:
			p.Undocumented = append(p.Undocumented, r)
		}
	}
	p.rest(left, known.prefixes)
	return p, nil
}

// rest sorts the served routes that the table does not name.
func (p *Parity) rest(left map[string]Route, prefixes []skippedPart) {
	for _, r := range left {
		if r.Why = skippedPrefix(r.Path, prefixes); r.Why != "" {
			p.Skipped = append(p.Skipped, r)
		} else {
			p.Unknown = append(p.Unknown, r)
		}
	}
	for _, list := range [][]Route{p.Used, p.Missing, p.Skipped, p.Unknown, p.Undocumented} {
		sort.Slice(list, func(i, j int) bool {
			a, b := list[i], list[j]
			return a.Path < b.Path || a.Path == b.Path && a.Method < b.Method
		})
	}
}

func skippedPrefix(path string, prefixes []skippedPart) string {
	for _, skip := range prefixes {
		if path == skip.path || strings.HasPrefix(path, skip.path+"/") {
			return skip.why
		}
	}
	return ""
}

// plainPath leaves out what parameters are called.
func plainPath(path string) string {
	parts := strings.Split(path, "{")
	for i, part := range parts[1:] {
		if _, after, closed := strings.Cut(part, "}"); closed {
			parts[i+1] = "}" + after
		}
	}
	return strings.Join(parts, "{")
}

// isMethod tells the methods of a path from its other keys, as parameters.
func isMethod(word string) bool {
	switch word {
	case "GET", "PUT", "POST", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE":
		return true
	}
	return false
}
