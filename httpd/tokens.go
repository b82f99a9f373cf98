package httpd

import (
	"crypto/subtle"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"
)

// Tokens are all that are accepted: one of the settings, and those of a file that
// is read again when it changes.
type Tokens struct {
	file   string // empty: none
	fixed  []Token
	known  Vocabulary
	reread sync.Mutex // one looks at a time

	mu     sync.Mutex
	all    []Token
	stamp  stamp     // of the file that all is from
	looked time.Time // at the file
	failed stamp     // of the file that could not be used, and was told
}

// stamp tells two states of a file apart.
type stamp struct {
	size int64
	time time.Time
	mode fs.FileMode
	ok   bool // there is one
}

// lookEvery is how often the file is looked at, at most: a removed token works that
// much longer.
const lookEvery = time.Second

// maxTokens bounds the file in bytes.
const maxTokens = 1 << 20

// NewTokens returns the given tokens and those of file, when it is not empty. A
// file that cannot be used, or is missing, is an error.
func NewTokens(file string, known Vocabulary, fixed ...Token) (*Tokens, error) {
	t := &Tokens{file: file, fixed: fixed, known: known, all: fixed, looked: time.Now(), failed: stamp{size: -1}}
	if file == "" {
		return t, nil
	}
	all, s, err := t.read()
	if err != nil {
		return nil, err
	}
	t.all, t.stamp = all, s
	return t, nil
}

// Count is how many tokens there are.
func (t *Tokens) Count() int { return len(t.list()) }

func (t *Tokens) list() []Token {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.all
}

// named is the token of that name as it stands now.
func (t *Tokens) named(name string) (Token, bool) {
	all := t.list()
	i := slices.IndexFunc(all, func(o Token) bool { return o.Name == name })
	if i < 0 {
		return Token{}, false
	}
	return all[i], true
}

// find returns the token that one of the given texts is. It takes as long whether one
// is or not, and whichever.
func (t *Tokens) find(texts []string) (Token, bool) {
	all := t.list()
	found := -1
	for _, text := range texts {
		hash := Hash(text)
		for i := range all {
			if subtle.ConstantTimeCompare(hash[:], all[i].Hash[:]) == 1 {
				found = i
			}
		}
	}
	if found < 0 {
		return Token{}, false
	}
	return all[found], true
}

// refresh reads the file again when it has changed. One that cannot be used leaves the
// tokens as they were: half a file must not lock everybody out, nor let somebody in.
func (t *Tokens) refresh(log *slog.Logger) {
	if t.file == "" || !t.reread.TryLock() {
		return
	}
	defer t.reread.Unlock()
	t.mu.Lock()
	old, failed, recent := t.stamp, t.failed, time.Since(t.looked) < lookEvery
	t.mu.Unlock()
	if recent {
		return
	}
	now := stampOf(os.Stat(t.file))
	var all []Token
	err := error(nil)
	if now != old && now != failed {
		all, now, err = t.read()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.looked = time.Now()
	switch {
	case now == old || now == failed:
	case err != nil:
		t.failed = now
		log.Warn("the file of tokens cannot be used; those read before stay valid", "file", t.file, "err", err)
	default:
		t.all, t.stamp, t.failed = all, now, stamp{size: -1}
		log.Info("tokens read again", "file", t.file, "tokens", len(all))
	}
}

func stampOf(info fs.FileInfo, err error) stamp {
	if err != nil {
		return stamp{}
	}
	return stamp{info.Size(), info.ModTime(), info.Mode(), true}
}

func (t *Tokens) read() ([]Token, stamp, error) {
	f, err := os.Open(t.file)
	if err != nil {
		return nil, stamp{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, stamp{}, err
	}
	s := stampOf(info, nil)
	if err := CheckPrivate(info); err != nil {
		return nil, s, err
	}
	text, err := io.ReadAll(io.LimitReader(f, maxTokens+1))
	if err == nil && len(text) > maxTokens {
		err = fmt.Errorf("it is larger than %d bytes", maxTokens)
	}
	if err != nil {
		return nil, s, err
	}
	all, err := ParseTokens(string(text), t.known)
	if err != nil {
		return nil, s, err
	}
	for _, fixed := range t.fixed {
		if slices.ContainsFunc(all, func(o Token) bool { return o.Name == fixed.Name || o.Hash == fixed.Hash }) {
			return nil, s, fmt.Errorf("the token %s is that of the settings, too", fixed.Name)
		}
	}
	return append(slices.Clone(t.fixed), all...), s, nil
}

// CheckPrivate refuses a file that somebody else can write: he could let himself in.
func CheckPrivate(info fs.FileInfo) error {
	if !info.Mode().IsRegular() {
		return fmt.Errorf("it is no regular file")
	}
	if openToOthers(info, 0o022) {
		return fmt.Errorf("others can write it (mode %04o): chmod go-w", info.Mode().Perm())
	}
	return nil
}
