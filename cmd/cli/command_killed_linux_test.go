package cli

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"smol-mcp/fleet/fleettest"
)

// A killPlace is where servers are killed, over one fake engine.
type killPlace struct {
	program string
	env     []string
	data    string
}

func newKillPlace(t *testing.T, program string) *killPlace {
	t.Helper()
	p := &killPlace{program: program, data: fleettest.SmolvmData(t)}
	p.env = append(privatePlaces(t), "SMOLVM="+fleettest.BuildSmolvm(t), "SMOLVM_DATA_DIR="+p.data)
	t.Cleanup(func() { killEngines(p.data) })
	return p
}

// A killMachine is a machine with the commands that were sent to it by servers that were killed.
type killMachine struct {
	t       *testing.T
	place   *killPlace
	name    string
	random  *rand.Rand
	sources [2][]byte // what its commands print parts of: files of the guest
	ran     []*killCommand
	told    []string // ids that clients were told
}

// machine makes a machine that stays when its session ends.
func (p *killPlace) machine(t *testing.T, n int) *killMachine {
	t.Helper()
	m := &killMachine{t: t, place: p, random: newRandom(t)}
	s := startServer(t, p.program, p.env...)
	defer s.end()
	m.name = s.call("create-machine", map[string]any{"name": fmt.Sprintf("kept-%d", n), "image": "alpine:3.20", "network": "open"})["machine"].(map[string]any)["name"].(string)
	for i, path := range []string{"/root/out", "/root/err"} {
		m.sources[i] = make([]byte, 60_000)
		for k := range m.sources[i] {
			m.sources[i][k] = byte(m.random.UintN(256))
		}
		s.call("write-file", map[string]any{"name": m.name, "path": path, "content": base64.StdEncoding.EncodeToString(m.sources[i]), "encoding": "base64"})
	}
	for _, path := range []string{"/root/begun", "/root/ended"} {
		s.call("write-file", map[string]any{"name": m.name, "path": path, "content": ""})
	}
	return m
}

// A killCommand prints a part of each source, in chunks, and marks its begin and its end.
type killCommand struct {
	tag           string
	of            *killClient
	call          int    // the request's id
	id            string // as the client was told; "" when it was not
	refused       bool   // the client was told that it did not begin
	first, chunks int
	sizes         [2]int // of a chunk of stdout and stderr
	pause         string
	code          int
}

// command makes up a command of 0.2 to 3 s.
func (m *killMachine) command(c *killClient) *killCommand {
	length := 200 + m.random.IntN(1300)
	if m.random.IntN(4) == 0 {
		length *= 2
	}
	sizes := []int{1, 100, 997, 3000}
	one := &killCommand{tag: fmt.Sprintf("%s-%d", m.name, len(m.ran)), of: c, first: m.random.IntN(4), chunks: 2 + m.random.IntN(14),
		sizes: [2]int{sizes[m.random.IntN(4)], sizes[m.random.IntN(4)]}, code: m.random.IntN(120)}
	one.pause = fmt.Sprintf("%.3f", float64(length)/1000/float64(one.chunks))
	m.ran = append(m.ran, one)
	return one
}

func (one *killCommand) line() string {
	return fmt.Sprintf(": %[1]s; echo %[1]s >>/root/begun; i=%[2]d; while [ $i -lt %[3]d ]; do dd if=/root/out bs=%[4]d skip=$i count=1 2>/dev/null; "+
		"{ dd if=/root/err bs=%[5]d skip=$i count=1 2>/dev/null; } >&2; sleep %[6]s; i=$((i+1)); done; echo %[1]s >>/root/ended; exit %[7]d",
		one.tag, one.first, one.first+one.chunks, one.sizes[0], one.sizes[1], one.pause, one.code)
}

// check compares, through one more server, what became of the commands with what they are.
func (m *killMachine) check() {
	m.t.Helper()
	s := startServer(m.t, m.place.program, m.place.env...)
	defer s.end()
	listed, begun := m.atRest(s)
	cut := 0
	for _, one := range m.ran {
		times := strings.Count(begun, one.tag+"\n")
		id := listed[one.tag]
		switch {
		case times == 0 && (one.id != "" || id != ""):
			m.t.Errorf("%s was told as %q, and is listed as %q, and never began", one.tag, one.id, id)
			continue
		case times == 0:
			continue
		case times > 1 || one.refused:
			m.t.Errorf("%s began %d times; the client was told that it did not: %v", one.tag, times, one.refused)
		case id == "" || one.id != "" && one.id != id:
			m.t.Errorf("%s was told as %q, and is listed as %q", one.tag, one.id, id)
			continue
		}
		if one.id == "" {
			cut++
		}
		handle := map[string]any{"name": m.name, "commandId": id}
		if read := s.call("read-command", handle); read["exitCode"] != float64(one.code) || read["running"] != false || read["note"] != nil {
			m.t.Errorf("%s: exit code %v, not %d, running %v, note %v", one.tag, read["exitCode"], one.code, read["running"], read["note"])
		}
		for i, stream := range []string{"stdout", "stderr"} {
			want := m.sources[i][one.first*one.sizes[i]:][:one.chunks*one.sizes[i]]
			if got := s.everything(handle, stream); !bytes.Equal(got, want) {
				m.t.Errorf("%s of %s: %d bytes that are not the %d that it printed", stream, one.tag, len(got), len(want))
			}
		}
	}
	m.t.Logf("%d commands; %d began, of which %d were not told of", len(m.ran), strings.Count(begun, "\n"), cut)
}

// atRest waits until no command runs, and returns the ids of all by their tags, and the tags of
// those that have begun.
func (m *killMachine) atRest(s *server) (listed map[string]string, begun string) {
	m.t.Helper()
	for end := time.Now().Add(time.Minute); ; {
		listed = map[string]string{}
		running := ""
		all, _ := s.call("get-machine", map[string]any{"name": m.name})["commands"].([]any)
		for _, c := range all {
			c := c.(map[string]any)
			tag, _, _ := strings.Cut(strings.TrimPrefix(c["command"].(string), ": "), ";")
			if listed[tag] != "" {
				m.t.Errorf("%s is listed twice", tag)
			}
			listed[tag] = c["commandId"].(string)
			if c["state"] == "running" {
				running = listed[tag]
			}
		}
		if running != "" && time.Now().Before(end) {
			s.call("read-command", map[string]any{"name": m.name, "commandId": running, "waitSecs": 20})
			continue
		}
		begun, ended := s.wordsOf(m.name, "/root/begun"), s.wordsOf(m.name, "/root/ended")
		missing := slices.ContainsFunc(begun, func(tag string) bool { return listed[tag] == "" })
		if slices.Equal(slices.Sorted(slices.Values(begun)), slices.Sorted(slices.Values(ended))) && !missing && running == "" {
			return listed, strings.Join(begun, "\n") + "\n"
		}
		if time.Now().After(end) {
			m.t.Fatalf("begun: %v, ended: %v, running: %q, listed: %v", begun, ended, running, listed)
		}
	}
}

// wordsOf are those of a file of the guest.
func (s *server) wordsOf(machine, path string) []string {
	s.t.Helper()
	return strings.Fields(s.call("read-file", map[string]any{"name": machine, "path": path})["content"].(string))
}

// A killClient is the end of an agent, over pipes of its own, with the server that it started.
type killClient struct {
	t       *testing.T
	cmd     *exec.Cmd
	in, out *os.File
	ended   chan struct{} // its reader has
	last    int           // id of a request
	mu      sync.Mutex
	heard   map[int]killAnswer
	news    chan struct{} // has room for one: something was heard
}

// A killAnswer is what came back for a call.
type killAnswer struct {
	CommandID                string
	ExitCode                 *int
	Running                  bool
	StdoutBytes, StderrBytes int
	broken                   string // the text of an error
}

// notBegun reports whether an error says for sure that the command did not begin.
func (a killAnswer) notBegun() bool {
	return a.broken != "" && !strings.Contains(a.broken, "may have been done") && !strings.Contains(a.broken, "goes on")
}

// client starts a server and opens a session with it.
func (m *killMachine) client() *killClient {
	m.t.Helper()
	c := &killClient{t: m.t, cmd: exec.Command(m.place.program), ended: make(chan struct{}), heard: map[int]killAnswer{}, news: make(chan struct{}, 1)}
	c.cmd.Env = append(os.Environ(), m.place.env...)
	theirIn, in, err := os.Pipe()
	if err != nil {
		m.t.Fatal(err)
	}
	out, theirOut, err := os.Pipe()
	if err != nil {
		m.t.Fatal(err)
	}
	c.in, c.out, c.cmd.Stdin, c.cmd.Stdout = in, out, theirIn, theirOut
	err = c.cmd.Start()
	_, _ = theirIn.Close(), theirOut.Close()
	if err != nil {
		m.t.Fatal(err)
	}
	go c.read()
	c.write(initialize)
	c.write(initialized)
	return c
}

// write sends a line; to a server that has ended there is nothing to say.
func (c *killClient) write(line string) { _, _ = c.in.WriteString(line + "\n") }

// send calls a tool and does not wait for its answer.
func (c *killClient) send(tool string, arguments map[string]any) int {
	c.last++
	raw, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": c.last, "method": "tools/call", "params": map[string]any{"name": tool, "arguments": arguments}})
	if err != nil {
		c.t.Fatal(err)
	}
	c.write(string(raw))
	return c.last
}

// read keeps the answers, until the server or the client's end is gone.
func (c *killClient) read() {
	defer close(c.ended)
	for lines := bufio.NewReader(c.out); ; {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var answer struct {
			ID     *int
			Result struct {
				IsError           bool
				Content           []struct{ Text string }
				StructuredContent killAnswer
			}
		}
		if json.Unmarshal(line, &answer) != nil || answer.ID == nil || *answer.ID == 0 {
			continue
		}
		a := answer.Result.StructuredContent
		if answer.Result.IsError {
			a.broken = answer.Result.Content[0].Text
		}
		c.mu.Lock()
		c.heard[*answer.ID] = a
		c.mu.Unlock()
		select {
		case c.news <- struct{}{}:
		default:
		}
	}
}

// answers are those that came so far, by the ids of their requests.
func (c *killClient) answers() map[int]killAnswer {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.heard)
}

// settle waits until every call was answered.
func (c *killClient) settle() {
	c.t.Helper()
	limit := time.After(2 * time.Minute)
	for c.answered() < c.last {
		select {
		case <-c.news:
		case <-c.ended:
			c.t.Fatal("the server ended")
		case <-limit:
			c.t.Fatalf("%d of %d calls were answered", c.answered(), c.last)
		}
	}
}

func (c *killClient) answered() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.heard)
}

// hangUp closes the client's ends of the pipes.
func (c *killClient) hangUp() { _, _ = c.in.Close(), c.out.Close() }
