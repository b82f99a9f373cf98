package fleet_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"smol-mcp/fleet"
	"smol-mcp/fleet/fleettest"
)

// place is a runtime directory, a data directory for the fake, and an
// environment in which engines find it and nothing else.
type place struct {
	t    *testing.T
	dir  string // runtime directory
	data string
	prog string
}

// newPlace also checks, when the test is over, that no engine, open file or
// goroutine is left.
func newPlace(t *testing.T) *place {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "eng") // a short path: sockets go there
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	// The data come first, so that they are still there for the check below.
	p := &place{t: t, dir: dir, data: fleettest.SmolvmData(t), prog: fleettest.BuildSmolvm(t)}
	t.Setenv("SMOLVM_DATA_DIR", p.data)
	files, routines := openFiles(t), runtime.NumGoroutine()
	t.Cleanup(func() {
		for _, s := range fleettest.SmolvmStarts(p.data) {
			if alive(s.PID) {
				t.Errorf("engine %d is left", s.PID)
				syscall.Kill(s.PID, syscall.SIGKILL)
				syscall.Wait4(s.PID, nil, 0, nil) // when it is a child of ours
			}
		}
		eventually(t, "open files and goroutines are back to what they were", func() bool {
			return len(openFiles(t)) <= len(files) && runtime.NumGoroutine() <= routines
		})
		if t.Failed() {
			log, _ := os.ReadFile(filepath.Join(dir, "engine.log"))
			t.Logf("files were %v\nare %v\nengine.log: %.2000s", files, openFiles(t), log)
		}
	})
	return p
}

// engine returns a new engine of this place, closed with the test.
func (p *place) engine(change ...func(*fleet.EngineOptions)) *fleet.Engine {
	opts := fleet.EngineOptions{
		Kind: "smolvm", Smolvm: p.prog, MinVersion: "1.14.0", StartTimeout: 20 * time.Second,
		Dir: func() (string, error) { return p.dir, nil },
	}
	for _, c := range change {
		c(&opts)
	}
	e := fleet.NewEngine(opts)
	fleet.SetUsual(e)
	p.t.Cleanup(func() { e.Close() })
	return e
}

func (p *place) starts() []fleettest.SmolvmStart { return fleettest.SmolvmStarts(p.data) }

// get dials and asks for path.
func get(t *testing.T, e *fleet.Engine, path string) string {
	t.Helper()
	c, err := e.Dial(t.Context())
	if err != nil {
		t.Fatalf("dial: %v", words(err))
	}
	defer c.Close()
	fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", path)
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// refused fails unless Dial does, with all the texts in the three parts of its error.
func refused(t *testing.T, e *fleet.Engine, code fleet.Code, texts ...string) {
	t.Helper()
	c, err := e.Dial(t.Context())
	if err == nil {
		c.Close()
		t.Error("dial succeeds")
		return
	}
	for _, text := range texts {
		if !strings.Contains(words(err), text) {
			t.Errorf("error lacks %q: %s", text, words(err))
		}
	}
	if fleet.CodeOf(err) != code {
		t.Errorf("code %s, want %s: %s", fleet.CodeOf(err), code, words(err))
	}
	var fe *fleet.Error
	if errors.As(err, &fe) && len(fe.Why) > fleet.MaxWhy {
		t.Errorf("Why has %d bytes", len(fe.Why))
	}
}

func words(err error) string {
	var fe *fleet.Error
	if errors.As(err, &fe) {
		return fe.Error() + " -> " + fe.Next
	}
	return err.Error()
}

func dial(t *testing.T, e *fleet.Engine) {
	t.Helper()
	get(t, e, "/health")
}

func alive(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	threads, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	return err == nil && (!strings.Contains(string(b), ") Z ") || len(threads) > 1)
}

func openFiles(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, e := range entries {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil {
			list = append(list, to)
		}
	}
	slices.Sort(list)
	return list
}

// eventually polls for what another process does.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(15 * time.Second); !cond(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Errorf("never: %s", what)
			return
		}
	}
}

// TestEngineUser is no test: it is a process that uses an engine, in the place
// that its environment names. It answers each line of its input.
func TestEngineUser(t *testing.T) {
	text := os.Getenv("ENGINE_USER")
	if text == "" {
		t.SkipNow() // only as a child of another test
	}
	var opts fleet.EngineOptions
	var dir string
	for i, v := range strings.Split(text, "|") {
		switch i {
		case 0:
			dir = v
		case 1:
			opts.Smolvm = v
		}
	}
	opts.Kind, opts.StartTimeout = "smolvm", 20*time.Second
	opts.Dir = func() (string, error) { return dir, nil }
	e := fleet.NewEngine(opts)
	fleet.SetUsual(e)
	fmt.Println("> up")
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		switch in.Text() {
		case "dial":
			c, err := e.Dial(context.Background())
			if err != nil {
				fmt.Println("> error:", words(err))
				continue
			}
			c.Close()
			b, _ := json.Marshal(e.Status())
			fmt.Printf("> %s\n", b)
		case "close":
			fmt.Println("> closed", e.Close())
			os.Exit(0)
		}
	}
	os.Exit(0)
}

// user is a process that uses an engine.
type user struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

// user starts one.
func (p *place) user(change ...func(*exec.Cmd)) *user {
	p.t.Helper()
	u := &user{t: p.t, cmd: exec.Command(os.Args[0], "-test.run=^TestEngineUser$", "-test.v=false")}
	u.cmd.Env = append(os.Environ(), "ENGINE_USER="+p.dir+"|"+p.prog)
	u.cmd.Stderr = os.Stderr
	for _, c := range change {
		c(u.cmd)
	}
	in, err := u.cmd.StdinPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	out, err := u.cmd.StdoutPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	u.in, u.out = in, bufio.NewScanner(out)
	if err := u.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(u.kill)
	u.answer()
	return u
}

func (u *user) send(line string) { io.WriteString(u.in, line+"\n") }

func (u *user) answer() string {
	for u.out.Scan() {
		if line, ok := strings.CutPrefix(u.out.Text(), "> "); ok {
			return line
		}
	}
	return ""
}

// dial makes the user dial and returns the engine that it has then.
func (u *user) dial() fleet.EngineStatus {
	u.t.Helper()
	u.send("dial")
	return u.status()
}

func (u *user) status() (s fleet.EngineStatus) {
	u.t.Helper()
	line := u.answer()
	if err := json.Unmarshal([]byte(line), &s); err != nil {
		u.t.Errorf("user says %q", line)
	}
	return s
}

func (u *user) close() {
	u.t.Helper()
	u.send("close")
	if line := u.answer(); line != "closed <nil>" {
		u.t.Errorf("user says %q", line)
	}
	u.cmd.Wait()
}

func (u *user) kill() {
	u.cmd.Process.Kill()
	u.cmd.Wait()
}

// serveAt answers connections to a socket with h until the test ends.
func serveAt(t *testing.T, socket string, h http.Handler) {
	t.Helper()
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: h}
	done := make(chan struct{})
	go func() { s.Serve(l); close(done) }()
	t.Cleanup(func() { s.Close(); <-done })
}
