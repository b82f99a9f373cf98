//go:build unix

package engine_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"smol-mcp/fleet"
)

// program is an engine in a process of its own, which can be killed.
type program struct {
	*daemon
	cmd *exec.Cmd
}

// spawn starts the engine as a program. With the test it ends, and its machines do.
func spawn(t *testing.T, change func(p *program)) *program {
	t.Helper()
	p := &program{daemon: &daemon{opts: options(t)}}
	if change != nil {
		change(p)
	}
	p.exec(t)
	t.Cleanup(func() {
		p.deleteAll(t)
		p.kill(t, syscall.SIGTERM)
	})
	return p
}

func (p *program) exec(t *testing.T) {
	t.Helper()
	p.cmd = p.command()
	out := &testWriter{t: t}
	p.cmd.Stdout, p.cmd.Stderr = out, out
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the engine answers", func() bool {
		conn, err := net.Dial("unix", p.socket())
		if err != nil {
			return false
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "GET /readyz HTTP/1.0\r\n\r\n") // a break is seen when reading
		answer, _ := io.ReadAll(conn)
		return strings.HasPrefix(string(answer), "HTTP/1.0 200")
	})
}

func (p *program) command() *exec.Cmd {
	o := p.opts
	return exec.Command(shared.daemon, "serve", "--listen", o.Listen, "--data", o.Data, "--cache", o.Cache, "--kernel", o.Kernel, "--guest", o.Guest,
		"--accel", "tcg", fmt.Sprintf("--cold=%v", o.Cold))
}

// testWriter logs until its test has ended.
type testWriter struct{ t *testing.T }

func (w *testWriter) Write(b []byte) (int, error) {
	if w.t.Context().Err() == nil {
		w.t.Logf("engine: %s", strings.TrimSpace(string(b)))
	}
	return len(b), nil
}

// kill sends a signal and waits for the end.
func (p *program) kill(t *testing.T, sig syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		t.Error(err)
	}
	_ = p.cmd.Wait() // of a killed process it is an error
}

// again kills the engine as a power failure of it would, and starts it anew.
func (p *program) again(t *testing.T) {
	t.Helper()
	p.kill(t, syscall.SIGKILL)
	p.exec(t)
}

// eventually polls for what happens in another process.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(60 * time.Second); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

// record is machine.json.
type record struct {
	State   string
	UUID    string
	Process *struct {
		PID    int
		BootID string
	}
}

func (d *daemon) record(t *testing.T, name string) (r record) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(d.opts.Data, "machines", name, "machine.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &r); err != nil {
		t.Fatal(err)
	}
	return r
}

// hypervisors counts the processes that work in a directory of ours.
func hypervisors(dirs ...string) int {
	n := 0
	links, _ := filepath.Glob("/proc/[0-9]*/cwd")
	for _, l := range links {
		at, err := os.Readlink(l)
		for _, dir := range dirs {
			if err == nil && strings.HasPrefix(at, dir+"/") {
				n++
			}
		}
	}
	return n
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// ask sends one HTTP request as it is.
func (d *daemon) ask(t *testing.T, method, path, body string, header ...string) (int, http.Header, string) {
	t.Helper()
	pool := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var dialer net.Dialer
		return dialer.DialContext(ctx, "unix", d.socket())
	}}
	defer pool.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://engine"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := pool.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, res.Header, string(text)
}

func state(t *testing.T, f fleet.Fleet, name string) fleet.State {
	t.Helper()
	m, err := f.Get(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return m.State
}
