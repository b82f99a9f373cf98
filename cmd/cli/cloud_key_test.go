package cli

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"smol-mcp/fleet"
)

// secretFile writes a file that only its owner may read.
func secretFile(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// loginOf is the key, its source and its address by settings and a home.
func loginOf(t *testing.T, home string, words ...string) (key string, login cloudLogin, err error) {
	t.Helper()
	env := environment(append(words, "XDG_CONFIG_HOME="+home)...)
	r, err := resolve(env, "")
	if err != nil {
		t.Fatal(err)
	}
	login = r.cloudLogin(env)
	key, err = login.key(t.Context())
	return key, login, err
}

// The key comes from the variable, else from the file that is named, else from the
// login of smolvm, whose key goes only to where it was given out.
func TestCloudLogin(t *testing.T) {
	home := t.TempDir()
	if key, login, err := loginOf(t, home); key != "" || err != nil || !strings.Contains(login.name, "SMOL_CLOUD_TOKEN") {
		t.Errorf("without any: %q from %q, %v", key, login.name, err)
	}
	secretFile(t, home, "smolvm/config.toml", "[other]\napi_key = \"no\"\n[cloud] # ours\napi_key = \"smk_cli\" # here\ntoken_expires_at = 12\nendpoint = 'https://cli.example'\n[[after]]\napi_key = \"no\"\n")
	key, login, err := loginOf(t, home)
	if key != "smk_cli" || login.url != "https://cli.example" || err != nil {
		t.Errorf("by smolvm: %q to %q, %v", key, login.url, err)
	}
	if _, login, _ := loginOf(t, home, "SMOL_CLOUD_URL=https://mine.example"); login.url != "https://mine.example" {
		t.Errorf("with an address: to %q", login.url)
	}
	file := secretFile(t, home, "key", " smk_file\n")
	key, login, err = loginOf(t, home, "SMOL_CLOUD_TOKEN_FILE="+file)
	if key != "smk_file" || login.url != fleet.DefaultCloudURL || !strings.Contains(login.name, file) || err != nil {
		t.Errorf("by a file: %q from %q to %q, %v", key, login.name, login.url, err)
	}
	key, login, err = loginOf(t, home, "SMOL_CLOUD_TOKEN_FILE="+file, "SMOL_CLOUD_TOKEN=smk_env")
	if key != "smk_env" || login.url != fleet.DefaultCloudURL || err != nil {
		t.Errorf("by the variable: %q to %q, %v", key, login.url, err)
	}
}

// A login at another address is not used by a process that works with the first: its key
// would go to whom it was not given out by.
func TestLoginMoves(t *testing.T) {
	home := t.TempDir()
	write := func(key, endpoint string) {
		secretFile(t, home, "smolvm/config.toml", "[cloud]\napi_key = \""+key+"\"\nendpoint = \""+endpoint+"\"\n")
	}
	write("smk_one", "https://one.example")
	_, login, err := loginOf(t, home)
	_, set, setErr := loginOf(t, home, "SMOL_CLOUD_URL=https://mine.example")
	if err != nil || setErr != nil {
		t.Fatal(err, setErr)
	}
	for _, step := range []struct{ key, endpoint, want string }{
		{"smk_two", "https://one.example", "smk_two"},
		{"smk_far", "https://two.example", ""},
		{"smk_far", "", ""},
		{"smk_one", "https://one.example", "smk_one"},
	} {
		write(step.key, step.endpoint)
		key, err := login.key(t.Context())
		if key != step.want || (err == nil) != (step.want != "") {
			t.Errorf("%s at %q: key %q, %v", step.key, step.endpoint, key, err)
		}
		if err != nil && (!strings.Contains(err.Error(), "https://one.example") || strings.Contains(err.Error(), step.key)) {
			t.Errorf("%v", err)
		}
		if key, err := set.key(t.Context()); key != step.key || err != nil {
			t.Errorf("to an address of the settings: %q, %v", key, err)
		}
	}
}

// A key is read of a file only: of a pipe it could be read once, or never.
func TestKeyOfNoFile(t *testing.T) {
	f := &keyFile{path: t.TempDir(), read: wholeFile}
	if key, err := f.key(t.Context()); key != "" || err == nil || !strings.Contains(err.Error(), "no regular file") {
		t.Errorf("key %q, %v", key, err)
	}
}

// A key that changes in its file is seen at the next use, and what cannot be a key is
// not repeated.
func TestKeyFileChanges(t *testing.T) {
	dir := t.TempDir()
	path := secretFile(t, dir, "key", "smk_one")
	f := &keyFile{path: path, read: wholeFile}
	for _, want := range []string{"smk_one", "smk_two", "smk_three"} {
		secretFile(t, dir, "key", want)
		for range 2 {
			if key, err := f.key(t.Context()); key != want || err != nil {
				t.Errorf("key %q, %v, want %q", key, err, want)
			}
		}
	}
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(path, old, old); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if key, err := f.key(t.Context()); key != "smk_three" || err != nil {
			t.Errorf("key %q, %v", key, err)
		}
	}
	secretFile(t, dir, "key", "two words")
	if key, err := f.key(t.Context()); key != "" || err == nil || strings.Contains(err.Error(), "two words") {
		t.Errorf("key %q, %v", key, err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, err := f.key(t.Context()); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("of no file: %v", err)
	}
}

// W42: a secret in a file that others may read is refused, wherever it stands.
func TestSecretsArePrivate(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("there are no such modes")
	}
	dir := t.TempDir()
	for _, mode := range []os.FileMode{0o640, 0o604, 0o620, 0o644} {
		config := secretFile(t, dir, "config.json", `{"cpus": 3, "cloudToken": "smk_secret"}`)
		if err := os.Chmod(config, mode); err != nil {
			t.Fatal(err)
		}
		_, err := resolve(environment(), config)
		if err == nil || !strings.Contains(err.Error(), "chmod 600") || strings.Contains(err.Error(), "smk_secret") {
			t.Errorf("settings of mode %o: %v", mode, err)
		}
		key := secretFile(t, dir, "key", "smk_secret")
		if err := os.Chmod(key, mode); err != nil {
			t.Fatal(err)
		}
		if _, err := (&keyFile{path: key, read: wholeFile}).key(t.Context()); err == nil || !strings.Contains(err.Error(), "chmod 600") {
			t.Errorf("a key of mode %o: %v", mode, err)
		}
	}
	for _, text := range []string{`{"cpus": 3}`, `{"cloudToken": ""}`} {
		config := secretFile(t, dir, "open.json", text)
		if err := os.Chmod(config, 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := resolve(environment(), config); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// auto is both as soon as a key is set; the login of smolvm alone does not count, since
// agents would have to name a target from then on.
func TestTargetsOfSettings(t *testing.T) {
	home := t.TempDir()
	secretFile(t, home, "smolvm/config.toml", "[cloud]\napi_key = \"smk_cli\"\n")
	for words, want := range map[string][2]bool{
		"":                                    {true, false},
		"SMOL_CLOUD_TOKEN=smk":                {true, true},
		"SMOL_CLOUD_TOKEN_FILE=" + abs("key"): {true, true},
		"SMOL_MCP_TARGETS=cloud":              {false, true},
		"SMOL_MCP_TARGETS=both":               {true, true},
		"SMOL_MCP_TARGETS=local SMOL_CLOUD_TOKEN=smk": {true, false},
	} {
		r, err := resolve(environment(append(strings.Fields(words), "XDG_CONFIG_HOME="+home)...), "")
		if err != nil {
			t.Fatal(err)
		}
		if local, cloud := r.serves(); [2]bool{local, cloud} != want {
			t.Errorf("%s: local %v, cloud %v", words, local, cloud)
		}
	}
}
