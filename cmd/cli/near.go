package cli

import (
	"fmt"
	"strings"

	"smol-mcp/tools"
)

// hint proposes the word of known that word was probably meant to be, else
// says what otherwise says.
func hint(word string, known []string, otherwise string) string {
	best, far := "", max(2, len(word)/3)+1
	for _, k := range known {
		if len(word) > 3 && strings.HasPrefix(k, word) {
			best = k
			break
		}
		if d := tools.Distance(word, k); d < far {
			best, far = k, d
		}
	}
	if best == "" {
		return otherwise
	}
	return fmt.Sprintf("did you mean %s?", best)
}
