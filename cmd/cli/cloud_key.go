package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"smol-mcp/fleet"
)

// cloudLogin is where the cloud's key comes from and where it may be sent.
type cloudLogin struct {
	name string // of the key's source, for people
	url  string
	key  func(context.Context) (string, error)
}

// cloudLogin finds the key: in the settings, in the file that they name, else in the
// login of the smolvm program. Each is looked at again as it changes.
func (c *Config) cloudLogin(env lookup) cloudLogin {
	address := cmp.Or(c.CloudURL, fleet.DefaultCloudURL)
	switch {
	case c.CloudToken != "":
		return cloudLogin{"SMOL_CLOUD_TOKEN", address, func(context.Context) (string, error) { return c.CloudToken, nil }}
	case c.CloudTokenFile != "":
		file := &keyFile{path: c.CloudTokenFile, read: wholeFile}
		return cloudLogin{"the file " + c.CloudTokenFile + " (SMOL_CLOUD_TOKEN_FILE)", address, file.key}
	}
	path := configHome(env, "smolvm", "config.toml")
	// A key goes to where it was given out, unless the settings say otherwise.
	bound := address == fleet.DefaultCloudURL
	if text, _, err := readSecret(path); err == nil && bound {
		address = cmp.Or(cliSettings(string(text))["endpoint"], address)
	}
	file := &keyFile{path: path, optional: true, read: func(text string) (string, error) {
		login := cliSettings(text)
		if there := cmp.Or(login["endpoint"], fleet.DefaultCloudURL); bound && there != address {
			return "", fmt.Errorf("the login is now one at %s, and this process works with %s: start it again", fleet.Quote(there), fleet.Quote(address))
		}
		return login["api_key"], nil
	}}
	return cloudLogin{"SMOL_CLOUD_TOKEN, SMOL_CLOUD_TOKEN_FILE or the login in " + path, address, file.key}
}

// keyFile is a file with a key in it, read again when it changes.
type keyFile struct {
	path     string
	optional bool // that it is absent only means that there is no key
	read     func(text string) (string, error)

	mu    sync.Mutex
	known fs.FileInfo // when last was read
	last  string
}

// key returns the key that the file has now.
func (f *keyFile) key(context.Context) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	info, err := os.Stat(f.path)
	if errors.Is(err, fs.ErrNotExist) && f.optional || f.path == "" {
		return "", nil
	}
	if err == nil && f.known != nil && os.SameFile(info, f.known) && info.ModTime().Equal(f.known.ModTime()) && info.Size() == f.known.Size() && time.Since(info.ModTime()) > time.Second {
		return f.last, nil
	}
	text, info, err := readSecret(f.path)
	if err == nil {
		f.last, err = f.read(string(text))
	}
	if err != nil {
		f.known = nil
		var p *fs.PathError
		if errors.As(err, &p) {
			err = p.Err
		}
		return "", fmt.Errorf("read the key in %s: %w", f.path, err)
	}
	f.known = info
	return f.last, nil
}

// wholeFile takes the content of a file as the key.
func wholeFile(text string) (string, error) {
	key := strings.TrimSpace(text)
	if err := checkKey(key); err != nil {
		return "", err
	}
	return key, nil
}

// checkKey refuses what cannot stand in a header. The key itself is in no error.
func checkKey(key string) error {
	if strings.ContainsFunc(key, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return errors.New("a key has no spaces, line ends or other than ASCII characters in it")
	}
	return nil
}

// cliSettings reads section [cloud] of the smolvm program's settings, which are
// TOML: its keys that are strings on one line. All else is passed over.
func cliSettings(text string) map[string]string {
	found := map[string]string{}
	section := ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "[") {
			name, _, _ := strings.Cut(strings.TrimLeft(line, "["), "]")
			section = strings.TrimSpace(name)
			continue
		}
		key, value, ok := strings.Cut(line, "=")
		if section != "cloud" || !ok || strings.HasPrefix(line, "#") {
			continue
		}
		if s, ok := tomlString(strings.TrimSpace(value)); ok && checkKey(s) == nil {
			found[strings.Trim(strings.TrimSpace(key), `"'`)] = s
		}
	}
	return found
}

// tomlString reads a string of one line without escapes, with what may follow it.
func tomlString(value string) (string, bool) {
	if value == "" || value[0] != '"' && value[0] != '\'' {
		return "", false
	}
	s, rest, ok := strings.Cut(value[1:], value[:1])
	rest = strings.TrimSpace(rest)
	return s, ok && !strings.Contains(s, `\`) && (rest == "" || rest[0] == '#')
}

// configHome is a file below the directory of settings: the one that is named, or
// ~/.config on every system. Empty where there is none.
func configHome(env lookup, parts ...string) string {
	dir, ok := env("XDG_CONFIG_HOME")
	if !ok || !filepath.IsAbs(dir) {
		home, err := os.UserHomeDir()
		if err != nil {
			return ""
		}
		dir = filepath.Join(home, ".config")
	}
	return filepath.Join(append([]string{dir}, parts...)...)
}
