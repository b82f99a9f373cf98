package fleet

import "strings"

// NameRule says in words what [CheckName] accepts.
const NameRule = "1 to 40 of a-z, 0-9 and '-', beginning with a letter or digit, without '--' and not ending in '-'"

// CheckName refuses names that we would not give a machine. smolvm accepts more,
// the cloud does not: one rule keeps a name valid wherever it is used.
func CheckName(name string) error {
	ok := name != "" && len(name) <= 40 && name[0] != '-' && !strings.HasSuffix(name, "-") && !strings.Contains(name, "--")
	if !ok || strings.ContainsFunc(name, func(r rune) bool { return !isLower(r) && !isDigit(r) && r != '-' }) {
		return &Error{Code: CodeInvalid, Op: "machine name " + Quote(name), Why: "a name is " + NameRule}
	}
	return nil
}

// CheckAnyName refuses names that no machine can have, and so everything that
// would change the meaning of a request path. Machines of other programs may have
// names that we would not give, and can be used under them.
func CheckAnyName(name string) error {
	ok := name != "" && len(name) <= 128 && name[0] != '-' && name[0] != '_'
	if !ok || strings.ContainsFunc(name, func(r rune) bool { return !isLower(r) && !isDigit(r) && (r < 'A' || r > 'Z') && r != '-' && r != '_' }) {
		return &Error{Code: CodeInvalid, Op: "machine name " + Quote(name), Why: "no machine can have this name: letters, digits, '-' and '_' only, at most 128"}
	}
	return nil
}

func isLower(r rune) bool { return r >= 'a' && r <= 'z' }
func isDigit(r rune) bool { return r >= '0' && r <= '9' }

// Quote returns s in quotes, bounded for use in an error.
func Quote(s string) string { return `"` + Bound(s, 64) + `"` }
