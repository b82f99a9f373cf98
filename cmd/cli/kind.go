package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// kind is how the values of a setting are written and what they may be.
type kind interface {
	initial() any                     // the default
	parse(text string) (any, error)   // of an environment variable; empty clears
	decode(value []byte) (any, error) // of the file, one valid JSON value
	bounds() string                   // for people; empty: anything
}

// whole is a whole number in decimal.
type whole struct{ def, min, max int }

var decimal = regexp.MustCompile(`^-?(0|[1-9][0-9]*)$`)

func (k whole) initial() any { return k.def }

func (k whole) bounds() string { return fmt.Sprintf("%d to %d", k.min, k.max) }

func (k whole) parse(s string) (any, error) {
	if s == "" {
		return k.def, nil
	}
	if !decimal.MatchString(s) {
		return nil, fmt.Errorf("%q is not a whole number", s)
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < k.min || n > k.max {
		return nil, fmt.Errorf("%s is not in %s", s, k.bounds())
	}
	return n, nil
}

func (k whole) decode(v []byte) (any, error) {
	if !decimal.Match(v) {
		return nil, fmt.Errorf("must be a whole number, not %s", show(v))
	}
	return k.parse(string(v))
}

// choice is one of a few words; the first is the default.
type choice []string

func (k choice) initial() any { return k[0] }

func (k choice) bounds() string { return strings.Join(k, ", ") }

func (k choice) parse(s string) (any, error) {
	if s == "" {
		return k[0], nil
	}
	return k.pick(s)
}

func (k choice) decode(v []byte) (any, error) {
	s, err := decodeString(v)
	if err != nil {
		return nil, err
	}
	return k.pick(s)
}

func (k choice) pick(s string) (any, error) {
	if !slices.Contains(k, s) {
		return nil, fmt.Errorf("%q is none of %s", s, k.bounds())
	}
	return s, nil
}

// text is a string.
type text struct {
	def    string
	check  func(string) error
	secret bool // never printed
}

func (k text) initial() any { return k.def }

func (k text) bounds() string { return "" }

func (k text) parse(s string) (any, error) { return s, k.check(s) }

func (k text) decode(v []byte) (any, error) {
	s, err := decodeString(v)
	if err != nil {
		return nil, err
	}
	return k.parse(s)
}

// list is a list of paths: an array in the file, in a variable separated as
// PATH is.
type list struct{ check func(string) error }

func (k list) initial() any { return []string(nil) }

func (k list) bounds() string { return "" }

func (k list) parse(s string) (any, error) {
	return k.each(slices.DeleteFunc(filepath.SplitList(s), func(p string) bool { return p == "" }))
}

func (k list) decode(v []byte) (any, error) {
	var items []*string
	if json.Unmarshal(v, &items) != nil || items == nil || slices.Contains(items, nil) {
		return nil, fmt.Errorf("must be a list of strings, not %s", show(v))
	}
	paths := make([]string, len(items))
	for i, p := range items {
		if paths[i] = *p; paths[i] == "" {
			return nil, fmt.Errorf("must not have an empty path in it")
		}
	}
	return k.each(paths)
}

func (k list) each(paths []string) (any, error) {
	for i, p := range paths {
		if err := k.check(p); err != nil {
			return nil, err
		}
		paths[i] = filepath.Clean(p)
	}
	return paths, nil
}

// words is a list of words: an array in the file, or as in a variable separated by commas.
type words struct{ check func(string) error }

func (k words) initial() any { return []string(nil) }

func (k words) bounds() string { return "" }

func (k words) parse(s string) (any, error) {
	var all []string
	for _, w := range strings.Split(s, ",") {
		if w = strings.TrimSpace(w); w == "" {
			continue
		}
		if err := k.check(w); err != nil {
			return nil, err
		}
		all = append(all, w)
	}
	return all, nil
}

func (k words) decode(v []byte) (any, error) {
	var items []string
	if json.Unmarshal(v, &items) == nil {
		return k.parse(strings.Join(items, ","))
	}
	s, err := decodeString(v)
	if err != nil {
		return nil, fmt.Errorf("must be a list of strings, not %s", show(v))
	}
	return k.parse(s)
}

func decodeString(v []byte) (string, error) {
	var s *string
	if json.Unmarshal(v, &s) != nil || s == nil {
		return "", fmt.Errorf("must be a string, not %s", show(v))
	}
	return *s, nil
}

// show describes a JSON value in an error without repeating a long one.
func show(v []byte) string {
	switch {
	case len(v) > 40 && v[0] == '{':
		return "an object"
	case len(v) > 40 && v[0] == '[':
		return "a list"
	case len(v) > 40:
		return "a value of another type"
	}
	return string(v)
}

// set puts a value of a kind into its field.
func (s setting) set(v any) {
	switch p := s.field.(type) {
	case *int:
		*p = v.(int)
	case *string:
		*p = v.(string)
	case *[]string:
		*p, _ = v.([]string)
	}
}

// load returns the value of the field.
func (s setting) load() any {
	switch p := s.field.(type) {
	case *int:
		return *p
	case *string:
		return *p
	case *[]string:
		return *p
	}
	return nil
}

// secret reports whether the value is never to be printed.
func (s setting) secret() bool {
	k, ok := s.kind.(text)
	return ok && k.secret
}

// print returns a value for people: secrets only as set or not set.
func (s setting) print() string {
	if s.secret() {
		if s.load() == "" {
			return "not set"
		}
		return "set"
	}
	if v, ok := s.load().([]string); ok {
		if _, commas := s.kind.(words); commas {
			return strings.Join(v, ",")
		}
		return strings.Join(v, string(os.PathListSeparator))
	}
	return fmt.Sprint(s.load())
}
