package httpd

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Token is who may use the server, and what for. Its holder is a principal, by
// its name.
type Token struct {
	Name     string
	Hash     [sha256.Size]byte // of the token
	Machines int               // at once; 0: no limit of its own
	Targets  []string          // nil: all
	Tools    []string          // nil: all
	ReadOnly bool
}

// Hash is what is kept of a token. A plain hash is enough, since tokens are random.
func Hash(token string) [sha256.Size]byte { return sha256.Sum256([]byte(token)) }

// tokenPrefix lets people and scanners tell our tokens from others.
const tokenPrefix = "smol_"

// NewToken makes a token of 256 random bits.
func NewToken() string {
	b := make([]byte, 32)
	if _, err := rand.Read(b); err != nil {
		panic("httpd: the system gives no random bytes: " + err.Error())
	}
	return tokenPrefix + base64.RawURLEncoding.EncodeToString(b)
}

// Bounds of tokens and their names.
const (
	maxToken     = 4096 // bytes
	maxTokenName = 64
	shortToken   = 16 // fewer bytes can be guessed
)

// CheckToken refuses what no header can carry.
func CheckToken(token string) error {
	switch {
	case token == "":
		return fmt.Errorf("the token is empty")
	case len(token) > maxToken:
		return fmt.Errorf("the token is longer than %d bytes", maxToken)
	case strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }):
		return fmt.Errorf("the token has characters other than visible ASCII")
	}
	return nil
}

// IsShort reports whether a token is so short that it may be guessed.
func IsShort(token string) bool { return len(token) < shortToken }

// CheckTokenName accepts a-z, A-Z, 0-9, '.', '_' and '-'.
func CheckTokenName(name string) error {
	odd := func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("._-", r)
	}
	if name == "" || len(name) > maxTokenName || strings.ContainsFunc(name, odd) {
		return fmt.Errorf("%q is no name: 1 to %d of a-z, A-Z, 0-9, '.', '_' and '-'", name, maxTokenName)
	}
	return nil
}

const hashWord = "sha256:"

// Line is the token's line in a file of tokens: its name, its hash and its limits.
func (t Token) Line() string {
	words := []string{t.Name, hashWord + hex.EncodeToString(t.Hash[:])}
	if t.Machines > 0 {
		words = append(words, "machines="+strconv.Itoa(t.Machines))
	}
	if t.Targets != nil {
		words = append(words, "targets="+strings.Join(t.Targets, ","))
	}
	if t.Tools != nil {
		words = append(words, "tools="+strings.Join(t.Tools, ","))
	}
	if t.ReadOnly {
		words = append(words, "read-only")
	}
	return strings.Join(words, " ")
}

// Vocabulary is what limits may name.
type Vocabulary struct{ Targets, Tools []string }

// ParseTokens reads the lines of a file of tokens. Empty ones and those that begin
// with # are skipped. The error names the line.
func ParseTokens(text string, known Vocabulary) ([]Token, error) {
	var all []Token
	for i, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		t, err := parseToken(line, known)
		if err == nil && slices.ContainsFunc(all, func(o Token) bool { return o.Name == t.Name }) {
			err = fmt.Errorf("there is a token %s above", t.Name)
		}
		if err == nil && slices.ContainsFunc(all, func(o Token) bool { return o.Hash == t.Hash }) {
			err = fmt.Errorf("another name above has the same token")
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", i+1, err)
		}
		all = append(all, t)
	}
	return all, nil
}

func parseToken(line string, known Vocabulary) (Token, error) {
	words := strings.Fields(line)
	t := Token{Name: words[0]}
	if err := CheckTokenName(t.Name); err != nil {
		return t, err
	}
	if len(words) < 2 {
		return t, fmt.Errorf("the hash of the token is missing")
	}
	digits, ok := strings.CutPrefix(words[1], hashWord)
	hash, err := hex.DecodeString(digits)
	if !ok || err != nil || len(hash) != sha256.Size {
		return t, fmt.Errorf("the second word must be %s and 64 hexadecimal digits", hashWord)
	}
	copy(t.Hash[:], hash)
	seen := map[string]bool{}
	for _, word := range words[2:] {
		key, value, _ := strings.Cut(word, "=")
		if seen[key] {
			return t, fmt.Errorf("%s stands twice", key)
		}
		seen[key] = true
		if err := t.limit(key, value, strings.Contains(word, "="), known); err != nil {
			return t, err
		}
	}
	return t, nil
}

// limit takes one limit of a line.
func (t *Token) limit(key, value string, given bool, known Vocabulary) (err error) {
	switch {
	case key == "read-only" && !given:
		t.ReadOnly = true
	case key == "machines" && given:
		t.Machines, err = strconv.Atoi(value)
		if err != nil || t.Machines < 1 || t.Machines > 100000 {
			return fmt.Errorf("machines=%s is not in 1 to 100000", value)
		}
	case key == "targets" && given:
		t.Targets, err = someOf(key, value, known.Targets)
	case key == "tools" && given:
		t.Tools, err = someOf(key, value, known.Tools)
	default:
		return fmt.Errorf("%q is none of machines=N, targets=A,B, tools=A,B and read-only", key)
	}
	return err
}

func someOf(key, value string, known []string) ([]string, error) {
	words := strings.Split(value, ",")
	for _, w := range words {
		if !slices.Contains(known, w) {
			return nil, fmt.Errorf("%s: %q is none of %s", key, w, strings.Join(known, ", "))
		}
	}
	return words, nil
}

// moved reports whether now is for other targets than t: what the tools of a session say
// depends on them, so one that began with t must not go on. All other limits hold as they
// stand; see [Opening.Current].
func (t Token) moved(now Token) bool { return !slices.Equal(t.Targets, now.Targets) }
