package fleettest

import (
	"cmp"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Releases that changed what we play.
const (
	branchesSince = "1.14.2"
	freezeSince   = "1.18.0" // some release after 1.14.5; which one is not known
	pauseSince    = "1.18.0"
)

// smolvmRoute is a route of the API and what the OpenAPI document says of it.
type smolvmRoute struct {
	method, pattern string
	since           string // the first release that has it; any when empty
	handle          func(*smolvmServer, *call) reply
	body            string   // schema of the request's body
	query           []string // parameters, each as name or name@release
}

// smolvmRoutes is the whole API that is played.
func smolvmRoutes() []smolvmRoute {
	const machines = "/api/v1/machines"
	const name, id = machines + "/{name}", machines + "/{id}"
	type server = smolvmServer
	return []smolvmRoute{
		{"GET", "/health", "", (*server).health, "", nil},
		{"GET", "/readyz", "", func(*server, *call) reply { return reply{status: 200} }, "", nil},
		{"GET", "/capacity", "", (*server).capacity, "", nil},
		{"GET", "/api-docs/openapi.json", "", func(_ *server, r *call) reply { return jsonReply(openAPI(r.version)) }, "", nil},
		{"GET", machines, "", (*server).list, "", nil},
		{"POST", machines, "", (*server).create, "CreateMachineRequest", nil},
		{"GET", name, "", (*server).get, "", nil},
		{"DELETE", name, "", (*server).remove, "", []string{"force", "cascade"}},
		{"POST", name + "/start", "", (*server).start, "", []string{"forkable", "branchable@1.14.5"}},
		{"POST", name + "/stop", "", (*server).stop, "", nil},
		{"POST", name + "/fork", "", (*server).branch, "ForkRequest", nil},
		{"POST", name + "/branches", branchesSince, (*server).branch, "BranchRequest", nil},
		{"POST", name + "/pause", pauseSince, (*server).suspend, "", nil},
		{"POST", name + "/resume", pauseSince, (*server).resume, "", nil},
		{"POST", id + "/exec", "", (*server).exec, "ExecRequest", nil},
		{"GET", id + "/files/{path...}", "", (*server).download, "", nil},
		{"PUT", id + "/files/{path...}", "", (*server).upload, "", nil},
		{"GET", id + "/logs", "", (*server).logs, "", []string{"follow", "tail", "format"}},
		{"GET", id + "/images", "", (*server).images, "", nil},
		{"POST", id + "/images/pull", "", (*server).pull, "PullImageRequest", nil},
	}
}

// route finds the route of a call and carries it out.
func (s *smolvmServer) route(r *call) reply {
	status := http.StatusNotFound
	for _, t := range smolvmRoutes() {
		if t.since != "" && !atLeast(r.version, t.since) {
			continue
		}
		vars, ok, err := match(t.pattern, r.URL.EscapedPath())
		switch {
		case err != nil:
			return textReply(http.StatusBadRequest, "Invalid URL: %v", err)
		case !ok:
		case t.method != r.Method:
			status = http.StatusMethodNotAllowed
		default:
			r.vars = vars
			return t.handle(s, r)
		}
	}
	return reply{status: status}
}

func (s *smolvmServer) health(r *call) reply {
	s.mu.Lock()
	defer s.mu.Unlock()
	running := 0
	for _, m := range s.machines {
		if m.rec.State == "running" {
			running++
		}
	}
	h := map[string]any{
		"status": "ok", "version": r.version, "uptime_seconds": int(time.Since(s.began).Seconds()),
		"machines": map[string]int{"total": len(s.machines), "running": running},
	}
	if s.builtin {
		h["engine"], h["accel"], h["isolation"] = "qemu", "tcg", "emulated VM"
	}
	return jsonReply(h)
}

func (s *smolvmServer) capacity(r *call) reply {
	s.mu.Lock()
	defer s.mu.Unlock()
	cpus, memory := 0, 0
	for _, m := range s.machines {
		cpus += int(valueOr(m.rec.Create.CPUs, 4))
		memory += int(valueOr(m.rec.Create.MemoryMB, 8192))
	}
	return jsonReply(map[string]any{
		"allocated_cpus": cpus, "allocated_memory_mb": memory, "used_cpus": 0.5, "used_memory_mb": 64, "used_disk_gb": 1, "boot_id": s.bootID,
	})
}

// sinceField is a field of a body and the release that brought it.
type sinceField struct{ name, kind, since string }

var schemaFields = map[string][]sinceField{
	"CreateMachineRequest": {
		{"allowedCidrs", "array", ""}, {"allowedHosts", "array", ""}, {"autoGraph", "boolean", "1.14.2"}, {"blobPeers", "array", ""},
		{"blockIo", "string", "1.14.3"}, {"cmd", "array", ""}, {"cpus", "integer", ""}, {"credentials", "object", "1.18.0"},
		{"cuda", "boolean", ""}, {"dockerSocket", "boolean", ""}, {"entrypoint", "array", ""}, {"env", "array", ""},
		{"from", "string", ""}, {"gpu", "boolean", ""}, {"guestSubnet", "string", "1.18.0"}, {"image", "string", ""},
		{"memoryMb", "integer", ""}, {"mounts", "array", ""}, {"name", "string", ""}, {"nestedVirt", "boolean", "1.22.0"},
		{"network", "boolean", ""}, {"networkBackend", "string", ""}, {"overlayGb", "integer", ""}, {"ports", "array", ""},
		{"registryIdentityToken", "string", ""}, {"registryRef", "string", ""}, {"restart", "object", ""}, {"secrets", "object", ""},
		{"storageGb", "integer", ""}, {"workdir", "string", ""},
	},
	"ForkRequest":   {{"name", "string", ""}, {"ports", "array", ""}, {"shareWeights", "boolean", ""}, {"freezeSource", "boolean", freezeSince}},
	"BranchRequest": {{"name", "string", ""}, {"ports", "array", ""}, {"shareWeights", "boolean", ""}, {"freezeSource", "boolean", freezeSince}},
	"ExecRequest": {
		{"command", "array", ""}, {"env", "array", ""}, {"workdir", "string", ""}, {"timeoutSecs", "integer", ""},
		{"stdin", "string", ""}, {"background", "boolean", ""}, {"secrets", "object", ""},
	},
	"PullImageRequest": {{"image", "string", ""}, {"ociPlatform", "string", ""}, {"proxy", "string", ""}, {"noProxy", "string", ""}},
}

// fieldNames returns the fields of a schema that a release knows.
func fieldNames(schema, version string) []string {
	var names []string
	for _, f := range schemaFields[schema] {
		if f.since == "" || atLeast(version, f.since) {
			names = append(names, f.name)
		}
	}
	return names
}

// openAPI is the document that a release serves. Its info.version stands still, as the real one's does.
func openAPI(version string) map[string]any {
	paths := map[string]map[string]any{}
	for _, t := range smolvmRoutes() {
		if t.since != "" && !atLeast(version, t.since) || strings.HasPrefix(t.pattern, "/api-docs") {
			continue
		}
		op := map[string]any{"responses": map[string]any{"200": map[string]any{"description": "Done"}}}
		if t.body != "" {
			op["requestBody"] = map[string]any{"required": true, "content": map[string]any{
				"application/json": map[string]any{"schema": map[string]any{"$ref": "#/components/schemas/" + t.body}},
			}}
		}
		if params := parameters(t, version); len(params) > 0 {
			op["parameters"] = params
		}
		p := strings.ReplaceAll(t.pattern, "...", "")
		if paths[p] == nil {
			paths[p] = map[string]any{}
		}
		paths[p][strings.ToLower(t.method)] = op
	}
	schemas := map[string]any{}
	for name, fields := range schemaFields {
		properties := map[string]any{}
		for _, f := range fields {
			if f.since == "" || atLeast(version, f.since) {
				properties[f.name] = map[string]any{"type": f.kind}
			}
		}
		schemas[name] = map[string]any{"type": "object", "properties": properties}
	}
	return map[string]any{
		"openapi": "3.1.0", "info": map[string]any{"title": "smolvm API", "version": "0.5.2"},
		"paths": paths, "components": map[string]any{"schemas": schemas},
	}
}

func parameters(t smolvmRoute, version string) []map[string]any {
	var list []map[string]any
	for _, elem := range strings.Split(t.pattern, "/") {
		if strings.HasPrefix(elem, "{") {
			list = append(list, map[string]any{"name": strings.Trim(elem, "{.}"), "in": "path", "required": true})
		}
	}
	for _, q := range t.query {
		name, since, _ := strings.Cut(q, "@")
		if since == "" || atLeast(version, since) {
			list = append(list, map[string]any{"name": name, "in": "query", "required": false})
		}
	}
	return list
}

// atLeast compares releases such as 1.14.5, number by number.
func atLeast(version, wanted string) bool {
	have, want := strings.Split(version, "."), strings.Split(wanted, ".")
	for i, w := range want {
		h := "0"
		if i < len(have) {
			h = have[i]
		}
		a, _ := strconv.Atoi(h)
		b, _ := strconv.Atoi(w)
		if c := cmp.Compare(a, b); c != 0 {
			return c > 0
		}
	}
	return true
}
