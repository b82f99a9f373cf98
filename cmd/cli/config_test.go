package cli

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// environment is a lookup over "NAME=value" words.
func environment(words ...string) lookup {
	return func(name string) (string, bool) {
		for _, w := range slices.Backward(words) {
			if n, v, _ := strings.Cut(w, "="); n == name {
				return v, true
			}
		}
		return "", false
	}
}

// The table names every field of a Config once, and no key or variable twice.
func TestSettingsTable(t *testing.T) {
	var c Config
	table := settings(&c)
	if fields := reflect.TypeFor[Config]().NumField(); fields != len(table) {
		t.Errorf("%d fields, %d lines", fields, len(table))
	}
	seen := map[any]bool{}
	for _, s := range table {
		for _, k := range []any{s.key, s.env, s.field} {
			if seen[k] {
				t.Errorf("%s: %v stands twice", s.key, k)
			}
			seen[k] = true
		}
		s.set(s.kind.initial())
		if !reflect.DeepEqual(s.load(), s.kind.initial()) {
			t.Errorf("%s: default %v became %v", s.key, s.kind.initial(), s.load())
		}
		if s.help == "" || strings.HasSuffix(s.help, ".") {
			t.Errorf("%s: help %q", s.key, s.help)
		}
	}
}

// Values of variables, good and bad.
func TestVariables(t *testing.T) {
	for _, test := range []struct{ word, why string }{
		{"SMOL_MCP_CPUS=3", ""},
		{"SMOL_MCP_CPUS=1e3", "not a whole number"},
		{"SMOL_MCP_CPUS= 5", "not a whole number"},
		{"SMOL_MCP_CPUS=0x10", "not a whole number"},
		{"SMOL_MCP_CPUS=007", "not a whole number"},
		{"SMOL_MCP_CPUS=+2", "not a whole number"},
		{"SMOL_MCP_CPUS=1.5", "not a whole number"},
		{"SMOL_MCP_CPUS=-1", "not in 1 to 64"},
		{"SMOL_MCP_CPUS=99999999999999999999", "not in 1 to 64"},
		{"SMOL_MCP_WAIT_SECS=0", ""},
		{"SMOL_MCP_WAIT_SECS=301", "not in 0 to 300"},
		{"SMOL_MCP_ENGINE=qemu", ""},
		{"SMOL_MCP_ENGINE=docker", "none of auto, smolvm, qemu"},
		{"SMOL_MCP_ENGINE=QEMU", "none of"},
		{"SMOL_MCP_TARGETS=local", ""},
		{"SMOL_MCP_TARGETS=both", ""},
		{"SMOL_MCP_TARGETS=moon", "none of auto, local, cloud, both"},
		{"SMOL_CLOUD_URL=https://cloud.example/api", ""},
		{"SMOL_CLOUD_URL=http://127.0.0.1:8080", ""},
		{"SMOL_CLOUD_URL=http://cloud.example", "plain http"},
		{"SMOL_CLOUD_URL=https://me:word@cloud.example", "no address of a service"},
		{"SMOL_CLOUD_URL=", ""},
		{"SMOL_CLOUD_TOKEN=smk_abc", ""},
		{"SMOL_CLOUD_TOKEN=smk_abc\n", "no spaces, line ends"},
		{"SMOL_CLOUD_TOKEN_FILE=key", "not an absolute path"},
		{"SMOLVM=", "must not be empty"},
		{"SMOL_MCP_MIN_SMOLVM=1.20", ""},
		{"SMOL_MCP_MIN_SMOLVM=new", "not a version"},
		{"SMOL_MCP_MIN_SMOLVM=1.2.3.4", "not a version"},
		{"SMOL_MCP_RUNTIME_DIR=run", "not an absolute path"},
		{"SMOL_MCP_MOUNT_ROOTS=" + abs("a") + string(os.PathListSeparator) + "b", "not an absolute path"},
		{"SMOL_MCP_MACHINE_PREFIX=ci-", ""},
		{"SMOL_MCP_MACHINE_PREFIX=x", ""},
		{"SMOL_MCP_MACHINE_PREFIX=a-prefix-of-23-letters-", ""},
		{"SMOL_MCP_MACHINE_PREFIX=a-prefix-of-24--letters-", "makes no machine names"},
		{"SMOL_MCP_MACHINE_PREFIX=", "must not be empty"},
		{"SMOL_MCP_MACHINE_PREFIX=-", "makes no machine names"},
		{"SMOL_MCP_MACHINE_PREFIX=my--", "makes no machine names"},
		{"SMOL_MCP_MACHINE_PREFIX=My", "makes no machine names"},
		{"SMOL_MCP_MACHINE_PREFIX=a/b", "makes no machine names"},
		{"SMOL_LOCAL_URL=", ""},
		{"SMOL_LOCAL_URL=unix:///run/smolvm.sock", ""},
		{"SMOL_LOCAL_URL=http://127.0.0.1:8080", ""},
		{"SMOL_LOCAL_URL=http://localhost:8080/", ""},
		{"SMOL_LOCAL_URL=http://[::1]:8080", ""},
		{"SMOL_LOCAL_URL=http://127.0.0.1", "a port of 1 to 65535 is missing"},
		{"SMOL_LOCAL_URL=http://127.0.0.1:0", "a port of 1 to 65535 is missing"},
		{"SMOL_LOCAL_URL=http://127.0.0.1:65536", "port"},
		{"SMOL_LOCAL_URL=http://192.0.2.1:8080", "loopback"},
		{"SMOL_LOCAL_URL=http://localhost.example.com:8080", "loopback"},
		{"SMOL_LOCAL_URL=http://u:p@127.0.0.1:8080", "no user or password"},
		{"SMOL_LOCAL_URL=http://127.0.0.1:8080/api", "neither"},
		{"SMOL_LOCAL_URL=https://127.0.0.1:8080", "neither"},
		{"SMOL_LOCAL_URL=unix://run/smolvm.sock", "neither"},
		{"SMOL_LOCAL_URL=unix:run/smolvm.sock", "neither"},
		{"SMOL_LOCAL_URL=/run/smolvm.sock", "neither"},
		{"SMOL_LOCAL_URL=unix:///", "neither"},
	} {
		_, err := resolve(environment("SMOL_MCP_CONFIG=", test.word), "")
		name, _, _ := strings.Cut(test.word, "=")
		switch {
		case test.why == "" && err != nil:
			t.Errorf("%s: %v", test.word, err)
		case test.why != "" && (err == nil || !strings.HasPrefix(err.Error(), name+": ") || !strings.Contains(err.Error(), test.why)):
			t.Errorf("%s: error %v, want one about %q", test.word, err, test.why)
		}
	}
}

func abs(name string) string { return filepath.Join(os.TempDir(), name) }

// The wrong JSON types of the file.
func TestFileTypes(t *testing.T) {
	for _, test := range []struct{ file, why string }{
		{`{"cpus": 3}`, ""},
		{"\ufeff{\"cpus\": 3}", ""},
		{`{"cpus": 1e0}`, "must be a whole number, not 1e0"},
		{`{"cpus": 2.0}`, "must be a whole number"},
		{`{"cpus": null}`, "must be a whole number, not null"},
		{`{"cpus": -1}`, "not in 1 to 64"},
		{`{"smolvm": 3}`, "must be a string, not 3"},
		{`{"smolvm": null}`, "must be a string"},
		{`{"engine": true}`, "must be a string"},
		{`{"engine": ""}`, "none of auto, smolvm, qemu"},
		{`{"mountRoots": []}`, ""},
		{`{"mountRoots": "/srv"}`, "must be a list of strings"},
		{`{"mountRoots": null}`, "must be a list of strings"},
		{`{"mountRoots": [1]}`, "must be a list of strings"},
		{`{"mountRoots": [null]}`, "must be a list of strings"},
		{`{"mountRoots": [""]}`, "empty path"},
		{`{"mountRoots": ["srv"]}`, "not an absolute path"},
		{`{"CPUs": 2}`, "unknown setting"},
		{`{"cpus": {"a": "` + strings.Repeat("x", 100) + `"}}`, "not an object"},
		{`{} {}`, "not JSON"},
		{`null`, "must be a JSON object"},
	} {
		path := filepath.Join(t.TempDir(), "c.json")
		if err := os.WriteFile(path, []byte(test.file), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := resolve(environment(), path)
		switch {
		case test.why == "" && err != nil:
			t.Errorf("%s: %v", test.file, err)
		case test.why != "" && (err == nil || !strings.HasPrefix(err.Error(), path+":1") || !strings.Contains(err.Error(), test.why)):
			t.Errorf("%s: error %v, want one about %q", test.file, err, test.why)
		}
	}
}

// An unreadable usual file is an error; an absent one is none.
func TestUsualFile(t *testing.T) {
	dir := t.TempDir()
	env := environment("XDG_CONFIG_HOME=" + dir)
	if _, err := resolve(env, ""); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "smol-mcp", "config.json"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := resolve(env, ""); err == nil || !strings.Contains(err.Error(), "cannot read the settings") {
		t.Errorf("a directory in its place: %v", err)
	}
}

// A secret is printed only as set or not set.
func TestSecret(t *testing.T) {
	var token string
	s := setting{key: "token", env: "TOKEN", field: &token, kind: text{check: func(string) error { return nil }, secret: true}}
	if got := s.print(); got != "not set" {
		t.Errorf("empty: %q", got)
	}
	token = "hunter2"
	if got := s.print(); got != "set" {
		t.Errorf("given: %q", got)
	}
}
