//go:build unix

package engine

import (
	"net/http"
	"slices"
	"sort"
	"strings"
)

// schemas are the fields of request bodies, name and kind. A create refuses others,
// so a client can rely on what it asked for.
var schemas = map[string][][2]string{
	"CreateMachineRequest": {
		{"allowedCidrs", "array"}, {"allowedHosts", "array"}, {"cmd", "array"}, {"cpus", "integer"}, {"entrypoint", "array"}, {"env", "array"},
		{"image", "string"}, {"memoryMb", "integer"}, {"name", "string"}, {"network", "boolean"}, {"ports", "array"}, {"storageGb", "integer"},
		{"workdir", "string"},
	},
	"ExecRequest": {
		{"background", "boolean"}, {"command", "array"}, {"env", "array"}, {"start", "boolean"}, {"stdin", "string"}, {"timeoutSecs", "integer"}, {"workdir", "string"},
	},
	"JobRequest": {
		{"command", "array"}, {"done", "array"}, {"env", "array"}, {"epoch", "integer"}, {"id", "string"}, {"input", "string"},
		{"limit", "integer"}, {"shown", "string"}, {"stdin", "string"}, {"timeoutSecs", "integer"}, {"waitMs", "integer"}, {"workdir", "string"},
	},
	"PullImageRequest": {{"image", "string"}},
}

func schemaFields(schema string) []string {
	var names []string
	for _, f := range schemas[schema] {
		names = append(names, f[0])
	}
	sort.Strings(names)
	return names
}

// openAPI describes this very engine.
func (s *server) openAPI(w http.ResponseWriter, _ *call) error {
	paths := map[string]map[string]any{}
	for _, t := range s.routes {
		if strings.HasPrefix(t.pattern, "/api-docs") {
			continue
		}
		op := map[string]any{"responses": map[string]any{"200": map[string]any{"description": "Done"}}}
		if t.body != "" {
			op["requestBody"] = map[string]any{"required": true, "content": map[string]any{
				"application/json": map[string]any{"schema": map[string]any{"$ref": "#/components/schemas/" + t.body}},
			}}
		}
		if p := parameters(t); len(p) > 0 {
			op["parameters"] = p
		}
		path := strings.ReplaceAll(t.pattern, "...", "")
		if paths[path] == nil {
			paths[path] = map[string]any{}
		}
		paths[path][strings.ToLower(t.method)] = op
	}
	defined := map[string]any{}
	for name, fields := range schemas {
		properties := map[string]any{}
		for _, f := range fields {
			properties[f[0]] = map[string]any{"type": f[1]}
		}
		defined[name] = map[string]any{"type": "object", "properties": properties, "additionalProperties": false}
	}
	return answer(w, map[string]any{
		"openapi": "3.1.0", "info": map[string]any{"title": "smolvm API, as smol-engine answers it", "version": Version},
		"paths": paths, "components": map[string]any{"schemas": defined},
	})
}

func parameters(t route) []map[string]any {
	var list []map[string]any
	add := func(names []string, in string) {
		for _, name := range names {
			list = append(list, map[string]any{"name": name, "in": in, "required": in == "path", "schema": map[string]any{"type": "string"}})
		}
	}
	var vars []string
	for _, elem := range strings.Split(t.pattern, "/") {
		if strings.HasPrefix(elem, "{") {
			vars = append(vars, strings.Trim(elem, "{.}"))
		}
	}
	add(vars, "path")
	add(t.query, "query")
	add(t.header, "header")
	return slices.Clip(list)
}
