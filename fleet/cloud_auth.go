package fleet

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// keyProbe is how often a key that was refused is tried again.
const keyProbe = 30 * time.Second

// keyring is what is known of the keys that the source gave. The account of the
// first one that worked is kept: a key of another account is refused, since
// machines that its account does not show would pass for deleted.
type keyring struct {
	turn chan struct{} // held while a key is looked into

	mu      sync.Mutex
	account string   // fingerprint; empty until a key was looked into
	good    string   // the key that was looked into last and not refused since
	scopes  []string // of good; nil where it is not known
	bad     string   // the key that was refused last
	why     *Error   // why it was
	since   time.Time
	seen    [][]byte // all keys, to hide them
}

func newKeyring() *keyring { return &keyring{turn: make(chan struct{}, 1)} }

// key returns the key to send for op, or why nothing can be sent.
func (c *Cloud) key(ctx context.Context, op string) (string, error) {
	token, err := c.sourceKey(ctx, op)
	if err != nil {
		return "", err
	}
	if known, err := c.keys.verdict(token, op, c.opts.Now()); known {
		return token, err
	}
	return token, c.lookInto(ctx, op, token)
}

// sourceKey asks the source. It refuses keys that cannot go into a header.
func (c *Cloud) sourceKey(ctx context.Context, op string) (string, error) {
	missing := func(format string, args ...any) error {
		e := Errorf(CodeCloudNotConfigured, op, format, args...)
		e.Next = "set " + c.opts.TokenName + " to a key of the cloud account"
		return e
	}
	if ctx.Err() != nil {
		return "", &Error{Code: CodeOf(ctx.Err()), Op: op, Why: ctx.Err().Error(), Err: ctx.Err()}
	}
	if err := CheckCloudURL(c.opts.URL); err != nil {
		e := Errorf(CodeCloudNotConfigured, op, "the address %s: %w", Quote(c.opts.URL), err)
		e.Next = "correct SMOL_CLOUD_URL"
		return "", e
	}
	if c.opts.Token == nil {
		return "", missing("no key is set")
	}
	token, err := c.opts.Token(ctx)
	token = strings.TrimSpace(token)
	switch {
	case err != nil:
		return "", missing("its key could not be read: %w", err)
	case token == "":
		return "", missing("no key is set")
	case strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }):
		return "", missing("what is set is no key: it has characters that no key has")
	}
	c.keys.remember(token)
	return token, nil
}

// verdict says what is known of a key without a request: that it is good, or why
// not. A refused key is looked into again after keyProbe.
func (k *keyring) verdict(token, op string, now time.Time) (known bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case token == k.good:
		return true, nil
	case token == k.bad && now.Sub(k.since) < keyProbe:
		return true, during(op, k.why)
	}
	return false, nil
}

// lookInto finds out whose key it is, from what is remembered or from the service.
// One looks while the others wait.
func (c *Cloud) lookInto(ctx context.Context, op, token string) error {
	select {
	case c.keys.turn <- struct{}{}:
		defer func() { <-c.keys.turn }()
	case <-ctx.Done():
		return &Error{Code: CodeOf(ctx.Err()), Op: op, Why: "it was not sent: the key is being looked into: " + ctx.Err().Error(), Err: ctx.Err()}
	}
	if known, err := c.keys.verdict(token, op, c.opts.Now()); known {
		return err
	}
	id, remembered := CloudIdentity{}, false
	if !c.keys.refusedBefore(token) {
		id, remembered = c.recall(token)
	}
	if !remembered {
		var err error
		if id, err = c.askIdentity(ctx, op, token); err != nil {
			return err
		}
		c.memorize(token, id)
	}
	return c.keys.accept(token, op, id, c.opts)
}

func (k *keyring) refusedBefore(token string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return token == k.bad
}

// accept notes a key that works, unless it is of another account.
func (k *keyring) accept(token, op string, id CloudIdentity, opts CloudOptions) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.account != "" && k.account != id.Account {
		k.bad, k.since = token, opts.Now()
		k.why = &Error{
			Code: CodeCloudUnauthorized, Op: op,
			Why:  fmt.Sprintf("the key in %s is now of account %s, and this process works for account %s, whose machines stay recorded", opts.TokenName, id.Account, k.account),
			Next: "restart the server to work for the other account, or put back a key of the first one",
		}
		return k.why
	}
	k.account, k.good, k.scopes = id.Account, token, id.Scopes
	if k.bad == token {
		k.bad, k.why = "", nil
	}
	return nil
}

// refuseKey notes that the service does not take a key: nothing is sent with it
// until it is looked into again. e becomes what every call answers.
func (c *Cloud) refuseKey(token string, e *Error) {
	e.Next = "put a valid key into " + c.opts.TokenName + "; machines stay recorded, and those with a time-to-live end by it"
	e.Why = Bound("the service does not accept the key: "+e.Why, MaxWhy)
	told := *e
	c.keys.mu.Lock()
	defer c.keys.mu.Unlock()
	if c.keys.good == token {
		c.keys.good = ""
	}
	c.keys.bad, c.keys.why, c.keys.since = token, &told, c.opts.Now()
	c.opts.Log.Warn("the cloud does not accept the key", "source", c.opts.TokenName, "err", told.Why)
}

// newerKey reports whether the source gives a key that has not been refused.
func (c *Cloud) newerKey(ctx context.Context) bool {
	token, err := c.sourceKey(ctx, "")
	return err == nil && !c.keys.refusedBefore(token)
}

// remember notes a key to hide, the newest few.
func (k *keyring) remember(token string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if slices.ContainsFunc(k.seen, func(s []byte) bool { return string(s) == token }) {
		return
	}
	k.seen = append(k.seen[max(0, len(k.seen)-7):], []byte(token))
}

// hide takes the keys out of what a server says, also in base64.
func (k *keyring) hide(text []byte) []byte {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, token := range k.seen {
		for _, form := range [][]byte{token, []byte(base64.StdEncoding.EncodeToString(token)), []byte(base64.RawURLEncoding.EncodeToString(token))} {
			if bytes.Contains(text, form) {
				text = bytes.ReplaceAll(text, form, []byte("[key]"))
			}
		}
	}
	return text
}

// checkEnv refuses to hand the key to a guest.
func (c *Cloud) checkEnv(ctx context.Context, env map[string]string) error {
	_, _ = c.sourceKey(ctx, "") // so that a key that was not used yet is known too
	for name, value := range env {
		if string(c.keys.hide([]byte(value))) != value {
			return fmt.Errorf("environment variable %s holds the key of the cloud account, which no guest may have", name)
		}
	}
	return nil
}

// Usable says, without a request, why no call can succeed now: CloudNotConfigured
// or CloudUnauthorized; nil when there is no known reason.
func (c *Cloud) Usable(ctx context.Context) error {
	const op = "use the cloud"
	token, err := c.sourceKey(ctx, op)
	if err != nil {
		return err
	}
	c.keys.mu.Lock()
	defer c.keys.mu.Unlock()
	if token == c.keys.bad {
		return during(op, c.keys.why)
	}
	return nil
}

// mayDelete refuses to make machines with a key that could not delete them.
func (k *keyring) mayDelete(op, tokenName string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.scopes) == 0 || slices.ContainsFunc(k.scopes, func(s string) bool {
		return s == "admin" || s == "*" || s == "machine" || s == "machine:*" || s == "machine:delete"
	}) {
		return nil
	}
	return &Error{
		Code: CodeCloudUnauthorized, Op: op,
		Why:  "the key lacks the scope machine:delete, so the machine could not be deleted; it has " + Bound(strings.Join(k.scopes, " "), 256),
		Next: "put a key with that scope into " + tokenName,
	}
}
