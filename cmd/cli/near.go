package cli

import (
	"fmt"
	"strings"

	"smol-mcp/tools"
)

// commandHint is the hint for a word that is no command.
func commandHint(word string) string {
	if word == "version" { // of many programs a command
		return versionHint
	}
	return hint(word, commandNames(), "smol-mcp help lists the commands")
}

const versionHint = "did you mean --version?"

// hint proposes the word of known that word was probably meant to be, else
// says what otherwise says. Words without a letter in common are not alike.
func hint(word string, known []string, otherwise string) string {
	best, far := "", max(2, len(word)/3)+1
	for _, k := range known {
		if len(word) > 3 && strings.HasPrefix(k, word) {
			best = k
			break
		}
		if d := tools.Distance(word, k); d < far && d < max(len(word), len(k)) {
			best, far = k, d
		}
	}
	if best == "" {
		return otherwise
	}
	return fmt.Sprintf("did you mean %s?", best)
}
