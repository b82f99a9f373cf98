package main

import (
	"fmt"
	"strings"
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
		if d := distance(word, k); d < far {
			best, far = k, d
		}
	}
	if best == "" {
		return otherwise
	}
	return fmt.Sprintf("did you mean %s?", best)
}

// distance is the number of bytes to insert, drop or change to make b of a.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
