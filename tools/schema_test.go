package tools

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
)

// TestSchemasMatchTypes holds the hand-written schemas against the types that
// are decoded and encoded with them.
func TestSchemasMatchTypes(t *testing.T) {
	types := map[string][2]any{
		"list-machines":  {listIn{}, listOut{}},
		"get-machine":    {getIn{}, getOut{}},
		"create-machine": {createIn{}, createOut{}},
		"run-command":    {runIn{}, runOut{}},
		"read-command":   {readCommandIn{}, readCommandOut{}},
		"stop-command":   {stopCommandIn{}, readCommandOut{}},
		"run-once":       {onceIn{}, onceOut{}},
		"read-file":      {readIn{}, readOut{}},
		"write-file":     {writeIn{}, writeOut{}},
		"start-machine":  {startIn{}, startOut{}},
		"branch-machine": {branchIn{}, branchOut{}},
		"stop-machine":   {stopIn{}, machine{}},
		"delete-machine": {deleteIn{}, deleteOut{}},
		"machine-logs":   {logsIn{}, logsOut{}},
		"pull-image":     {pullIn{}, pullOut{}},
	}
	for _, tool := range table(Limits{MachinePrefix: "mcp-", MaxExecTimeout: time.Hour}) {
		pair, ok := types[tool.name]
		if !ok {
			t.Errorf("%s is not in this test", tool.name)
			continue
		}
		matches(t, tool.name+" input", tool.in, reflect.TypeOf(pair[0]), false)
		matches(t, tool.name+" output", tool.out, reflect.TypeOf(pair[1]), true)
	}
}

// matches compares names, kinds and, for results, which fields are always there.
func matches(t *testing.T, what string, s *jsonschema.Schema, typ reflect.Type, result bool) {
	t.Helper()
	if s.Properties == nil { // defined elsewhere
		return
	}
	fields := map[string]reflect.StructField{}
	for _, f := range reflect.VisibleFields(typ) {
		if f.Anonymous || !f.IsExported() {
			continue
		}
		name, option, _ := strings.Cut(f.Tag.Get("json"), ",")
		fields[name] = f
		p := s.Properties[name]
		if p == nil && strings.HasPrefix(s.Description, "And ") {
			continue
		}
		if p == nil {
			t.Errorf("%s: the schema lacks %s", what, name)
			continue
		}
		if result && slices.Contains(s.Required, name) == (option == "omitempty") {
			t.Errorf("%s: %s is required in one and optional in the other", what, name)
		}
		same(t, what+"."+name, p, f.Type, result)
	}
	for name := range s.Properties {
		if _, ok := fields[name]; !ok {
			t.Errorf("%s: the type lacks %s", what, name)
		}
	}
}

func same(t *testing.T, what string, p *jsonschema.Schema, typ reflect.Type, result bool) {
	t.Helper()
	if p.Type == "" { // a union, or a value that may be null
		return
	}
	for typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	kinds := map[reflect.Kind]string{reflect.String: "string", reflect.Bool: "boolean", reflect.Int: "integer", reflect.Int64: "integer",
		reflect.Slice: "array", reflect.Map: "object", reflect.Struct: "object"}
	if kinds[typ.Kind()] != p.Type {
		t.Errorf("%s: schema %s, type %s", what, p.Type, typ)
		return
	}
	switch typ.Kind() {
	case reflect.Struct:
		matches(t, what, p, typ, result)
	case reflect.Slice:
		same(t, what+"[]", p.Items, typ.Elem(), result)
	}
}
