package fleet

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"time"
)

var errWhose = errors.New("the answer does not say whose key it is")

// CloudIdentity is whose key it is, in the service's words.
type CloudIdentity struct {
	Account string // fingerprint of tenant and address, see [Cloud.Account]
	Subject string
	Tenant  string // id; empty for keys of no tenant
	Name    string
	Status  string   // active, waitlisted, suspended; empty when the service does not say
	Scopes  []string // what the key may do; empty when the service does not say
}

// Account returns the fingerprint of the tenant whose machines these are: records
// are kept by it, so that another tenant's key neither deletes nor forgets
// them. It stays the same for the life of c. A key that was seen before
// needs no request.
func (c *Cloud) Account(ctx context.Context) (string, error) {
	const op = "ask whose key it is"
	if account := c.keys.pinned(); account != "" {
		return account, nil
	}
	if _, err := c.key(ctx, op); err != nil {
		return "", err
	}
	return c.keys.pinned(), nil
}

func (k *keyring) pinned() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.account
}

// Identity asks the service whose key it is and what it may do. A refused key is
// not asked about more often than every 30 seconds.
func (c *Cloud) Identity(ctx context.Context) (CloudIdentity, error) {
	const op = "ask whose key it is"
	token, err := c.sourceKey(ctx, op)
	if err != nil {
		return CloudIdentity{}, err
	}
	if known, err := c.keys.verdict(token, op, c.opts.Now()); known && err != nil {
		return CloudIdentity{}, err
	}
	id, err := c.askIdentity(ctx, op, token)
	if err != nil {
		return CloudIdentity{}, err
	}
	c.memorize(token, id)
	return id, c.keys.accept(token, op, id, c.opts)
}

// askIdentity asks the service about a key, by the route that needs no scope and
// else by that of the account.
func (c *Cloud) askIdentity(ctx context.Context, op, token string) (CloudIdentity, error) {
	id, err := c.identityAt(ctx, op, token, "/v1/me")
	if noRoute(err) {
		id, err = c.identityAt(ctx, op, token, "/v1/account")
	}
	return id, notTheService(err)
}

func (c *Cloud) identityAt(ctx context.Context, op, token, path string) (CloudIdentity, error) {
	r := request{op: op, method: http.MethodGet, path: path, key: token, wait: cloudReadWait}
	var said map[string]json.RawMessage
	if err := c.ask(ctx, r, &said); err != nil {
		return CloudIdentity{}, err
	}
	id := CloudIdentity{Subject: textIn(said["subject"]), Tenant: textIn(said["tenantId"]), Name: textIn(said["tenantName"]), Status: textIn(said["tenantStatus"])}
	_ = json.Unmarshal(said["scopes"], &id.Scopes) // absent: not known
	whose := "tenant " + id.Tenant
	switch {
	case id.Tenant+id.Subject == "":
		return CloudIdentity{}, r.fail(CodeInternal, false, errWhose)
	case id.Tenant == "":
		whose = "subject " + id.Subject
	}
	id.Account = hashOf(c.opts.URL, whose)[:12]
	return id, nil
}

func hashOf(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		h.Write([]byte(p))
		h.Write([]byte{0})
	}
	return hex.EncodeToString(h.Sum(nil))
}

// keyFile is the file in which the accounts of keys are remembered.
const keyFile = "cloud-accounts.json"

// knownKeys is what the file says, by the hash of address and key. A key is made
// of random bytes, so that its hash tells nothing of it.
type knownKeys struct {
	V    int                 `json:"v"`
	Keys map[string]knownKey `json:"keys"`
}

type knownKey struct {
	Account string    `json:"account"`
	Scopes  []string  `json:"scopes,omitempty"`
	At      time.Time `json:"at"`
}

// maxKnownKeys bounds the file; the keys seen last are kept.
const maxKnownKeys = 16

// recall returns what an earlier process found out about a key.
func (c *Cloud) recall(token string) (CloudIdentity, bool) {
	known, _, err := c.readKeys()
	if err != nil {
		return CloudIdentity{}, false
	}
	k, ok := known.Keys[hashOf(c.opts.URL, token)]
	return CloudIdentity{Account: k.Account, Scopes: k.Scopes}, ok && k.Account != ""
}

func (c *Cloud) readKeys() (known knownKeys, path string, err error) {
	if c.opts.Dir == nil {
		return known, "", errors.New("nothing is remembered")
	}
	dir, err := c.opts.Dir()
	if err != nil {
		return known, "", err
	}
	path = filepath.Join(dir, keyFile)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return known, path, nil
	}
	if err == nil && (json.Unmarshal(data, &known) != nil || known.V != 1) {
		known = knownKeys{} // of another version, or damaged: it is only a shortcut
	}
	return known, path, err
}

// memorize writes down whose a key is. Two processes may undo each other's: then
// one of them asks again.
func (c *Cloud) memorize(token string, id CloudIdentity) {
	known, path, err := c.readKeys()
	if err != nil {
		return
	}
	if known.Keys == nil {
		known.Keys = map[string]knownKey{}
	}
	known.V = 1
	known.Keys[hashOf(c.opts.URL, token)] = knownKey{Account: id.Account, Scopes: id.Scopes, At: c.opts.Now().UTC()}
	for len(known.Keys) > maxKnownKeys {
		oldest := ""
		for hash, k := range known.Keys {
			if oldest == "" || k.At.Before(known.Keys[oldest].At) {
				oldest = hash
			}
		}
		delete(known.Keys, oldest)
	}
	data, err := json.Marshal(known)
	if err == nil {
		err = replaceFile(path, data)
	}
	if err != nil {
		c.opts.Log.Debug("the key's account is not remembered", "err", err)
	}
}

// replaceFile writes a file that only its owner reads, whole or not at all.
func replaceFile(path string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name()) // the error that counts is the first
	}
	return err
}
