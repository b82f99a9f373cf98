package tools

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"strings"

	"smol-mcp/fleet"
)

// carried begins the names under which the variables of a command come to run.sh.
const carried = "SMOL_E_"

// ownNames is err with the variables of the command under the names that the user
// gave them. Only refusals name any.
func (j job) ownNames(err error) error {
	var e *fleet.Error
	if !errors.As(err, &e) || e.Code != fleet.CodeInvalid || !strings.Contains(e.Why, carried) {
		return err
	}
	names := slices.SortedFunc(maps.Keys(j.env), func(a, b string) int { return cmp.Compare(len(b), len(a)) })
	var pairs []string
	for _, name := range names { // the longest first, since one may begin with another
		pairs = append(pairs, carried+name, name)
	}
	named := *e
	named.Why = strings.NewReplacer(pairs...).Replace(e.Why)
	return &named
}
