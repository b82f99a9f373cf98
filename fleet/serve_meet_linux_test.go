package fleet_test

import (
	"bufio"
	"context"
	"fmt"
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
	"smol-mcp/fleet/fleettest"
)

// B4: what is no engine is named, and left alone.
func TestEngineMeetsSomethingElse(t *testing.T) {
	ssh := func(t *testing.T, socket string) {
		l, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				fmt.Fprint(c, "SSH-2.0-OpenSSH_9.2\r\n")
				bufio.NewReader(c).ReadString('\n')
				c.Close()
			}
		}()
		t.Cleanup(func() { l.Close(); <-done })
	}
	datagrams := func(t *testing.T, socket string) {
		c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
	}
	web := func(status int, body string) func(*testing.T, string) {
		return func(t *testing.T, socket string) {
			serveAt(t, socket, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(status)
				fmt.Fprint(w, body)
			}))
		}
	}
	for _, c := range []struct {
		name  string
		serve func(*testing.T, string)
		text  string
	}{
		{"ssh", ssh, "SSH-2.0-OpenSSH_9.2"},
		{"another product", web(200, `{"status":"healthy","service":"SmolVM"}`), `{"status":"healthy","service":"SmolVM"}`},
		{"a web server", web(404, "<html>nothing here"), "404 Not Found: <html>nothing here"},
		{"datagrams", datagrams, "wrong type for socket"},
		{"unwell", web(200, `{"status":"bad","version":"1.14.5"}`), `"bad"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPlace(t)
			socket := filepath.Join(p.dir, "engine.sock")
			c.serve(t, socket)
			refused(t, p.engine(), fleet.CodeUnavailable, socket, c.text, "end what listens there")
			refused(t, p.engine(func(o *fleet.EngineOptions) { o.URL = "unix://" + socket }), fleet.CodeUnavailable, c.text, "SMOL_LOCAL_URL")
			if fi, err := os.Lstat(socket); err != nil || fi.Mode().Type() != os.ModeSocket {
				t.Errorf("it was harmed: %v", err)
			}
			if n := len(p.starts()); n != 0 {
				t.Errorf("%d starts", n)
			}
		})
	}
	t.Run("a file", func(t *testing.T) {
		p := newPlace(t)
		os.WriteFile(filepath.Join(p.dir, "engine.sock"), []byte("precious"), 0o600)
		refused(t, p.engine(), fleet.CodeUnavailable, "is not a socket")
		if b, _ := os.ReadFile(filepath.Join(p.dir, "engine.sock")); string(b) != "precious" {
			t.Errorf("the file is %q", b)
		}
	})
}

// A serve of the user's own is used and never stopped. When it goes, ours
// finds the same machines (W14).
func TestEngineOfTheUser(t *testing.T) {
	p := newPlace(t)
	socket := filepath.Join(p.dir, "usual.sock")
	cmd := exec.Command(p.prog, "serve", "start", "--listen", socket)
	cmd.Env = append(os.Environ(), "SMOLVM_GUEST_ROLLOUT_HOST_PORT=0")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { cmd.Process.Kill(); cmd.Wait() }()
	eventually(t, "it listens", func() bool {
		c, err := net.Dial("unix", socket)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	e := p.engine(func(o *fleet.EngineOptions) { o.Kind = "auto" })
	fleet.SetUsual(e, filepath.Join(p.dir, "nothing.sock"), socket)
	dial(t, e)
	if s := e.Status(); s.Started || s.PID != cmd.Process.Pid || s.URL != "unix://"+socket {
		t.Errorf("%+v", s)
	}
	s := fleet.NewSmolvm(e.Dial, fleet.SmolvmOptions{})
	defer s.Close()
	if _, err := s.Create(t.Context(), fleet.Spec{Name: "kept"}); err != nil {
		t.Fatal(err)
	}
	other := p.engine()
	fleet.SetUsual(other, socket)
	dial(t, other)
	other.Close()
	if !alive(cmd.Process.Pid) {
		t.Fatal("it was stopped")
	}
	tooNew := p.engine(func(o *fleet.EngineOptions) { o.MinVersion = "1.15" })
	fleet.SetUsual(tooNew, socket)
	refused(t, tooNew, fleet.CodeUnavailable, "smolvm 1.14.5", "at least 1.15")
	if !alive(cmd.Process.Pid) {
		t.Fatal("it was stopped")
	}
	cmd.Process.Kill()
	cmd.Wait()
	if list := get(t, e, "/api/v1/machines"); !strings.Contains(list, `"kept"`) || !e.Status().Started {
		t.Errorf("%+v has %s", e.Status(), list)
	}
}

// W39: a socket in a public place is used only when its file and its server are ours.
func TestEngineTrustsOnlyItsUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to be another user")
	}
	p := newPlace(t)
	public, err := os.MkdirTemp("/tmp", "pub")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(public)
	os.Chmod(public, 0o777)
	b, err := os.ReadFile(p.prog)
	if err != nil {
		t.Fatal(err)
	}
	prog, socket := filepath.Join(public, "smolvm"), filepath.Join(public, "s")
	if err := os.WriteFile(prog, b, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(prog, "serve", "start", "--listen", socket)
	cmd.Env = []string{"SMOLVM_DATA_DIR=" + filepath.Join(public, "data"), "SMOLVM_GUEST_ROLLOUT_HOST_PORT=0"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { cmd.Process.Kill(); cmd.Wait() }()
	eventually(t, "it listens", func() bool { _, err := os.Stat(socket); return err == nil })
	link := filepath.Join(public, "link")
	ours := p.engine()
	dial(t, ours)
	if err := os.Symlink(filepath.Join(p.dir, "engine.sock"), link); err != nil {
		t.Fatal(err)
	}
	try := func(what, socket string) {
		t.Helper()
		elsewhere := t.TempDir()
		e := p.engine(func(o *fleet.EngineOptions) {
			o.Dir = func() (string, error) { return elsewhere, nil }
			o.Smolvm = "/nonexistent/smolvm"
		})
		fleet.SetUsual(e, socket)
		refused(t, e, fleet.CodeUnavailable, "/nonexistent/smolvm")
		if e.Status().URL != "" {
			t.Errorf("%s was used", what)
		}
	}
	try("another user's socket", socket)
	os.Chown(socket, 0, 0)
	try("another user's server behind our file", socket)
	try("a symbolic link to our own", link)
	swapped := filepath.Join(public, "swapped")
	serveAt(t, swapped, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"status":"ok","version":"1.14.5"}`) }))
	os.Chown(swapped, 65534, 65534)
	try("a file of another user with our server", swapped)
}

func TestEngineAtURL(t *testing.T) {
	p := newPlace(t)
	f := fleettest.StartSmolvm(t, fleettest.SmolvmOptions{})
	e := p.engine(func(o *fleet.EngineOptions) { o.URL = f.URL() })
	dial(t, e)
	if s := e.Status(); s.Started || s.URL != f.URL() {
		t.Errorf("%+v", s)
	}
	e.Close()
	if f.Count("GET", "/health") == 0 || len(p.starts()) != 0 {
		t.Errorf("%d starts", len(p.starts()))
	}

	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	l.Close()
	// On a port every user of the computer could use the engine, so none is started there.
	refused(t, p.engine(func(o *fleet.EngineOptions) { o.URL = fmt.Sprintf("http://localhost:%d", port) }), fleet.CodeUnavailable, "nobody answers there")
	for _, url := range []string{"unix://" + p.dir + "/my/own.sock"} {
		at := func(o *fleet.EngineOptions) { o.URL = url }
		a, b, plain := p.engine(at), p.engine(at), p.engine()
		dial(t, a)
		dial(t, b)
		dial(t, plain) // finds it by the record
		pid := a.Status().PID
		for _, e := range []*fleet.Engine{a, b, plain} {
			if s := e.Status(); !s.Started || s.PID != pid || s.URL != url {
				t.Errorf("%+v", s)
			}
		}
		elsewhere := p.engine(func(o *fleet.EngineOptions) { o.URL = "unix://" + p.dir + "/third.sock" })
		refused(t, elsewhere, fleet.CodeUnavailable, "other sessions use the one at "+url)
		a.Close()
		plain.Close()
		if !alive(pid) {
			t.Fatal("stopped under a user")
		}
		b.Close()
		if alive(pid) {
			t.Error("the last user left it running")
		}
	}

	for _, url := range []string{"http://192.0.2.1:9", "ssh://x", "unix://relative", "http://localhost"} {
		e := p.engine(func(o *fleet.EngineOptions) { o.URL = url })
		ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
		if _, err := e.Dial(ctx); fleet.CodeOf(err) != fleet.CodeUnavailable {
			t.Errorf("%s: %v", url, err)
		}
		cancel()
	}
	if n := len(p.starts()); n != 1 {
		t.Errorf("%d starts", n)
	}
}
