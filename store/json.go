package store

import (
	"encoding/json"
	"reflect"
	"strings"
)

// keepUnknown adds to data, the JSON of v, the fields of old that v's type does
// not know: a newer version wrote them and wants them back.
func keepUnknown(old, data []byte, v any) ([]byte, error) {
	t := reflect.TypeOf(v)
	if t.Kind() != reflect.Struct {
		return data, nil
	}
	var was map[string]json.RawMessage
	if err := json.Unmarshal(old, &was); err != nil {
		return data, nil
	}
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		delete(was, name)
	}
	if len(was) == 0 {
		return data, nil
	}
	var is map[string]json.RawMessage
	if err := json.Unmarshal(data, &is); err != nil {
		return nil, err
	}
	for k, raw := range was {
		is[k] = raw
	}
	return json.Marshal(is)
}
