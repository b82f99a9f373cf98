package fleet

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestCheckName(t *testing.T) {
	for name, want := range map[string]bool{
		"a": true, "0": true, "mcp-abc": true, strings.Repeat("a", 40): true, "a-1-b": true,
		"": false, "-a": false, "a-": false, "a--b": false, strings.Repeat("a", 41): false, "A": false, "a_b": false, "a.b": false,
		"a/b": false, "..": false, "a b": false, "é": false, "a\x00": false, "%2e": false,
	} {
		if got := CheckName(name) == nil; got != want {
			t.Errorf("%q is taken: %v", name, got)
		}
	}
	for name, want := range map[string]bool{
		"Vm_1-x": true, "a--b": true, strings.Repeat("Z", 128): true,
		"": false, "-a": false, "_a": false, strings.Repeat("a", 129): false, "..": false, "a/b": false, "a%2f": false, "a?b": false,
	} {
		if got := CheckAnyName(name) == nil; got != want {
			t.Errorf("%q is possible: %v", name, got)
		}
	}
}

func TestBound(t *testing.T) {
	for _, c := range []struct {
		in   string
		n    int
		want string
	}{
		{"short", 10, "short"},
		{" a\x00b\x1b[31m ", 20, "a b [31m"},
		{strings.Repeat("x", 30), 20, strings.Repeat("x", 14) + " [cut]"},
		{strings.Repeat("é", 30), 21, strings.Repeat("é", 7) + " [cut]"},
		{"bad \xff byte", 20, "bad   byte"},
	} {
		got := Bound(c.in, c.n)
		if got != c.want || len(got) > c.n || !utf8.ValidString(got) {
			t.Errorf("Bound(%q, %d) = %q, want %q", c.in, c.n, got, c.want)
		}
	}
}
