package httpd

import (
	"crypto/subtle"
	"errors"
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
//
// Of a file that is gone or cannot be used no token is accepted any more: somebody may
// have wanted to lock others out by it. What is open already goes on meanwhile, since
// it may be a file that is just being written, and the end of a session takes its
// machines away. It ends when the file is missing at the next look, too.
type Tokens struct {
	file   string // empty: none
	fixed  []Token
	known  Vocabulary
	reread sync.Mutex // one looks at a time

	mu       sync.Mutex
	accepted []Token   // may begin something
	standing []Token   // may go on with what they have begun
	stamp    stamp     // of the file that both are from; zero: the file cannot be used
	looked   time.Time // at the file
	why      string    // the file cannot be used, as was told
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
	t := &Tokens{file: file, fixed: fixed, known: known, accepted: fixed, standing: fixed, looked: time.Now()}
	if file == "" {
		return t, nil
	}
	all, s, err := t.read()
	if err != nil {
		return nil, err
	}
	t.accepted, t.standing, t.stamp = all, all, s
	return t, nil
}

// WatchTokens is [NewTokens] for a file that may be missing, and made later.
func WatchTokens(file string, known Vocabulary, fixed ...Token) (*Tokens, error) {
	t, err := NewTokens(file, known, fixed...)
	if errors.Is(err, fs.ErrNotExist) {
		t = &Tokens{file: file, fixed: fixed, known: known, accepted: fixed, standing: fixed, looked: time.Now(), why: missing}
		return t, nil
	}
	return t, err
}

// Count is how many tokens there are.
func (t *Tokens) Count() int { return len(t.list()) }

func (t *Tokens) list() []Token {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.accepted
}

// named is the token of that name as it stands now, for what it has begun.
func (t *Tokens) named(name string) (Token, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := slices.IndexFunc(t.standing, func(o Token) bool { return o.Name == name })
	if i < 0 {
		return Token{}, false
	}
	return t.standing[i], true
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

// missing is why a file that is not there cannot be used.
const missing = "it is missing"

// renew is refresh at once, for a token that is not known: it may have been made just now.
// Whether the file is missing waits for the next look, since two of them end what is open.
func (t *Tokens) renew(log *slog.Logger) {
	t.mu.Lock()
	old := t.stamp
	t.mu.Unlock()
	if info, err := os.Stat(t.file); t.file != "" && err == nil && stampOf(info, nil) != old {
		t.reread.Lock()
		defer t.reread.Unlock()
		t.mu.Lock()
		t.looked = time.Time{}
		t.mu.Unlock()
		t.reload(log)
	}
}

// refresh reads the file again when it has changed, or could not be used at the last look.
func (t *Tokens) refresh(log *slog.Logger) {
	if t.file == "" || !t.reread.TryLock() {
		return
	}
	defer t.reread.Unlock()
	t.reload(log)
}

// reload is refresh for whoever holds reread.
func (t *Tokens) reload(log *slog.Logger) {
	t.mu.Lock()
	old, recent := t.stamp, time.Since(t.looked) < lookEvery
	t.mu.Unlock()
	if recent {
		return
	}
	info, err := os.Stat(t.file)
	if err == nil && stampOf(info, nil) == old {
		err = CheckPrivate(info) // it may have another owner
	}
	all, now, changed := []Token(nil), old, false
	if err == nil && stampOf(info, nil) != old {
		all, now, err = t.read()
		changed = err == nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.looked = time.Now()
	switch {
	case err != nil:
		t.distrust(err, log)
	case changed: // also to none at all
		t.accepted, t.standing, t.stamp, t.why = all, all, now, ""
		log.Info("tokens read again", "file", t.file, "tokens", len(all))
	}
}

// distrust takes back what the file permitted, which cannot be used. t.mu is held.
func (t *Tokens) distrust(err error, log *slog.Logger) {
	why := err.Error()
	if errors.Is(err, fs.ErrNotExist) {
		why = missing
	}
	if why == missing && t.why == missing {
		t.standing = t.fixed
	}
	t.accepted, t.stamp = t.fixed, stamp{}
	if t.why == why {
		return // told already
	}
	t.why = why
	log.Warn("the file of tokens cannot be used; none of its tokens is accepted until it can", "file", t.file, "err", why)
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
	return slices.Concat(t.fixed, all), s, nil
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
