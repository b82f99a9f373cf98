package tools

import (
	"encoding/json"

	"github.com/google/jsonschema-go/jsonschema"
)

// Schemas are written by hand rather than inferred: inference costs
// milliseconds at every start, turns slices into unions with null, and knows no
// bounds. A test holds each schema against the Go type that it is for.

// A field is one property of an object schema.
type field struct {
	name     string
	schema   *jsonschema.Schema
	required bool
}

func required(name string, s *jsonschema.Schema) field { return field{name, s, true} }
func optional(name string, s *jsonschema.Schema) field { return field{name, s, false} }

// arguments are a closed object: what it does not name is refused, never dropped.
func arguments(fields ...field) *jsonschema.Schema {
	s := object(fields...)
	s.AdditionalProperties = &jsonschema.Schema{Not: &jsonschema.Schema{}}
	return s
}

func object(fields ...field) *jsonschema.Schema {
	s := &jsonschema.Schema{Type: "object", Properties: make(map[string]*jsonschema.Schema, len(fields))}
	for _, f := range fields {
		s.Properties[f.name] = f.schema
		s.PropertyOrder = append(s.PropertyOrder, f.name)
		if f.required {
			s.Required = append(s.Required, f.name)
		}
	}
	return s
}

func text(description string) *jsonschema.Schema {
	return &jsonschema.Schema{Type: "string", Description: description}
}

func oneOf(description string, words ...string) *jsonschema.Schema {
	s := text(description)
	for _, w := range words {
		s.Enum = append(s.Enum, w)
	}
	return s
}

func flag(description string) *jsonschema.Schema {
	return &jsonschema.Schema{Type: "boolean", Description: description}
}

func integer(description string) *jsonschema.Schema {
	return &jsonschema.Schema{Type: "integer", Description: description}
}

// between is an integer of min to max.
func between(description string, min, max int) *jsonschema.Schema {
	s := integer(description)
	s.Minimum, s.Maximum = jsonschema.Ptr(float64(min)), jsonschema.Ptr(float64(max))
	return s
}

func list(description string, item *jsonschema.Schema) *jsonschema.Schema {
	return &jsonschema.Schema{Type: "array", Description: description, Items: item}
}

// atMost is a list of up to max items.
func atMost(max int, description string, item *jsonschema.Schema) *jsonschema.Schema {
	s := list(description, item)
	s.MaxItems = &max
	return s
}

// dict maps names to strings.
func dict(description string) *jsonschema.Schema {
	return &jsonschema.Schema{Type: "object", Description: description, AdditionalProperties: &jsonschema.Schema{Type: "string"}}
}

// plainObject is an object whose properties the description names.
func plainObject(description string) *jsonschema.Schema {
	return &jsonschema.Schema{Type: "object", Description: description}
}

// orNull is a value that may be null in a result. It carries no type, since
// several clients reject a union with null; the description names the type.
func orNull(description string) *jsonschema.Schema {
	return &jsonschema.Schema{Description: description}
}

// standard gives s a default that stands in the definition for the model to
// read; the handlers apply it.
func standard(s *jsonschema.Schema, value any) *jsonschema.Schema {
	raw, err := json.Marshal(value)
	if err != nil {
		panic("tools: a default that JSON cannot hold: " + err.Error())
	}
	s.Default = raw
	return s
}
