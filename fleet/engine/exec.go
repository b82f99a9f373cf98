//go:build unix

package engine

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"smol-mcp/fleet/engine/agent"
	"smol-mcp/fleet/engine/machine"
)

type execRequest struct {
	Command     []string   `json:"command"`
	Env         []envField `json:"env"`
	Workdir     string     `json:"workdir"`
	TimeoutSecs *uint64    `json:"timeoutSecs"`
	Stdin       *string    `json:"stdin"`
	Background  bool       `json:"background"`
	Start       *bool      `json:"start"` // of a machine that does not run; absent is true
}

// maxOutput bounds each stream of an exec in bytes.
const maxOutput = 11 << 20

// timedOut is the exit code of a command that its timeout ended.
const timedOut = 124

// guestSlack is how much longer than a command's timeout the guest may take to end it, and jobSlack
// than the wait of a job to answer: it has to begin it first.
const (
	guestSlack = 10 * time.Second
	jobSlack   = 30 * time.Second
)

// guestTime is how long the guest may take to answer; 0 is as long as it wants.
func guestTime(p agent.Exec, j *agent.Job) time.Duration {
	switch {
	case j != nil:
		return time.Duration(j.WaitMS)*time.Millisecond + jobSlack
	case p.TimeoutMS > 0:
		return time.Duration(p.TimeoutMS)*time.Millisecond + guestSlack
	}
	return 0
}

// program checks a request.
func (e *execRequest) program() (agent.Exec, error) {
	p := agent.Exec{Argv: e.Command, Dir: e.Workdir, Background: e.Background}
	if len(e.Command) == 0 || e.Command[0] == "" {
		return p, badRequest("command cannot be empty")
	}
	if strings.ContainsRune(strings.Join(e.Command, "")+e.Workdir, 0) {
		return p, badRequest("command contains NUL")
	}
	var err error
	if p.Env, err = environment(e.Env); err != nil {
		return p, err
	}
	if e.TimeoutSecs != nil {
		p.TimeoutMS = max(int64(min(*e.TimeoutSecs, 1<<31))*1000, 1) // 0 kills at once
	}
	return p, nil
}

// starts reports whether a machine that does not run is to be started.
func (e *execRequest) starts() bool { return e.Start == nil || *e.Start }

// guest brings a machine to running, where start allows it, and adds what it says for every program.
func (s *server) guest(ctx context.Context, name string, start bool, p *agent.Exec) (machine.Guest, error) {
	g, err := s.machines.Guest(ctx, name, start)
	if err != nil || p == nil {
		return g, err
	}
	img, err := s.machines.Image(g.Record)
	if err != nil {
		return g, fmt.Errorf("its image is gone: %w", err)
	}
	*p = machine.Process(g.Record, img, *p)
	return g, nil
}

// exec runs a command to its end, also when the client does not wait for it.
func (s *server) exec(w http.ResponseWriter, r *call) error {
	var e execRequest
	if err := decode(r.Request, &e, "ExecRequest"); err != nil {
		return err
	}
	p, err := e.program()
	if err != nil {
		return err
	}
	body, err := detached(s, r, func(ctx context.Context) (map[string]any, error) {
		return s.run(ctx, r.vars["name"], e.starts(), p, nil, e.Stdin)
	})
	if err != nil {
		return failed("exec", err)
	}
	return answer(w, body)
}

// run runs a program in the guest, as a job where j says which.
func (s *server) run(ctx context.Context, name string, start bool, p agent.Exec, j *agent.Job, stdin *string) (map[string]any, error) {
	leave, err := s.slot(ctx, name)
	if err != nil {
		return nil, err
	}
	defer leave()
	c, err := s.guest(ctx, name, start, &p)
	if err != nil {
		return nil, err
	}
	var in io.Reader
	if stdin != nil && !p.Background {
		in = strings.NewReader(*stdin)
	}
	if limit := guestTime(p, j); limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, limit, fmt.Errorf("the guest timed out: it did not answer within %v", limit))
		defer cancel()
	}
	stdout, stderr := &output{}, &output{}
	var exit agent.Exit
	if j != nil {
		exit, err = c.Job(ctx, p, *j, in, stdout, stderr)
	} else {
		exit, err = c.Exec(ctx, p, in, stdout, stderr)
	}
	switch {
	case errors.Is(err, agent.ErrNoJobs):
		return nil, &refusal{http.StatusNotImplemented, "NOT_IMPLEMENTED", err.Error()}
	case err != nil:
		return nil, err
	case stdout.over || stderr.over:
		return nil, fmt.Errorf("command output exceeded %d bytes: redirect it to a file of the machine", maxOutput)
	case p.Background && exit.Error == "":
		fmt.Fprintf(stdout, "pid=%d\n", exit.PID)
	}
	code := exitCode(exit, p, stderr)
	return map[string]any{
		"exitCode": code, "stdout": lossy(stdout.Bytes()), "stderr": lossy(stderr.Bytes()),
		"stdoutB64": base64.StdEncoding.EncodeToString(stdout.Bytes()), "stderrB64": base64.StdEncoding.EncodeToString(stderr.Bytes()),
	}, nil
}

// exitCode renders the end of a command, with its reason on stderr where the
// command cannot have said it.
func exitCode(exit agent.Exit, p agent.Exec, stderr io.Writer) int {
	switch {
	case exit.Error != "":
		fmt.Fprintln(stderr, "failed to start the command: "+exit.Error)
	case exit.TimedOut:
		fmt.Fprintf(stderr, "\ncommand timed out after %dms", p.TimeoutMS)
		return timedOut
	}
	return exit.Code
}

func lossy(b []byte) string { return strings.ToValidUTF8(string(b), "\ufffd") }

// output keeps a stream up to maxOutput. More is dropped and noted: the command
// runs on.
type output struct {
	bytes.Buffer
	over bool
}

func (o *output) Write(p []byte) (int, error) {
	room := maxOutput - o.Len()
	if len(p) > room {
		o.over = true
		o.Buffer.Write(p[:max(room, 0)])
		return len(p), nil
	}
	return o.Buffer.Write(p)
}

// execStream runs a command and sends its output as events while it comes.
func (s *server) execStream(w http.ResponseWriter, r *call) error {
	var e execRequest
	if err := decode(r.Request, &e, "ExecRequest"); err != nil {
		return err
	}
	p, err := e.program()
	if err != nil {
		return err
	}
	p.Background = false
	name := r.vars["name"]
	c, err := detached(s, r, func(ctx context.Context) (machine.Guest, error) { return s.guest(ctx, name, e.starts(), &p) })
	if err != nil {
		return failed("exec", err)
	}
	leave, err := s.slot(r.Context(), name)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-cache")
	w.WriteHeader(http.StatusOK)
	out := &events{w: w}
	out.flush()
	done := make(chan struct{})
	s.work.Go(func() {
		defer close(done)
		defer leave()
		exit, err := c.Exec(s.life, p, nil, out.stream("stdout"), out.stream("stderr"))
		if err != nil {
			out.json("error", map[string]string{"message": err.Error()})
			return
		}
		out.json("exit", map[string]int{"exitCode": exitCode(exit, p, out.stream("stderr"))})
	})
	tick := time.NewTicker(15 * time.Second)
	defer tick.Stop()
	for {
		select {
		case <-done:
			return nil
		case <-r.Context().Done():
			out.end() // nobody reads any more; the command goes on
			return nil
		case <-tick.C:
			out.comment()
		}
	}
}

// events writes server-sent events from several goroutines, until the client is gone.
type events struct {
	mu   sync.Mutex
	w    http.ResponseWriter // nil when the client is gone
	sent int
	over bool
}

// end makes every later write do nothing: the response must not be used after its handler.
func (e *events) end() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.w = nil
}

func (e *events) flush() {
	if f, ok := e.w.(http.Flusher); ok {
		f.Flush()
	}
}

func (e *events) comment() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.w != nil {
		io.WriteString(e.w, ":\n\n")
		e.flush()
	}
}

// write sends one event. A carriage return would end a line of it, so it becomes a
// newline, as the format says.
func (e *events) write(kind, text string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.w == nil {
		return
	}
	var b strings.Builder
	b.WriteString("event: " + kind + "\n")
	for _, line := range strings.Split(strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(text), "\n") {
		b.WriteString("data: " + line + "\n")
	}
	b.WriteString("\n")
	io.WriteString(e.w, b.String())
	e.flush()
}

type eventStream struct {
	e    *events
	kind string
}

// json sends one event with v.
func (e *events) json(kind string, v any) {
	text, _ := json.Marshal(v) // maps of strings and numbers
	e.write(kind, string(text))
}

func (e *events) stream(kind string) io.Writer { return eventStream{e, kind} }

func (s eventStream) Write(p []byte) (int, error) {
	s.e.mu.Lock()
	s.e.sent += len(p)
	over, first := s.e.sent > maxOutput, !s.e.over
	s.e.over = over
	s.e.mu.Unlock()
	if !over {
		s.e.write(s.kind, lossy(p))
	} else if first {
		s.e.json("error", map[string]string{"message": fmt.Sprintf("command output exceeded %d bytes", maxOutput)})
	}
	return len(p), nil
}
