//go:build unix

package store_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"smol-mcp/store"
)

// T31, I19: a directory or file that another could have made, or can change, is
// refused, and nothing is written through it.
func TestUnsafePlaces(t *testing.T) {
	mkdir := func(t *testing.T, p places) { check(t, os.MkdirAll(p.run, 0o700)) }
	real := func(t *testing.T, p places) string { // a real one elsewhere
		dir := filepath.Join(filepath.Dir(p.run), "elsewhere")
		check(t, os.Mkdir(dir, 0o700))
		return dir
	}
	for name, c := range map[string]struct {
		make func(t *testing.T, p places)
		want string
	}{
		"symbolic link": {func(t *testing.T, p places) { check(t, os.Symlink(real(t, p), p.run)) }, "symbolic link"},
		"mode": {func(t *testing.T, p places) {
			mkdir(t, p)
			check(t, os.Chmod(p.run, 0o755))
		}, "0755"},
		"a file": {func(t *testing.T, p places) { check(t, os.WriteFile(p.run, nil, 0o600)) }, "not a directory"},
		"state.db a symbolic link": {func(t *testing.T, p places) {
			mkdir(t, p)
			check(t, os.WriteFile(filepath.Join(p.run, "real"), nil, 0o600))
			check(t, os.Symlink("real", p.db()))
		}, "symbolic link"},
		"state.db a link out": {func(t *testing.T, p places) {
			mkdir(t, p)
			check(t, os.Symlink(filepath.Join(real(t, p), "db"), p.db()))
		}, ""},
		"state.db a pipe": {func(t *testing.T, p places) {
			mkdir(t, p)
			check(t, syscall.Mkfifo(p.db(), 0o600))
		}, "regular file"},
		"state.db a directory": {func(t *testing.T, p places) { check(t, os.MkdirAll(p.db(), 0o700)) }, "directory"},
		"state.db for all": {func(t *testing.T, p places) {
			mkdir(t, p)
			check(t, os.WriteFile(p.db(), nil, 0o600))
			check(t, os.Chmod(p.db(), 0o644))
		}, "0644"},
		"state.db with two names": {func(t *testing.T, p places) {
			mkdir(t, p)
			check(t, os.WriteFile(p.db(), nil, 0o600))
			check(t, os.Link(p.db(), filepath.Join(p.run, "other")))
		}, "hard links"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlaces(t)
			c.make(t, p)
			before := snapshot(t, filepath.Dir(p.run))
			_, err := p.open(t).Count(t.Context(), "x")
			if !errors.Is(err, store.ErrPlace) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want one that says %q", err, c.want)
			}
			if after := snapshot(t, filepath.Dir(p.run)); after != before {
				t.Errorf("something was written:\n%s\n%s", before, after)
			}
		})
	}
}

// snapshot describes all below dir.
func snapshot(t testing.TB, dir string) string {
	t.Helper()
	var b strings.Builder
	check(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		fi, err := d.Info()
		if err != nil {
			return err
		}
		if !d.IsDir() {
			fmt.Fprintln(&b, path, fi.Mode(), fi.Size(), fi.ModTime())
		}
		return nil
	}))
	return b.String()
}

// T31: another user's directory.
// W40: nobody else can take the place of the records, nor one in a shared directory.
func TestForeignPlaces(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make a directory of another user")
	}
	p := newPlaces(t)
	check(t, os.Mkdir(p.run, 0o700))
	check(t, os.Chown(p.run, 12345, 12345))
	if _, err := p.open(t).Count(t.Context(), "x"); !errors.Is(err, store.ErrPlace) || !strings.Contains(err.Error(), "12345") {
		t.Errorf("a directory of uid 12345: %v", err)
	}
	check(t, os.Chown(p.run, 0, 0))
	check(t, os.WriteFile(p.db(), nil, 0o600))
	check(t, os.Chown(p.db(), 12345, 12345))
	if _, err := p.open(t).Count(t.Context(), "x"); !errors.Is(err, store.ErrPlace) || !strings.Contains(err.Error(), "12345") {
		t.Errorf("a file of uid 12345: %v", err)
	}
}

// where says which runtime directory a process takes, and why.
func where(places, *bufio.Scanner) error {
	st := store.New(store.Options{Kind: "test"})
	dir, err := st.Dir()
	if err != nil {
		dir = "none"
	}
	fmt.Println(dir)
	fmt.Println(strings.ReplaceAll(st.Why(), "\n", " "))
	return nil
}

// T32: which directory is taken in which environment. It is never one below the
// temporary directory, squatted or not.
func TestWhichPlace(t *testing.T) {
	squatted := filepath.Join(os.TempDir(), "smol-mcp")
	if _, err := os.Lstat(squatted); errors.Is(err, fs.ErrNotExist) {
		check(t, os.Mkdir(squatted, 0o777))
		check(t, os.Chmod(squatted, 0o777))
		t.Cleanup(func() { os.Remove(squatted) })
	}
	login := fmt.Sprintf("/run/user/%d", os.Geteuid())
	boot := store.BootName(store.ThisHost().BootID)
	for _, c := range []struct {
		runtime, home string
		login         bool
		want          string // a suffix
	}{
		{"private", "home", false, "/rt/smol-mcp"},
		{"private", "", false, "/rt/smol-mcp"},
		{"private", "home", true, "/rt/smol-mcp"},
		{"open", "home", false, "/run/" + boot},
		{"open", "home", true, login + "/smol-mcp"},
		{"missing", "home", false, "/run/" + boot},
		{"missing", "home", true, login + "/smol-mcp"},
		{"missing", "", false, "none"},
		{"relative", "home", false, "/run/" + boot},
		{"relative", "", true, login + "/smol-mcp"},
		{"unset", "home", false, "/run/" + boot},
		{"unset", "home", true, login + "/smol-mcp"},
		{"unset", "", true, login + "/smol-mcp"},
		{"unset", "", false, "none"},
	} {
		t.Run(fmt.Sprintf("XDG_RUNTIME_DIR %s, HOME %q, login %v", c.runtime, c.home, c.login), func(t *testing.T) {
			if c.login {
				makeLogin(t, login)
			} else if _, err := os.Stat(login); err == nil {
				t.Skip("there is a login")
			}
			dir := t.TempDir()
			env := []string{"GORACE=atexit_sleep_ms=0", "SMOL_MCP_TEST_ROLE=where", "PATH=" + os.Getenv("PATH"), "TMPDIR=" + os.TempDir()}
			rt := filepath.Join(dir, "rt")
			switch c.runtime {
			case "private", "open":
				check(t, os.Mkdir(rt, map[string]fs.FileMode{"private": 0o700, "open": 0o755}[c.runtime]))
				env = append(env, "XDG_RUNTIME_DIR="+rt)
			case "missing":
				env = append(env, "XDG_RUNTIME_DIR="+rt)
			case "relative":
				env = append(env, "XDG_RUNTIME_DIR=rt")
			}
			if c.home != "" {
				check(t, os.Mkdir(filepath.Join(dir, c.home), 0o700))
				env = append(env, "HOME="+filepath.Join(dir, c.home))
			}
			cmd := exec.Command(os.Args[0])
			cmd.Env, cmd.Dir = env, dir
			out, err := cmd.CombinedOutput()
			check(t, err)
			got, why, _ := strings.Cut(string(out), "\n")
			if !strings.HasSuffix(got, c.want) || strings.HasPrefix(got, squatted) || strings.TrimSpace(why) == "" {
				t.Errorf("%s\n%s\nwant …%s", got, why, c.want)
			}
		})
	}
}

// makeLogin makes the directory that a login makes.
func makeLogin(t *testing.T, dir string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make ", dir)
	}
	if _, err := os.Stat(dir); err == nil {
		return
	}
	check(t, os.MkdirAll(filepath.Dir(dir), 0o755))
	check(t, os.Mkdir(dir, 0o700))
	t.Cleanup(func() { os.RemoveAll(dir) })
}

// T33, I21: nothing that was not meant to be recorded is, and nobody else can
// read what is.
func TestNothingElseIsWritten(t *testing.T) {
	t.Setenv("SMOL_CLOUD_TOKEN", "tok-5f2b1c")
	p := newPlaces(t)
	defer syscall.Umask(syscall.Umask(0))
	st := p.open(t)
	ready(t, st.NewSession("stdio", "test"), wish("mcp-a"))
	check(t, filepath.WalkDir(filepath.Dir(p.run), func(path string, d fs.DirEntry, err error) error {
		check(t, err)
		fi, err := d.Info()
		check(t, err)
		if path != filepath.Dir(p.run) && fi.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v", path, fi.Mode())
		}
		if !fi.Mode().IsRegular() {
			return nil
		}
		b, err := os.ReadFile(path)
		check(t, err)
		for _, kv := range os.Environ() {
			_, v, _ := strings.Cut(kv, "=")
			if len(v) > 8 && !strings.HasPrefix(path, v) && bytes.Contains(b, []byte(v)) && !bytes.Contains([]byte(path), []byte(v)) {
				t.Errorf("%s contains the value of %s", path, kv)
			}
		}
		return nil
	}))
}

// I20: fields that this version does not know survive a rewrite.
func TestUnknownFieldsSurvive(t *testing.T) {
	p := newPlaces(t)
	st := p.open(t)
	s := st.NewSession("stdio", "test")
	rec, err := s.Intend(t.Context(), wish("mcp-a"))
	check(t, err)
	check(t, st.Patch(t.Context(), local("mcp-a"), func(row map[string]json.RawMessage) { row["newer"] = json.RawMessage(`{"a":[1]}`) }))
	check(t, s.Confirm(context.Background(), rec, "mcp-a", time.Now()))
	check(t, st.Patch(t.Context(), local("mcp-a"), func(row map[string]json.RawMessage) {
		if string(row["newer"]) != `{"a":[1]}` || string(row["phase"]) != `"ready"` {
			t.Errorf("row %s", row)
		}
	}))
}
