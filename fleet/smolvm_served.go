package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// served is what is known of the engine behind the connections. Releases differ
// in routes and fields, and the running binary describes its own in an OpenAPI
// document; that is asked for once per life of an engine.
type served struct {
	turn  chan struct{} // held while looking, so that one looks and the others wait
	known *features
	at    int64     // connections made when it was last confirmed
	since time.Time // when that engine began, from its uptime; zero when it does not say
}

func newServed() served { return served{turn: make(chan struct{}, 1)} }

// features are what one running engine can do, and in which words.
type features struct {
	Features
	engine, version, accel, isolation string

	branchRoute     string // below the source machine
	branchableQuery string // the query of start that makes a machine branchable
	freezeSource    bool   // a branch says whether its source stops
	parts           bool   // files are read in parts
	jobs            bool   // guests begin jobs by themselves
	noStart         bool   // a command may be refused for a machine that does not run
	whyNoBranch     string
}

// health is the answer of /health. Our own engine adds the last three.
type health struct {
	Status    string   `json:"status"`
	Version   string   `json:"version"`
	Uptime    *float64 `json:"uptime_seconds"`
	Engine    string   `json:"engine"`
	Accel     string   `json:"accel"`
	Isolation string   `json:"isolation"`
}

// Info tells who answers and what it can do.
func (s *Smolvm) Info(ctx context.Context) (Info, error) {
	f, err := s.features(ctx)
	if err != nil {
		return Info{}, err
	}
	return Info{Engine: f.engine, Version: f.version, Accel: f.accel, Isolation: f.isolation, Can: f.Features}, nil
}

// features returns what the engine can do. As long as a connection of then is
// open and no other had to be made, the engine is the one that was looked at;
// else its health says whether it still is.
func (s *Smolvm) features(ctx context.Context) (*features, error) {
	select {
	case s.served.turn <- struct{}{}:
		defer func() { <-s.served.turn }()
	case <-ctx.Done():
		return nil, &Error{Code: CodeOf(ctx.Err()), Op: "ask the engine what it can do", Why: ctx.Err().Error(), Err: ctx.Err()}
	}
	before := s.made.Load()
	if s.served.known != nil && s.served.at == before && s.open.Load() > 0 {
		return s.served.known, nil
	}
	h, dialed, err := s.health(ctx)
	if err != nil {
		return nil, err
	}
	if dialed {
		before++
	}
	var since time.Time
	if h.Uptime != nil {
		since = time.Now().Add(-time.Duration(*h.Uptime * float64(time.Second)))
	}
	if s.served.known == nil || !s.served.sameEngine(h, since) {
		doc, err := s.OpenAPI(ctx)
		if err != nil {
			return nil, err
		}
		known, err := readFeatures(h, doc, s.hostOS)
		if err != nil {
			return nil, &Error{Code: CodeInternal, Op: "ask the engine what it can do", Why: Bound(err.Error(), MaxWhy), Err: err}
		}
		s.served.known = known
	}
	s.served.since, s.served.at = since, before
	return s.served.known, nil
}

// sameEngine reports whether h is from the process that was looked at: same
// program, and begun at the same time. Uptimes are whole seconds.
func (v *served) sameEngine(h health, since time.Time) bool {
	if h.Version != v.known.version || engineOf(h) != v.known.engine || since.IsZero() || v.since.IsZero() {
		return false
	}
	return since.Sub(v.since).Abs() <= 2*time.Second
}

func (s *Smolvm) health(ctx context.Context) (h health, dialed bool, err error) {
	r := request{op: "ask the engine for its health", method: http.MethodGet, path: "/health", wait: healthWait}
	a, err := s.wire.open(ctx, r)
	if err != nil {
		return h, false, err
	}
	defer a.Close()
	data, err := a.read()
	if err != nil {
		return h, a.dialed, err
	}
	if json.Unmarshal(data, &h) != nil || h.Status != "ok" || h.Version == "" {
		return h, a.dialed, r.fail(CodeUnavailable, false, fmt.Errorf("what answers is not smolvm: %s", Bound(string(data), 256)))
	}
	return h, a.dialed, nil
}

// OpenAPI returns the description that the running engine gives of itself.
func (s *Smolvm) OpenAPI(ctx context.Context) ([]byte, error) {
	a, err := s.wire.open(ctx, request{op: "read the engine's OpenAPI document", method: http.MethodGet, path: openapiPath, wait: readWait})
	if err != nil {
		return nil, err
	}
	defer a.Close()
	return a.read()
}

const openapiPath = "/api-docs/openapi.json"

// openapi is an OpenAPI document as far as we read it. Its info.version has
// been 0.5.2 over dozens of releases and is not looked at.
type openapi struct {
	Paths      map[string]map[string]json.RawMessage `json:"paths"`
	Components struct {
		Schemas map[string]struct {
			Properties map[string]json.RawMessage `json:"properties"`
		} `json:"schemas"`
	} `json:"components"`
}

func readFeatures(h health, doc []byte, hostOS string) (*features, error) {
	var api openapi
	if err := json.Unmarshal(doc, &api); err != nil {
		return nil, fmt.Errorf("its OpenAPI document: %w", err)
	}
	if len(api.Paths) == 0 {
		return nil, errors.New("its OpenAPI document names no paths")
	}
	f := &features{engine: engineOf(h), version: h.Version, accel: h.Accel, isolation: h.Isolation}
	f.Pull = api.serves("POST", "/images/pull")
	f.Suspend = api.serves("POST", "/pause") && api.serves("POST", "/resume")
	f.HostPull = f.engine != "smolvm" || atLeast(h.Version, "1.23.0")
	f.Mounts = api.field("CreateMachineRequest", "mounts")
	f.Overlay = api.field("CreateMachineRequest", "overlayGb")
	f.Cmd = api.field("CreateMachineRequest", "cmd")
	f.parts = api.header("GET", "/files/{path}", "Range")
	f.noStart = api.field("ExecRequest", "start")
	f.jobs = api.serves("POST", "/jobs")
	f.branchableQuery = "forkable"
	if api.parameter("POST", "/start", "branchable") {
		f.branchableQuery = "branchable"
	}
	f.branching(api, hostOS)
	return f, nil
}

// branching finds out how to branch: by branches from 1.14, by fork before.
func (f *features) branching(api openapi, hostOS string) {
	for _, route := range []string{"/branches", "/fork"} {
		if f.branchRoute == "" && api.serves("POST", route) {
			f.branchRoute = route
		}
	}
	switch {
	case hostOS == "windows":
		f.whyNoBranch = "branches need memory shared between machines, which the engine cannot do on Windows"
	case f.branchRoute == "":
		f.whyNoBranch = f.engine + " " + f.version + " serves neither branches nor fork"
	default:
		f.Branch = true
	}
	f.freezeSource = api.bodyField("POST", f.branchRoute, "freezeSource")
	f.BranchRunning = f.Branch && f.freezeSource
}

// operation returns a route below a machine, whatever its parameter is called.
func (api openapi) operation(method, below string) (json.RawMessage, bool) {
	for path, methods := range api.Paths {
		rest, ok := strings.CutPrefix(path, machinesPath+"/{")
		_, rest, closed := strings.Cut(rest, "}")
		if ok && closed && rest == below {
			if op, ok := methods[strings.ToLower(method)]; ok {
				return op, true
			}
		}
	}
	return nil, false
}

func (api openapi) serves(method, below string) bool {
	_, ok := api.operation(method, below)
	return ok
}

func (api openapi) field(schema, name string) bool {
	_, ok := api.Components.Schemas[schema].Properties[name]
	return ok
}

// parameter reports whether a route takes the query parameter.
func (api openapi) parameter(method, below, name string) bool {
	var op struct {
		Parameters []struct{ Name, In string }
	}
	data, _ := api.operation(method, below)
	_ = json.Unmarshal(data, &op) // no such route: no parameters
	return slices.ContainsFunc(op.Parameters, func(p struct{ Name, In string }) bool { return p.Name == name && p.In == "query" })
}

// bodyField reports whether the JSON body of a route has the field.
func (api openapi) bodyField(method, below, name string) bool {
	var op struct {
		RequestBody struct {
			Content map[string]struct {
				Schema struct {
					Ref        string                     `json:"$ref"`
					Properties map[string]json.RawMessage `json:"properties"`
				} `json:"schema"`
			} `json:"content"`
		} `json:"requestBody"`
	}
	data, _ := api.operation(method, below)
	_ = json.Unmarshal(data, &op)
	schema := op.RequestBody.Content["application/json"].Schema
	if _, ok := schema.Properties[name]; ok {
		return true
	}
	return api.field(strings.TrimPrefix(schema.Ref, "#/components/schemas/"), name)
}

func engineOf(h health) string {
	if h.Engine == "" {
		return "smolvm"
	}
	return h.Engine
}

// atLeast reports whether version is wanted or later, by its dotted numbers; what
// follows them, as -rc1, does not count. A version without numbers is not
// later than anything.
func atLeast(version, wanted string) bool {
	have, want := numbers(version), numbers(wanted)
	for len(have) > 0 && len(have) < len(want) { // 1.14 is 1.14.0
		have = append(have, 0)
	}
	return slices.Compare(have, want) >= 0
}

// numbers returns the dotted numbers that a version begins with.
func numbers(version string) []int {
	var out []int
	for _, part := range strings.Split(strings.TrimPrefix(version, "v"), ".") {
		digits := part[:len(part)-len(strings.TrimLeft(part, "0123456789"))]
		n, err := strconv.Atoi(digits)
		if err != nil {
			break
		}
		if out = append(out, n); digits != part {
			break
		}
	}
	return out
}
