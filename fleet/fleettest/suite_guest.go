package fleettest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"smol-mcp/fleet"
)

func testExec(t *testing.T, s *suite) {
	m := s.running(t, "exec", fleet.StartOptions{})
	sh := func(line string) []string { return []string{"/bin/sh", "-c", line} }
	for _, c := range []struct {
		what string
		cmd  fleet.Command
		want fleet.Result
	}{
		{"success", fleet.Command{Argv: sh("true")}, fleet.Result{}},
		{"exit code", fleet.Command{Argv: sh("echo out; echo err >&2; exit 42")}, fleet.Result{ExitCode: 42, Stdout: []byte("out\n"), Stderr: []byte("err\n")}},
		{"signal", fleet.Command{Argv: sh("kill -9 $$")}, fleet.Result{ExitCode: 137}},
		{"argv is no shell", fleet.Command{Argv: []string{"echo", "a b", "$HOME", "", "*", "'\""}}, fleet.Result{Stdout: []byte("a b $HOME  * '\"\n")}},
		{"stdin", fleet.Command{Argv: []string{"cat"}, Stdin: "päckchen\n\n"}, fleet.Result{Stdout: []byte("päckchen\n\n")}},
		{"no stdin", fleet.Command{Argv: []string{"cat"}}, fleet.Result{}},
		{"stdin of full size", fleet.Command{Argv: sh("cat | wc -c | tr -d ' '"), Stdin: strings.Repeat("s", fleet.MaxStdin)}, fleet.Result{Stdout: []byte("32768\n")}},
		{"stdin unread", fleet.Command{Argv: sh("exit 3"), Stdin: strings.Repeat("s", fleet.MaxStdin)}, fleet.Result{ExitCode: 3}},
		{"env", fleet.Command{Argv: sh(`printf %s "$_A1-$B"`), Env: map[string]string{"_A1": "x=y", "B": "two\nlines ü"}}, fleet.Result{Stdout: []byte("x=y-two\nlines ü")}},
		{"workdir", fleet.Command{Argv: []string{"pwd"}, Workdir: "/tmp"}, fleet.Result{Stdout: []byte("/tmp\n")}},
	} {
		t.Run(c.what, func(t *testing.T) {
			c.cmd.Timeout = 30 * time.Second
			res, err := s.Exec(ctx(t), m.Name, c.cmd)
			if err != nil {
				t.Fatal(err)
			}
			if res.ExitCode != c.want.ExitCode || !bytes.Equal(res.Stdout, c.want.Stdout) || !bytes.Equal(res.Stderr, c.want.Stderr) {
				t.Errorf("exit code %d, stdout %q, stderr %q", res.ExitCode, res.Stdout, res.Stderr)
			}
		})
	}
	t.Run("missing program", func(t *testing.T) {
		res, err := s.Exec(ctx(t), m.Name, fleet.Command{Argv: []string{"/no/such/program"}, Timeout: 30 * time.Second})
		if s.traits.Missing {
			wantCode(t, err, fleet.CodeNotFound)
		} else if err != nil || res.ExitCode == 0 || len(res.Stderr) == 0 {
			t.Errorf("exit code %d, stderr %q, error %v", res.ExitCode, res.Stderr, err)
		}
	})
}

// Every byte arrives as it was written.
func testExecBytes(t *testing.T, s *suite) {
	m := s.running(t, "bytes", fleet.StartOptions{})
	var want []byte
	line := "printf '"
	for b := range 256 {
		want = append(want, byte(b))
		line += fmt.Sprintf(`\%03o`, b)
	}
	res, err := s.Exec(ctx(t), m.Name, fleet.Command{Argv: []string{"/bin/sh", "-c", line + "' | tee /dev/stderr"}, Timeout: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if s.traits.Text {
		want, res.Stdout, res.Stderr = want[:128], res.Stdout[:min(128, len(res.Stdout))], res.Stderr[:min(128, len(res.Stderr))]
	}
	if !bytes.Equal(res.Stdout, want) || !bytes.Equal(res.Stderr, want) && len(res.Stderr) > 0 {
		t.Errorf("stdout %q, stderr %q", res.Stdout, res.Stderr)
	}
	const big = 1 << 20
	line = fmt.Sprintf("head -c %d /dev/zero | tr '\\0' x", big)
	res, err = s.Exec(ctx(t), m.Name, fleet.Command{Argv: []string{"/bin/sh", "-c", line}, Timeout: 60 * time.Second})
	if err != nil || len(res.Stdout) != big {
		t.Errorf("%d bytes of %d, %v", len(res.Stdout), big, err)
	}
}

func testExecRefused(t *testing.T, s *suite) {
	m := s.create(t, "refused")
	ok := fleet.Command{Argv: []string{"true"}, Timeout: time.Second}
	for what, change := range map[string]func(*fleet.Command){
		"no command":    func(c *fleet.Command) { c.Argv = nil },
		"no timeout":    func(c *fleet.Command) { c.Timeout = 0 },
		"much stdin":    func(c *fleet.Command) { c.Stdin = strings.Repeat("s", fleet.MaxStdin+1) },
		"empty env":     func(c *fleet.Command) { c.Env = map[string]string{"": "x"} },
		"env with =":    func(c *fleet.Command) { c.Env = map[string]string{"A=B": "x"} },
		"env with dash": func(c *fleet.Command) { c.Env = map[string]string{"A-B": "x"} },
		"env digit":     func(c *fleet.Command) { c.Env = map[string]string{"1A": "x"} },
	} {
		t.Run(what, func(t *testing.T) {
			cmd := ok
			change(&cmd)
			_, err := s.Exec(ctx(t), m.Name, cmd)
			wantCode(t, err, fleet.CodeInvalid)
		})
	}
	s.wantState(t, m, nil, s.traits.unstarted()) // nothing reached the machine
}

// The guest ends a command after its timeout, and keeps what it had written.
func testExecTimeout(t *testing.T, s *suite) {
	m := s.running(t, "timeout", fleet.StartOptions{})
	begun := time.Now()
	res, err := s.Exec(ctx(t), m.Name, fleet.Command{Argv: []string{"/bin/sh", "-c", "echo before; sleep 60; echo after"}, Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begun); took > 10*time.Second {
		t.Errorf("it took %v", took)
	}
	if res.ExitCode != 124 || string(res.Stdout) != "before\n" {
		t.Errorf("exit code %d, stdout %q", res.ExitCode, res.Stdout)
	}
}

// The end of the caller ends the wait within a second; the command lives on.
func testExecCancel(t *testing.T, s *suite) {
	m := s.running(t, "cancel", fleet.StartOptions{})
	c, cancel := context.WithCancel(ctx(t))
	defer cancel()
	var ended time.Time
	time.AfterFunc(300*time.Millisecond, func() { ended = time.Now(); cancel() })
	_, err := s.Exec(c, m.Name, fleet.Command{Argv: []string{"/bin/sh", "-c", "sleep 2; echo done >/tmp/lived"}, Timeout: 30 * time.Second})
	late := time.Since(ended)
	wantCode(t, err, fleet.CodeCancelled)
	if !fleet.MaybeDone(err) {
		t.Error("the command was begun, and the error does not say that it may have been")
	}
	if late > time.Second {
		t.Errorf("heard %v after the end", late)
	}
	s.sh(t, m.Name, "for i in 1 2 3 4 5 6 7 8; do [ -e /tmp/lived ] && exit 0; sleep 1; done; exit 1")
}

// More commands at once than a guest has connections, all succeed, and one that is
// cancelled while it waits for its turn does not run.
func testExecMany(t *testing.T, s *suite) {
	m := s.running(t, "many", fleet.StartOptions{})
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			res, err := s.Exec(ctx(t), m.Name, fleet.Command{Argv: []string{"/bin/sh", "-c", fmt.Sprintf("sleep 0.2; echo %d", i)}, Timeout: 30 * time.Second})
			if err != nil || string(res.Stdout) != fmt.Sprintf("%d\n", i) {
				t.Errorf("command %d: %q, %v", i, res.Stdout, err)
			}
		})
	}
	wg.Wait()
	if now, err := s.Get(ctx(t), m.Name); err != nil || now.State != fleet.Running {
		t.Errorf("afterwards the machine is %s, %v", now.State, err)
	}
}

// A command that must not start its machine does not, where the fleet can be told so.
func testExecNoStart(t *testing.T, s *suite) {
	m := s.running(t, "nostart", fleet.StartOptions{})
	look := fleet.Command{Argv: []string{"true"}, Timeout: 30 * time.Second, NoStart: true}
	if _, err := s.Exec(ctx(t), m.Name, look); err != nil {
		t.Fatalf("in one that runs: %v", err)
	}
	if _, err := s.Stop(ctx(t), m.Name, fleet.StopOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err := s.Exec(ctx(t), m.Name, look)
	if err == nil {
		t.Skip("the fleet cannot be told")
	}
	wantCode(t, err, fleet.CodeNotReady)
	if m, err := s.Get(ctx(t), m.Name); err != nil || m.State != fleet.Stopped {
		t.Errorf("it is %s, %v", m.State, err)
	}
}

func testExecStarts(t *testing.T, s *suite) {
	m := s.create(t, "starts")
	if got := s.sh(t, m.Name, "echo hello"); got != "hello\n" {
		t.Errorf("got %q", got)
	}
	s.wantState(t, fleet.Machine{Name: m.Name, State: fleet.Running}, nil, fleet.Running)
}

// noise is n bytes that no coding leaves alone.
func noise(n int) []byte {
	out := make([]byte, 0, n+32)
	for i := 0; len(out) < n; i++ {
		sum := sha256.Sum256(fmt.Appendf(nil, "%d", i))
		out = append(out, sum[:]...)
	}
	return out[:n]
}

func testFiles(t *testing.T, s *suite) {
	m := s.running(t, "files", fleet.StartOptions{})
	for _, c := range []struct {
		path string
		size int
	}{
		{"/tmp/empty", 0},
		{"/tmp/one", 1},
		{"/tmp/a/b c/ü%2F/d?e#f&g+h;i", 300},
		{"/root/big", 8 << 20},
	} {
		want := noise(c.size)
		if err := s.Upload(ctx(t), m.Name, c.path, bytes.NewReader(want), int64(c.size)); err != nil {
			t.Errorf("upload %s: %v", c.path, err)
			continue
		}
		var got bytes.Buffer
		n, err := s.Download(ctx(t), m.Name, c.path, &got, 0)
		if err != nil || n != int64(c.size) || !bytes.Equal(got.Bytes(), want) {
			t.Errorf("download %s: %d bytes of %d, %v", c.path, n, c.size, err)
		}
		if n, err := s.Download(ctx(t), m.Name, c.path, io.Discard, int64(max(c.size, 1))); err != nil || n != int64(c.size) {
			t.Errorf("download %s with its size as the limit: %d, %v", c.path, n, err)
		}
	}
	if err := s.Upload(ctx(t), m.Name, "/root/big", strings.NewReader("small"), 5); err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	if _, err := s.Download(ctx(t), m.Name, "/root/big", &got, 0); err != nil || got.String() != "small" {
		t.Errorf("replaced by %q, %v", got.String(), err)
	}
}

func testFilesMissing(t *testing.T, s *suite) {
	m := s.running(t, "missing", fleet.StartOptions{})
	var got bytes.Buffer
	_, err := s.Download(ctx(t), m.Name, "/tmp/none", &got, 0)
	wantCode(t, err, fleet.CodeNotFound)
	if err := s.Upload(ctx(t), m.Name, "/tmp/dir/file", strings.NewReader("0123456789"), 10); err != nil {
		t.Fatal(err)
	}
	_, err = s.Download(ctx(t), m.Name, "/tmp/dir", &got, 0)
	wantCode(t, err, fleet.CodeInvalid)
	if got.Len() > 0 {
		t.Errorf("wrote %q of what is no file", got.Bytes())
	}
	n, err := s.Download(ctx(t), m.Name, "/tmp/dir/file", &got, 9)
	wantCode(t, err, fleet.CodeInvalid)
	if n > 9 || got.Len() > 9 {
		t.Errorf("%d bytes past a limit of 9", n)
	}
}

func testFilesRefused(t *testing.T, s *suite) {
	m := s.create(t, "paths")
	for _, path := range []string{
		"", "tmp/x", "/", "/tmp/", "/..", "/../../../account", "/tmp/../etc/passwd", "/tmp/./x", "/tmp/..", "/tmp/x\x00y",
	} {
		_, err := s.Download(ctx(t), m.Name, path, io.Discard, 0)
		if fleet.CodeOf(err) != fleet.CodeInvalid {
			t.Errorf("download %q: %v", path, err)
		}
		err = s.Upload(ctx(t), m.Name, path, strings.NewReader("x"), 1)
		if fleet.CodeOf(err) != fleet.CodeInvalid {
			t.Errorf("upload %q: %v", path, err)
		}
	}
	s.wantState(t, m, nil, s.traits.unstarted()) // nothing reached the machine
	if err := s.Upload(ctx(t), m.Name, "/tmp/x", strings.NewReader("short"), 9); err == nil {
		t.Error("a reader with fewer bytes than announced made a file")
	}
}

// Commands and files see one disk.
func testFilesShared(t *testing.T, s *suite) {
	m := s.running(t, "shared", fleet.StartOptions{})
	if err := s.Upload(ctx(t), m.Name, "/root/made/here", strings.NewReader("by upload\n"), 10); err != nil {
		t.Fatal(err)
	}
	if got := s.sh(t, m.Name, "cat /root/made/here; printf 'by\\000exec' >/root/made/there"); got != "by upload\n" {
		t.Errorf("a command sees %q", got)
	}
	var got bytes.Buffer
	if _, err := s.Download(ctx(t), m.Name, "/root/made/there", &got, 0); err != nil || got.String() != "by\x00exec" {
		t.Errorf("download sees %q, %v", got.String(), err)
	}
}
