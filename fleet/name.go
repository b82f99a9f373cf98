package fleet

import (
	"regexp"
	"strings"
)

// smolvm accepts longer names and upper case; the cloud does not. One rule for
// all fleets keeps a name valid wherever it is used.
var nameRule = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,39}$`)

// NameRule says in words what [CheckName] accepts.
const NameRule = "1 to 40 of a-z, 0-9 and '-', beginning with a letter or digit, without '--' and not ending in '-'"

// CheckName refuses names that we would not give a machine.
func CheckName(name string) error {
	if !nameRule.MatchString(name) || strings.Contains(name, "--") || strings.HasSuffix(name, "-") {
		return &Error{Code: CodeInvalid, Op: "machine name " + Quote(name), Why: "a name is " + NameRule}
	}
	return nil
}

// foreignName is what smolvm accepts: machines of other programs may have such names, and
// can be used under them.
var foreignName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,127}$`)

// CheckAnyName refuses names that no machine can have, and so everything that would change the
// meaning of a request path.
func CheckAnyName(name string) error {
	if !foreignName.MatchString(name) {
		return &Error{Code: CodeInvalid, Op: "machine name " + Quote(name), Why: "no machine can have this name: letters, digits, '-' and '_' only, at most 128"}
	}
	return nil
}

// Quote returns s in quotes, bounded for use in an error.
func Quote(s string) string { return `"` + Bound(s, 64) + `"` }
