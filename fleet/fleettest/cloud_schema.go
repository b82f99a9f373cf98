package fleettest

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"sort"
	"strings"
)

// cloudFields is what request bodies of smol cloud may hold: a name ends in "!"
// when it must be there, in "+" when shipped clients send it and the published
// document does not have it; "*" stands for any name. A list shows one of its
// elements. Null is as good as absent.
//
//go:embed testdata/cloud/requests.json
var cloudFields []byte

// cloudRequests reads the table.
func cloudRequests() (map[string]any, error) {
	var table map[string]any
	err := json.Unmarshal(cloudFields, &table)
	return table, err
}

// checkBody compares a body with the table's row and returns what is wrong with it.
// Unlike the service, which drops what it does not know, it names unknown fields.
func checkBody(schema any, body []byte) []string {
	if len(body) == 0 {
		body = []byte("{}")
	}
	var value any
	if err := json.Unmarshal(body, &value); err != nil {
		return []string{err.Error()}
	}
	var wrong []string
	compareBody("body", schema, value, &wrong)
	sort.Strings(wrong)
	return wrong
}

func compareBody(path string, schema, value any, wrong *[]string) {
	note := func(format string, args ...any) { *wrong = append(*wrong, path+" "+fmt.Sprintf(format, args...)) }
	switch want := schema.(type) {
	case string:
		if kind := kindOf(value); kind != want {
			note("is a %s and not a %s", kind, want)
		}
	case []any:
		list, ok := value.([]any)
		if !ok {
			note("is no list")
		}
		for i, v := range list {
			compareBody(fmt.Sprintf("%s[%d]", path, i), want[0], v, wrong)
		}
	case map[string]any:
		fields, ok := value.(map[string]any)
		if !ok {
			note("is no object")
			return
		}
		compareFields(path, want, fields, wrong)
	}
}

func compareFields(path string, want, fields map[string]any, wrong *[]string) {
	known := make(map[string]any, len(want))
	for name, schema := range want {
		plain := strings.TrimRight(name, "!+")
		known[plain] = schema
		if strings.Contains(name, "!") && fields[plain] == nil {
			*wrong = append(*wrong, path+" lacks "+plain)
		}
	}
	for name, v := range fields {
		schema, ok := known[name]
		if !ok {
			schema, ok = known["*"]
		}
		switch {
		case !ok:
			*wrong = append(*wrong, path+" has the unknown field "+name)
		case v != nil:
			compareBody(path+"."+name, schema, v, wrong)
		}
	}
}

func kindOf(value any) string {
	switch v := value.(type) {
	case string:
		return "string"
	case bool:
		return "boolean"
	case float64:
		if v >= 0 && v == float64(int64(v)) {
			return "integer"
		}
		return "number"
	}
	return fmt.Sprintf("%T", value)
}
