package tools_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

var update = flag.Bool("update", false, "rewrite the golden tool definitions")

const goldenDir = "../testdata/tools"

// TestGoldenDefinitions freezes what agents see: a change of a tool's words or
// schemas is a change of this project's surface, to be made on purpose.
func TestGoldenDefinitions(t *testing.T) {
	defined := definitions(t)
	for _, tool := range defined {
		file := filepath.Join(goldenDir, tool.Name+".json")
		got := indented(t, tool)
		if *update {
			if err := os.WriteFile(file, got, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s differs from its golden file (%v); if the change is meant, run: go test ./tools -run Golden -update", tool.Name, err)
		}
	}
	files, err := filepath.Glob(goldenDir + "/*.json")
	if err != nil || len(files) != len(defined) {
		t.Errorf("%d golden files for %d tools (%v)", len(files), len(defined), err)
	}
}

// TestDefinitionsFitTheContext bounds what the list costs an agent that has not
// called anything yet.
func TestDefinitionsFitTheContext(t *testing.T) {
	raw, err := json.Marshal(definitions(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("tools/list: %d bytes", len(raw))
	if len(raw) > 24_000 {
		t.Errorf("tools/list takes %d bytes, over 24 kB", len(raw))
	}
}

func TestFifteenTools(t *testing.T) {
	want := []string{"branch-machine", "create-machine", "delete-machine", "get-machine", "list-machines", "machine-logs", "pull-image",
		"read-command", "read-file", "run-command", "run-once", "start-machine", "stop-command", "stop-machine", "write-file"}
	var got []string
	for _, tool := range definitions(t) {
		got = append(got, tool.Name)
	}
	if !slices.Equal(got, want) {
		t.Errorf("tools %v", got)
	}
}

// firstWords are the verbs with which a description may begin.
var firstWords = regexp.MustCompile(`^(Lists|Shows|Creates|Runs|Reads|Writes|Starts|Makes|Stops|Deletes|Pulls) `)

// TestDescriptions holds the rules by which definitions are judged: a verb and a
// thing, when to use it, what instead, and short enough for every client.
func TestDescriptions(t *testing.T) {
	all := definitions(t)
	for _, tool := range all {
		d := tool.Description
		if !firstWords.MatchString(d) {
			t.Errorf("%s does not begin with a verb: %q", tool.Name, d[:30])
		}
		if !strings.Contains(d, "Use it") && !strings.Contains(d, "use this only") && !strings.Contains(d, "Prefer it") {
			t.Errorf("%s does not say when to use it", tool.Name)
		}
		if len(d) > 1024 || len(d) < 200 {
			t.Errorf("%s: a description of %d characters", tool.Name, len(d))
		}
		named := slices.ContainsFunc(all, func(other *mcp.Tool) bool { return other.Name != tool.Name && strings.Contains(d, other.Name) })
		if !named && tool.Name != "read-file" && tool.Name != "write-file" {
			t.Errorf("%s names no sibling to use instead", tool.Name)
		}
		if tool.Title == "" || strings.EqualFold(tool.Title, tool.Name) {
			t.Errorf("%s has no title", tool.Name)
		}
	}
}

// TestAnnotations: clients gate calls by these hints, so none is left to a default.
// W41: delete, stop and mounts can be gated.
func TestAnnotations(t *testing.T) {
	readOnly := []string{"get-machine", "list-machines", "machine-logs", "read-command", "read-file"}
	destructive := []string{"delete-machine", "run-command", "stop-command", "stop-machine", "write-file"}
	for _, tool := range definitions(t) {
		raw := indented(t, tool.Annotations)
		for _, hint := range []string{"readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"} {
			if !bytes.Contains(raw, []byte(`"`+hint+`"`)) {
				t.Errorf("%s: %s is not sent", tool.Name, hint)
			}
		}
		if got := tool.Annotations.ReadOnlyHint; got != slices.Contains(readOnly, tool.Name) {
			t.Errorf("%s: readOnlyHint %v", tool.Name, got)
		}
		if got := *tool.Annotations.DestructiveHint; got != slices.Contains(destructive, tool.Name) {
			t.Errorf("%s: destructiveHint %v", tool.Name, got)
		}
	}
}

// TestSchemas: closed arguments, every one of them described, no union with null, no
// reference, no combinator at the root, bounds on every number.
func TestSchemas(t *testing.T) {
	for _, tool := range definitions(t) {
		for side, schema := range map[string]any{"input": tool.InputSchema, "output": tool.OutputSchema} {
			s := parsed(t, schema)
			if s.Type != "object" || side == "input" && s.AdditionalProperties == nil || s.AnyOf != nil || s.OneOf != nil || s.AllOf != nil {
				t.Errorf("%s %s: the root is no closed object", tool.Name, side)
			}
			raw := indented(t, schema)
			if bytes.Contains(raw, []byte(`"null"`)) || bytes.Contains(raw, []byte(`"$ref"`)) {
				t.Errorf("%s %s: has a union with null or a reference", tool.Name, side)
			}
			walk(s, side, func(path string, p *jsonschema.Schema) {
				if side == "input" && p.Description == "" {
					t.Errorf("%s %s has no description", tool.Name, path)
				}
				if side == "input" && p.Type == "integer" && (p.Minimum == nil || p.Maximum == nil) {
					t.Errorf("%s %s has no bounds", tool.Name, path)
				}
			})
		}
	}
}

func walk(s *jsonschema.Schema, path string, visit func(path string, p *jsonschema.Schema)) {
	for name, p := range s.Properties {
		visit(path+"."+name, p)
		walk(p, path+"."+name, visit)
		if p.Items != nil {
			walk(p.Items, path+"."+name+"[]", visit)
		}
	}
}

func TestInstructions(t *testing.T) {
	r := newRig(t, rigOptions{})
	text := r.client.InitializeResult().Instructions
	if len(text) > 2048 || len(text) < 500 {
		t.Errorf("instructions of %d characters", len(text))
	}
	if strings.ContainsAny(text, "{}") {
		t.Errorf("a placeholder was left: %s", text)
	}
	for _, must := range []string{"mcp-", "blocked", "running: true", "read-file"} {
		if !strings.Contains(text, must) {
			t.Errorf("instructions do not speak of %q", must)
		}
	}
}

func definitions(t testing.TB) []*mcp.Tool {
	t.Helper()
	r := newRig(t, rigOptions{})
	list, err := r.client.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return list.Tools
}

func indented(t testing.TB, v any) []byte {
	t.Helper()
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func parsed(t testing.TB, schema any) *jsonschema.Schema {
	t.Helper()
	var s jsonschema.Schema
	if err := json.Unmarshal(indented(t, schema), &s); err != nil {
		t.Fatal(err)
	}
	return &s
}
