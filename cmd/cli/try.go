package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const tryHelp = `Does what an agent would do, through a session with a server process of its own: makes
a machine, runs a program in it, looks at what it left, reads a file, and deletes the
machine. Each call is shown with its answer and its time.

With --setup it first gets what is missing to run machines.
`

func tryFlags() []option {
	return []option{
		{"setup", "", "first get what is missing, as smol-mcp setup --yes does"},
		{"image", "IMAGE", "of the machine; by default what the engine has without a network"},
		{"target", "TARGET", "where to make the machine; by default the first"},
		{"keep", "", "do not delete the machine"},
	}
}

// tryBudget bounds each call: a first machine may have to be booted by emulation.
const tryBudget = 5 * time.Minute

func runTry(c *call) error {
	if err := tryUsage(c); err != nil {
		return err
	}
	if c.has("setup") {
		if err := trySetup(c); err != nil {
			return err
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	t, err := newTrial(ctx, c)
	if err != nil {
		return err
	}
	err = t.walk(ctx)
	if closeErr := t.close(); err == nil {
		err = closeErr
	}
	return err
}

// tryUsage refuses what would end the server before it could say so in an answer.
func tryUsage(c *call) error {
	known := vocabulary().Targets
	if target, given := c.flags["target"]; given && !slices.Contains(known, target) {
		return &usageError{fmt.Sprintf("try: --target: %q is none of %s", target, strings.Join(known, ", ")), hint(target, known, usageHint(c.command))}
	}
	_, err := resolve(c.tryEnv, c.flags["config"])
	return err
}

// tryEnv is the environment of the server.
func (c *call) tryEnv(name string) (string, bool) {
	if target := c.flags["target"]; target != "" && name == "SMOL_MCP_TARGETS" {
		return target, true
	}
	return os.LookupEnv(name)
}

// trySetup gets what is missing, unless smolvm will serve.
func trySetup(c *call) error {
	r, err := resolve(c.tryEnv, c.flags["config"])
	if err != nil {
		return err
	}
	if r.Engine != "qemu" {
		if f, usable := examineSmolvm(context.Background(), r.Smolvm, r.MinSmolvm); usable {
			fmt.Fprintln(c.stdout, f.What+": nothing to set up")
			return nil
		}
	}
	return runEngine(c, "setup", "--yes")
}

// trial is a session with a server of our own.
type trial struct {
	*call
	session *mcp.ClientSession
	begun   time.Time
	target  string // to be named in each call; empty: the server has only one

	mu   sync.Mutex
	note string // what the server last said about the call that goes on
}

// newTrial starts a server and shakes hands with it.
func newTrial(ctx context.Context, c *call) (*trial, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	t := &trial{call: c, begun: time.Now()}
	cmd := exec.Command(exe)
	if file := c.flags["config"]; file != "" {
		cmd.Args = append(cmd.Args, "--config", file)
	}
	cmd.Stderr = c.stderr
	if target := c.flags["target"]; target != "" {
		cmd.Env = append(os.Environ(), "SMOL_MCP_TARGETS="+target)
	}
	client := mcp.NewClient(&mcp.Implementation{Name: "smol-mcp try", Version: version}, &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
			t.mu.Lock()
			t.note = r.Params.Message
			t.mu.Unlock()
		},
	})
	// The server has eight seconds to clean up.
	t.session, err = client.Connect(ctx, &mcp.CommandTransport{Command: cmd, TerminateDuration: 12 * time.Second}, nil)
	if err != nil {
		return nil, fmt.Errorf("start a server: %w", err)
	}
	return t, nil
}

func (t *trial) close() error {
	err := t.session.Close()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == exitOK {
		err = nil
	}
	if err != nil {
		return fmt.Errorf("end the session: %w", err)
	}
	_, err = fmt.Fprintf(t.stdout, "\nsession ended; %.1f s in all\n", time.Since(t.begun).Seconds())
	return err
}

// walk makes the calls.
func (t *trial) walk(ctx context.Context) error {
	server := t.session.InitializeResult()
	fmt.Fprintf(t.stdout, "session with %s %s over standard input and output\n", server.ServerInfo.Name, server.ServerInfo.Version)
	create, err := t.createArguments(ctx)
	if err != nil {
		return err
	}
	made, err := t.step(ctx, "create-machine", create)
	if err != nil {
		return err
	}
	machine, _ := made["machine"].(map[string]any)
	name, _ := machine["name"].(string)
	if name == "" {
		return errors.New("create-machine did not say which machine it made")
	}
	on := func(args map[string]any) map[string]any {
		args["name"] = name
		return t.aimed(args)
	}
	steps := []struct {
		tool string
		args map[string]any
	}{
		{"run-command", on(map[string]any{"command": `echo "hello from $(uname -n), Linux $(uname -r)" | tee /root/greeting; echo "a word on stderr" >&2; exit 3`})},
		{"run-command", on(map[string]any{"command": []string{"wc", "-c", "/root/greeting"}})},
		{"read-file", on(map[string]any{"path": "/root/greeting"})},
		{"delete-machine", on(map[string]any{})},
	}
	for _, s := range steps {
		if s.tool == "delete-machine" && t.has("keep") {
			fmt.Fprintf(t.stdout, "\nthe machine %s is kept until somebody deletes it\n", name)
			continue
		}
		if _, err := t.step(ctx, s.tool, s.args); err != nil {
			return err
		}
	}
	return nil
}

// createArguments chooses an image that the engine can get.
func (t *trial) createArguments(ctx context.Context) (map[string]any, error) {
	args := map[string]any{}
	if t.has("keep") {
		args["name"] = fmt.Sprintf("try-%d", time.Now().Unix())
	}
	stop := t.tick("start the engine")
	res, err := t.session.ReadResource(ctx, &mcp.ReadResourceParams{URI: "smol://targets"})
	stop()
	if err != nil {
		return nil, fmt.Errorf("ask for the targets: %w", err)
	}
	var said struct {
		Targets []struct {
			Target    string `json:"target"`
			Served    bool   `json:"served"`
			Usable    bool   `json:"usable"`
			WhyNot    string `json:"whyNot"`
			Engine    string `json:"engine"`
			Version   string `json:"version"`
			Accel     string `json:"accel"`
			Isolation string `json:"isolation"`
		} `json:"targets"`
	}
	if len(res.Contents) == 0 || json.Unmarshal([]byte(res.Contents[0].Text), &said) != nil || len(said.Targets) == 0 {
		return nil, errors.New("the server names no targets")
	}
	to := said.Targets[0]
	if len(said.Targets) > 1 && said.Targets[1].Served {
		t.target = to.Target
	}
	if !to.Usable {
		return nil, fmt.Errorf("target %s cannot be used: %s", to.Target, to.WhyNot)
	}
	fmt.Fprintln(t.stdout, strings.TrimSpace(fmt.Sprintf("target %s: %s %s %s %s", to.Target, to.Engine, to.Version, to.Accel, to.Isolation)))
	switch image := t.flags["image"]; {
	case image != "":
		args["image"] = image
		if to.Engine == "smolvm" && !strings.HasPrefix(image, "/") {
			args["network"] = "open" // older ones fetch images inside the machine
		}
	case to.Engine == "qemu":
		args["image"] = "builtin:busybox"
	case to.Engine == "cloud":
		args["image"] = "alpine:3.20"
	default:
		args["image"], args["network"] = "alpine:3.20", "open"
	}
	return t.aimed(args), nil
}

// aimed adds the target where a call needs one.
func (t *trial) aimed(args map[string]any) map[string]any {
	if t.target != "" {
		args["target"] = t.target
	}
	return args
}

// step makes one call and shows it.
func (t *trial) step(ctx context.Context, tool string, args map[string]any) (map[string]any, error) {
	ctx, cancel := context.WithTimeout(ctx, tryBudget)
	defer cancel()
	fmt.Fprintf(t.stdout, "\n> %s ", tool)
	enc := json.NewEncoder(t.stdout)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(args); err != nil {
		return nil, err
	}
	params := &mcp.CallToolParams{Name: tool, Arguments: args}
	params.SetProgressToken(tool)
	begun := time.Now()
	stop := t.tick(tool)
	res, err := t.session.CallTool(ctx, params)
	stop()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", tool, err)
	}
	took := time.Since(begun)
	if res.IsError {
		return nil, fmt.Errorf("%s: %s", tool, textOf(res))
	}
	content, _ := res.StructuredContent.(map[string]any)
	for _, line := range summary(tool, content) {
		fmt.Fprintln(t.stdout, "  "+line)
	}
	_, err = fmt.Fprintf(t.stdout, "  [%.2f s]\n", took.Seconds())
	return content, err
}

func textOf(res *mcp.CallToolResult) string {
	var out []string
	for _, c := range res.Content {
		if text, ok := c.(*mcp.TextContent); ok {
			out = append(out, text.Text)
		}
	}
	return strings.Join(out, "; ")
}

// summary is what of an answer a person wants to see.
func summary(tool string, answer map[string]any) []string {
	var out []string
	line := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	block := func(name string) {
		text, _ := answer[name].(string)
		for l := range strings.Lines(text) {
			line("%s: %s", name, strings.TrimRight(l, "\n"))
		}
	}
	switch tool {
	case "create-machine":
		m, _ := answer["machine"].(map[string]any)
		line("machine %v: %v, ready %v, network %v, image %v", m["name"], m["state"], answer["ready"], m["network"], m["image"])
	case "run-command":
		block("stdout")
		block("stderr")
		line("exit code %v", answer["exitCode"])
	case "read-file":
		block("content")
		line("%v bytes", answer["size"])
	case "delete-machine":
		line("deleted %v", answer["deleted"])
	}
	return out
}

// tick shows that something goes on, until the returned function is called: on a
// terminal in one line, else in one line each ten seconds.
func (t *trial) tick(what string) (stop func()) {
	t.mu.Lock()
	t.note = ""
	t.mu.Unlock()
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() { t.showProgress(what, done) })
	return func() {
		close(done)
		wg.Wait()
	}
}

func (t *trial) showProgress(what string, done <-chan struct{}) {
	file, ok := t.stderr.(*os.File)
	live := ok && isTerminal(file)
	every := 10 * time.Second
	if live {
		every = 500 * time.Millisecond
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	begun := time.Now()
	shown := false
	for {
		select {
		case <-done:
			if shown && live {
				io.WriteString(t.stderr, "\r\x1b[K")
			}
			return
		case <-tick.C:
		}
		t.mu.Lock()
		note := t.note
		t.mu.Unlock()
		if note == "" {
			note = what
		}
		text := fmt.Sprintf("  … %s, %.0f s", note, time.Since(begun).Seconds())
		if live {
			text = "\r\x1b[K" + text
		} else {
			text += "\n"
		}
		shown = true
		io.WriteString(t.stderr, text)
	}
}
