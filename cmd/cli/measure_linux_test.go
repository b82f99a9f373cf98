package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"smol-mcp/fleet"
	"smol-mcp/fleet/fleettest"
)

// Benchmarks run whole programs, built as users build them, and the thing to
// compare with beside them in the same run: the bare SDK server of
// testdata/bare, or the same request sent straight to the engine.

const (
	initialize  = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"bench","version":"1"}}}`
	initialized = `{"jsonrpc":"2.0","method":"notifications/initialized"}`
)

// A server is a program that speaks MCP over its standard streams.
type server struct {
	t     testing.TB
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines *bufio.Reader
	id    int
}

// startServer starts a program and opens a session with it.
func startServer(t testing.TB, program string, env ...string) *server {
	t.Helper()
	s := &server{t: t, cmd: exec.Command(program)}
	s.cmd.Env = append(os.Environ(), env...)
	var err error
	if s.in, err = s.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	s.lines = bufio.NewReaderSize(out, 1<<20)
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s.send(initialize)
	s.receive()
	s.send(initialized)
	return s
}

func (s *server) send(line string) {
	s.t.Helper()
	if _, err := io.WriteString(s.in, line+"\n"); err != nil {
		s.t.Fatal(err)
	}
}

func (s *server) receive() []byte {
	s.t.Helper()
	line, err := s.lines.ReadBytes('\n')
	if err != nil {
		s.t.Fatalf("no answer: %v", err)
	}
	return line
}

// call calls a tool and returns its structured content.
func (s *server) call(tool string, arguments map[string]any) map[string]any {
	s.t.Helper()
	s.id++
	raw, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": s.id, "method": "tools/call", "params": map[string]any{"name": tool, "arguments": arguments}})
	if err != nil {
		s.t.Fatal(err)
	}
	s.send(string(raw))
	var answer struct {
		Result struct {
			IsError           bool
			Content           []struct{ Text string }
			StructuredContent map[string]any
		}
	}
	if err := json.Unmarshal(s.receive(), &answer); err != nil {
		s.t.Fatal(err)
	}
	if answer.Result.IsError {
		s.t.Fatalf("%s: %v", tool, answer.Result.Content)
	}
	return answer.Result.StructuredContent
}

// end closes the session and waits for the program.
func (s *server) end() {
	s.t.Helper()
	s.in.Close()
	if err := s.cmd.Wait(); err != nil {
		s.t.Errorf("the program ended with %v", err)
	}
}

// memory reads a line of the process's status, in MiB: VmRSS, or VmHWM for its peak.
func (s *server) memory(field string) float64 {
	s.t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	if err != nil {
		s.t.Fatal(err)
	}
	_, rest, _ := bytes.Cut(status, []byte(field+":"))
	var kib float64
	if _, err := fmt.Sscan(string(rest), &kib); err != nil {
		s.t.Fatal(err)
	}
	return kib / 1024
}

// build builds a program the way README tells users to.
func build(t testing.TB, pkg string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "program")
	cmd := exec.Command("go", "build", "-o", program, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", pkg, err, out)
	}
	return program
}

// privatePlaces are the settings of a server that touches nobody's files.
func privatePlaces(t testing.TB) []string {
	t.Helper()
	run, err := os.MkdirTemp("", "smol") // short, since a socket is made in it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(run) })
	home := t.TempDir()
	return []string{"HOME=" + home, "XDG_RUNTIME_DIR=" + run, "XDG_CONFIG_HOME=" + home, "XDG_STATE_HOME=" + filepath.Join(home, "state")}
}

// A measured is one of several things that are measured in turns, so that what else the
// computer does falls on all of them alike.
type measured struct {
	name string
	once func()
}

// inTurns runs the cases one after the other in each round, and reports the median of each in
// milliseconds.
func inTurns(b *testing.B, cases ...measured) {
	took := make([][]float64, len(cases))
	for b.Loop() {
		for i, c := range cases {
			begin := time.Now()
			c.once()
			took[i] = append(took[i], float64(time.Since(begin).Microseconds())/1000)
		}
	}
	for i, c := range cases {
		slices.Sort(took[i])
		b.ReportMetric(took[i][len(took[i])/2], c.name+"-ms")
	}
}

func BenchmarkStart(b *testing.B) {
	bare, smol := build(b, "../../testdata/bare"), build(b, "../smol-mcp")
	env := privatePlaces(b)
	var running []*server
	start := func(program string) func() {
		return func() { running = append(running, startServer(b, program, env...)) }
	}
	end := func() {
		for _, s := range running {
			s.end()
		}
		running = nil
	}
	inTurns(b, measured{"bare", start(bare)}, measured{"smol-mcp", start(smol)}, measured{"the-end-of-both", end})
}

func BenchmarkIdleMemory(b *testing.B) {
	bare, smol := build(b, "../../testdata/bare"), build(b, "../smol-mcp")
	env := privatePlaces(b)
	for name, program := range map[string]string{"bare": bare, "smol-mcp": smol} {
		b.Run(name, func(b *testing.B) {
			total := 0.0
			for b.Loop() {
				s := startServer(b, program, env...)
				time.Sleep(100 * time.Millisecond) // idle, as the figure says
				total += s.memory("VmRSS")
				s.end()
			}
			b.ReportMetric(total/float64(b.N), "MiB")
		})
	}
}

// fakeEngine is the environment of a server whose engine is the fake smolvm,
// and a client that asks the same engine directly, once the server has started it.
func fakeEngine(t testing.TB) (env []string, direct *fleet.Smolvm) {
	t.Helper()
	env = append(privatePlaces(t), "SMOLVM="+fleettest.BuildSmolvm(t), "SMOLVM_DATA_DIR="+memoryDir(t))
	var socket string
	for _, v := range env {
		if run, ok := strings.CutPrefix(v, "XDG_RUNTIME_DIR="); ok {
			socket = filepath.Join(run, "smol-mcp", "engine.sock")
		}
	}
	direct = fleet.NewSmolvm(func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}, fleet.SmolvmOptions{})
	t.Cleanup(func() { direct.Close() })
	return env, direct
}

// TestPeakMemory: whatever a command prints and however large a file is, the
// server holds only what it returns.
func TestPeakMemory(t *testing.T) {
	env, _ := fakeEngine(t)
	s := startServer(t, build(t, "../smol-mcp"), env...)
	defer s.end()
	name := s.call("create-machine", map[string]any{"image": "alpine:3.20", "network": "open"})["machine"].(map[string]any)["name"].(string)
	flood := s.call("run-command", map[string]any{"name": name, "command": "yes 0123456789abcdef | head -c 52428800; yes | head -c 52428800 >&2"})
	if flood["stdoutBytes"] != 52428800.0 || flood["stderrBytes"] != 52428800.0 {
		t.Errorf("flood: %v and %v bytes", flood["stdoutBytes"], flood["stderrBytes"])
	}
	t.Logf("after a flood of 100 MiB: peak %.1f MiB", s.memory("VmHWM"))
	s.call("run-command", map[string]any{"name": name, "command": "head -c 67108864 /dev/urandom >/root/big"})
	for offset := 0.0; ; {
		page := s.call("read-file", map[string]any{"name": name, "path": "/root/big", "offset": offset, "encoding": "base64"})
		offset += page["bytes"].(float64)
		if page["eof"] == true {
			break
		}
	}
	peak := s.memory("VmHWM")
	t.Logf("after 64 MiB in pages: peak %.1f MiB", peak)
	if peak > 64 {
		t.Errorf("the server's memory peaked at %.1f MiB", peak)
	}
}

// memoryDir is a directory on a memory file system, which a guest's /tmp is too.
func memoryDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "smol")
	if err != nil {
		dir, err = os.MkdirTemp("", "smol")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// frame is the script in which run-command wraps its command.
func frame(t testing.TB) string {
	t.Helper()
	var all strings.Builder
	for _, part := range []string{"prologue.sh", "run.sh"} { // as script in tools/guest.go
		text, err := os.ReadFile(filepath.Join("..", "..", "tools", "guest", part))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if line = strings.TrimLeft(line, " "); !strings.HasPrefix(line, "#") {
				all.WriteString(line)
			}
		}
	}
	return all.String()
}

// BenchmarkCall compares run-command with what it cannot be faster than: the same
// request sent straight to the engine, and a tool that does nothing. The command
// without the frame shows what keeping its output in files costs the guest.
func BenchmarkCall(b *testing.B) {
	env, direct := fakeEngine(b)
	bare := startServer(b, build(b, "../../testdata/bare"))
	defer bare.end()
	smol := startServer(b, build(b, "../smol-mcp"), env...)
	defer smol.end()
	name := smol.call("create-machine", map[string]any{"image": "alpine:3.20", "network": "open"})["machine"].(map[string]any)["name"].(string)
	exec := func(argv ...string) func() {
		return func() {
			if _, err := direct.Exec(b.Context(), name, fleet.Command{Argv: argv, Timeout: time.Minute}); err != nil {
				b.Fatal(err)
			}
		}
	}
	tool := func(tool string, arguments map[string]any) func() {
		arguments["name"] = name
		return func() { smol.call(tool, arguments) }
	}
	cases := []measured{
		{"bare-echo", func() { bare.call("echo", map[string]any{"text": "hi"}) }},
		{"direct-exec-unframed", exec("sh", "-c", "echo hi")},
		{"direct-exec", exec("sh", "-c", frame(b), "sh", "benchbenchbe", "65537", "wait", "0", "60", "echo hi", "", "", "", "", "", "sh", "-c", "echo hi")},
		{"run-command", tool("run-command", map[string]any{"command": "echo hi"})},
		{"direct-get", func() {
			if _, err := direct.Get(b.Context(), name); err != nil {
				b.Fatal(err)
			}
		}},
		{"get-machine", tool("get-machine", map[string]any{})},
		{"read-file", tool("read-file", map[string]any{"path": "/etc/passwd"})},
	}
	for _, c := range cases {
		c.once()
	}
	inTurns(b, cases...)
}
