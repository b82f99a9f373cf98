package cli

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"smol-mcp/fleet/fleettest"
)

// conversation is a running server and what was said with it. In scripts:
//
//	mcp start [ARGS...]      start the server and talk to its streams
//	mcp startby PROGRAM...   start it through another program
//	mcp gone FILE            the process whose id is in FILE ends
//	mcp hello 2025-11-25 [JSON]  open the session as clients of that revision do, with these capabilities
//	mcp send TEXT            send a line
//	mcp expect REGEXP        read messages until one matches; it is the reply
//	mcp call TOOL [JSON]     call a tool and wait for its result
//	mcp begin TOOL [JSON]    call a tool and do not wait
//	mcp request METHOD [JSON]
//	mcp reply REGEXP         the last reply matches (! mcp reply: does not)
//	mcp answer JSON          answer the request of the server that was expected last
//	mcp count N REGEXP       so many of the messages read so far match
//	mcp get VAR PATH         put a value of the last reply into a variable
//	mcp signal NAME          send SIGTERM, SIGINT, SIGHUP or SIGKILL
//	mcp eof                  end the server's input
//	mcp deaf [stderr]        close our end of its output, or of its standard error
//	mcp exit CODE            the server ends with that code
//	mcp stderr REGEXP        its standard error matches, once it has ended
//
// Everything waits at most patience.
type conversation struct {
	names  []string // of the variables that the script began with
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    io.ReadCloser
	lines  chan string // its output, closed at the end
	errors bytes.Buffer
	errOut io.Closer     // our end of its standard error
	exited chan struct{} // closed when the process is waited for
	era    string
	caps   string // the client's, as JSON
	nextID int
	reply  string
	read   []string             // all messages so far
	cloud  *fleettest.CloudFake // nil: not started
}

type conversationKey struct{}

// patience bounds every wait for the server; its clean-up may take 8 s, and a question
// to the user 30.
const patience = 45 * time.Second

func mcpCommand(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) == 0 {
		ts.Fatalf("usage: mcp VERB ...")
	}
	c := ts.Value(conversationKey{}).(*conversation)
	verb, args := args[0], append(args[1:], "", "")
	if neg && verb != "reply" {
		ts.Fatalf("only mcp reply can be negated")
	}
	var err error
	switch verb {
	case "start":
		err = c.start(ts, append([]string{"smol-mcp"}, args[:len(args)-2]...))
	case "startby":
		err = c.start(ts, args[:len(args)-2])
	case "gone":
		err = gone(ts.ReadFile(args[0]))
	case "hello":
		err = c.hello(args[0], orEmpty(args[1]))
	case "answer":
		err = c.answer(args[0])
	case "count":
		err = c.count(args[0], args[1])
	case "send":
		err = c.send(args[0])
	case "expect":
		err = c.expect(args[0])
	case "call", "begin":
		err = c.request("tools/call", fmt.Sprintf(`{"name":%q,"arguments":%s}`, args[0], orEmpty(args[1])), verb == "call")
	case "request":
		err = c.request(args[0], orEmpty(args[1]), true)
	case "reply":
		if regexp.MustCompile(args[0]).MatchString(c.reply) == neg {
			err = fmt.Errorf("the last reply does not fit: %s", c.reply)
		}
	case "get":
		var value string
		value, err = c.get(args[1])
		ts.Setenv(args[0], value)
	case "signal":
		err = c.cmd.Process.Signal(signals[args[0]])
	case "eof":
		err = c.in.Close()
	case "deaf":
		if args[0] == "stderr" {
			err = c.errOut.Close()
		} else {
			err = c.out.Close()
		}
	case "exit":
		err = c.exit(args[0])
	case "stderr":
		if !regexp.MustCompile(args[0]).Match(c.errors.Bytes()) {
			err = fmt.Errorf("standard error does not match")
		}
	default:
		err = fmt.Errorf("unknown verb %q", verb)
	}
	if err != nil {
		if c.exited != nil {
			c.kill()
			ts.Logf("[server's standard error]\n%s", c.errors.String())
		}
		ts.Fatalf("mcp %s: %v", verb, err)
	}
}

var signals = map[string]os.Signal{"SIGTERM": syscall.SIGTERM, "SIGINT": syscall.SIGINT, "SIGHUP": syscall.SIGHUP, "SIGKILL": syscall.SIGKILL}

func orEmpty(s string) string {
	if s == "" {
		return "{}"
	}
	return s
}

func (c *conversation) start(ts *testscript.TestScript, args []string) error {
	c.kill() // the server before
	*c = conversation{names: c.names, cloud: c.cloud, lines: make(chan string, 1000), exited: make(chan struct{})}
	path := args[0]
	for dir := range strings.SplitSeq(ts.Getenv("PATH"), string(os.PathListSeparator)) {
		if _, err := os.Stat(filepath.Join(dir, args[0])); err == nil {
			path = filepath.Join(dir, args[0])
			break
		}
	}
	c.cmd = exec.Command(path, args[1:]...)
	c.cmd.Dir = ts.MkAbs(".")
	c.cmd.Env = c.environ(ts)
	in, err := c.cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	errOut, err := c.cmd.StderrPipe()
	if err != nil {
		return err
	}
	c.in, c.out, c.errOut = in, out, errOut
	if err := c.cmd.Start(); err != nil {
		return err
	}
	var readers sync.WaitGroup
	readers.Go(func() { _, _ = io.Copy(&c.errors, errOut) })
	readers.Go(func() {
		defer close(c.lines)
		r := bufio.NewReader(out)
		for {
			line, err := r.ReadString('\n')
			if line != "" {
				c.lines <- line
			}
			if err != nil {
				return
			}
		}
	})
	go func() {
		readers.Wait()
		_ = c.cmd.Wait() // the code is in ProcessState
		close(c.exited)
	}()
	return nil
}

// environ is the environment that the script has set: what it began with, and
// our settings.
func (c *conversation) environ(ts *testscript.TestScript) []string {
	names := slices.Clone(c.names)
	for _, s := range settings(new(Config)) {
		names = append(names, s.env)
	}
	var env []string
	for _, name := range append(names, "SMOL_MCP_CONFIG") {
		if v := ts.Getenv(name); v != "" {
			env = append(env, name+"="+v)
		}
	}
	return env
}

func (c *conversation) send(line string) error {
	_, err := io.WriteString(c.in, line+"\n")
	return err
}

func (c *conversation) expect(pattern string) error {
	re, err := regexp.Compile(pattern)
	if err != nil {
		return err
	}
	late := time.After(patience)
	for {
		select {
		case line, ok := <-c.lines:
			if !ok {
				return fmt.Errorf("the output ended before anything matched %s", pattern)
			}
			c.read = append(c.read, line)
			if re.MatchString(line) {
				c.reply = line
				return nil
			}
		case <-late:
			return fmt.Errorf("nothing matched %s in %v", pattern, patience)
		}
	}
}

// firstStateless is the first revision without a handshake.
const firstStateless = "2026-07-28"

func (c *conversation) hello(era, caps string) error {
	c.era, c.caps = era, caps
	if era >= firstStateless {
		return c.request("server/discover", "{}", true)
	}
	err := c.request("initialize", fmt.Sprintf(`{"protocolVersion":%q,"capabilities":%s,"clientInfo":{"name":"script","version":"1"}}`, era, caps), true)
	if err != nil {
		return err
	}
	return c.send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
}

// request sends a call of the session's era and waits for its answer.
func (c *conversation) request(method, params string, wait bool) error {
	var fields map[string]any
	if err := json.Unmarshal([]byte(params), &fields); err != nil {
		return fmt.Errorf("%s: %w", params, err)
	}
	if c.era >= firstStateless {
		fields["_meta"] = map[string]any{
			"io.modelcontextprotocol/protocolVersion":    c.era,
			"io.modelcontextprotocol/clientCapabilities": json.RawMessage(c.caps),
			"io.modelcontextprotocol/clientInfo":         map[string]any{"name": "script", "version": "1"},
		}
	}
	c.nextID++
	line, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": c.nextID, "method": method, "params": fields})
	if err != nil {
		return err
	}
	if err := c.send(string(line)); err != nil {
		return err
	}
	if !wait {
		return nil
	}
	return c.expect(fmt.Sprintf(`"id":%d[,}]`, c.nextID))
}

// get follows a path of keys and indexes into the result of the last reply.
func (c *conversation) get(path string) (string, error) {
	var v any
	if err := json.Unmarshal([]byte(c.reply), &v); err != nil {
		return "", err
	}
	for key := range strings.SplitSeq("result."+path, ".") {
		switch node := v.(type) {
		case map[string]any:
			v = node[key]
		case []any:
			i, err := strconv.Atoi(key)
			if err != nil || i >= len(node) {
				return "", fmt.Errorf("no %s in %s", key, c.reply)
			}
			v = node[i]
		default:
			return "", fmt.Errorf("no %s in %s", key, c.reply)
		}
	}
	return fmt.Sprint(v), nil
}

func (c *conversation) exit(want string) error {
	select {
	case <-c.exited:
	case <-time.After(patience):
		return errors.New("the server does not end")
	}
	if got := strconv.Itoa(c.cmd.ProcessState.ExitCode()); got != want {
		return fmt.Errorf("exit code %s, want %s", got, want)
	}
	return nil
}

// gone waits until the process of that id has ended, whether or not its new
// parent has taken note.
func gone(pid string) error {
	n, err := strconv.Atoi(pid)
	if err != nil {
		return err
	}
	p, err := os.FindProcess(n)
	if err != nil {
		return nil
	}
	for end := time.Now().Add(patience); time.Now().Before(end); {
		stat, _ := os.ReadFile(filepath.Join("/proc", pid, "stat"))
		if p.Signal(syscall.Signal(0)) != nil || bytes.Contains(stat, []byte(") Z ")) {
			return nil
		}
		time.Sleep(20 * time.Millisecond) // nothing tells of the end of a process that is not our child
	}
	_ = p.Kill()
	return fmt.Errorf("process %d does not end", n)
}

// kill ends a server that is still there.
func (c *conversation) kill() {
	if c.exited == nil {
		return
	}
	_ = c.cmd.Process.Kill() // it may be gone
	_ = c.in.Close()
	_ = c.out.Close()
	_ = c.errOut.Close()
	<-c.exited
}

// killEnginesCommand is "killengines": the engines that servers left are killed.
func killEnginesCommand(ts *testscript.TestScript, _ bool, _ []string) {
	killEngines(ts.Getenv("SMOLVM_DATA_DIR"))
}

// vanishesCommand is "vanishes PATTERN": the files go away in time.
func vanishesCommand(ts *testscript.TestScript, _ bool, args []string) {
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		if left, _ := filepath.Glob(ts.MkAbs(args[0])); len(left) == 0 {
			return
		}
		if time.Now().After(end) {
			ts.Fatalf("%s stays", args[0])
		}
	}
}

// exitsCommand is "exits CODE COMMAND...": a command that ends with exactly
// that code; what it printed is there for stdout and stderr.
func exitsCommand(ts *testscript.TestScript, _ bool, args []string) {
	err := ts.Exec(args[1], args[2:]...)
	code := 0
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		code = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if strconv.Itoa(code) != args[0] {
		ts.Fatalf("%s ended with %d, want %s", args[1], code, args[0])
	}
}
