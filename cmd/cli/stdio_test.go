package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// buffer is a bytes.Buffer that may be read while it is written.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

type waitArgs struct {
	Seconds int  `json:"seconds"`
	Deaf    bool `json:"deaf,omitempty"` // does not hear a cancel
}

// waiter is a server with one tool, which waits.
func waiter() *mcp.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: "waiter", Version: "1"}, nil)
	mcp.AddTool(s, &mcp.Tool{Name: "wait"}, func(ctx context.Context, _ *mcp.CallToolRequest, in waitArgs) (*mcp.CallToolResult, any, error) {
		end := time.After(time.Duration(in.Seconds) * time.Second)
		if in.Deaf {
			<-end
		}
		select {
		case <-end:
		case <-ctx.Done():
			return nil, nil, fmt.Errorf("cancelled: %w", context.Cause(ctx))
		}
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "waited"}}}, nil, nil
	})
	return s
}

const hello = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}` + "\n" +
	`{"jsonrpc":"2.0","method":"notifications/initialized"}` + "\n"

func wait(id, seconds int, more string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"wait","arguments":{"seconds":%d%s}}}`, id, seconds, more) + "\n"
}

const ping = `{"jsonrpc":"2.0","id":"p","method":"ping"}`

// answers runs input to its end and returns the answers by id, and each error
// under a null id as "CODE".
func answers(t *testing.T, input string) map[string]string {
	t.Helper()
	got := map[string]string{}
	synctest.Test(t, func(t *testing.T) {
		var out buffer
		tr := newStdio(strings.NewReader(input), &out, eofGrace)
		if err := waiter().Run(t.Context(), tr); err != nil {
			t.Fatal(err)
		}
		if tr.Cause() != io.EOF {
			t.Errorf("cause %v, want EOF", tr.Cause())
		}
		for line := range strings.Lines(out.String()) {
			var m struct {
				ID     json.RawMessage
				Result json.RawMessage
				Error  *struct{ Code int }
			}
			if err := json.Unmarshal([]byte(line), &m); err != nil {
				t.Fatalf("answer %q: %v", line, err)
			}
			said := string(m.Result)
			if m.Error != nil {
				said = fmt.Sprint(m.Error.Code)
			}
			got[string(m.ID)] = strings.TrimSpace(got[string(m.ID)] + " " + said)
		}
	})
	return got
}

// A line that is no message is answered, and everything after it too.
func TestStdioBadLines(t *testing.T) {
	big := strings.Repeat("x", maxLine)
	for name, test := range map[string]struct{ line, id, want string }{
		"junk":              {"not json", "null", "-32700"},
		"half a message":    {`{"jsonrpc":"2.0","id":7,`, "null", "-32700"},
		"not an object":     {`7`, "null", "-32600"},
		"no JSON-RPC":       {`{"hello":1}`, "null", "-32600"},
		"wrong version":     {`{"jsonrpc":"1.0","id":7,"method":"ping"}`, "7", "-32600"},
		"method no string":  {`{"jsonrpc":"2.0","id":7,"method":5}`, "7", "-32600"},
		"id an object":      {`{"jsonrpc":"2.0","id":{},"method":"ping"}`, "null", "-32600"},
		"id a fraction":     {`{"jsonrpc":"2.0","id":7.5,"method":"ping"}`, "7.5", "-32600"},
		"id too large":      {`{"jsonrpc":"2.0","id":9007199254740993,"method":"ping"}`, "9007199254740993", "-32600"},
		"id very large":     {`{"jsonrpc":"2.0","id":123456789012345678901234567890,"method":"ping"}`, "123456789012345678901234567890", "-32600"},
		"id null":           {`{"jsonrpc":"2.0","id":null,"method":"ping"}`, "null", "-32600"},
		"id spelt oddly":    {`{"jsonrpc":"2.0","id" : 7 ,"method":"ping"}`, "7", "{}"},
		"no id":             {`{"jsonrpc":"2.0","method":"notifications/x"}`, "null", ""},
		"bad answer":        {`{"jsonrpc":"1.0","id":0,"result":{}}`, "null", "-32600"},
		"batch":             {`[` + ping + `]`, "null", "-32600"},
		"empty batch":       {`[]`, "null", "-32600"},
		"blank":             {" \t ", "null", ""},
		"carriage return":   {`{"jsonrpc":"2.0","id":7,"method":"ping"}` + "\r", "7", "{}"},
		"two on a line":     {`{"jsonrpc":"2.0","id":7,"method":"ping"} {"jsonrpc":"2.0","id":8,"method":"ping"}`, "8", "{}"},
		"message then junk": {`{"jsonrpc":"2.0","id":7,"method":"ping"} oops`, "null", "-32700"},
		"unexpected answer": {`{"jsonrpc":"2.0","id":99,"result":{}}`, "null", ""},
		"deeply nested":     {`{"jsonrpc":"2.0","id":7,"method":"ping","params":` + strings.Repeat("[", 5000) + strings.Repeat("]", 5000) + "}", "7", "-32600"},
		"bad UTF-8":         {"\"\xff\xfe\"", "null", "-32600"},
		"long, id first":    {`{"id":"é7","jsonrpc":"2.0","params":{"a":"` + big + `"},"method":"ping"}`, `"é7"`, "-32600"},
		"long, id last":     {`{"method":"ping","params":{"id":8,"a":"\"id\":9}` + big + `"},"jsonrpc":"2.0","id":7}`, "7", "-32600"},
		"long, no id":       {`{"method":"ping","params":{"id":8,"a":"` + big + `,\"id\":9}"}}`, "null", "-32600"},
		"long junk":         {big + "x", "null", "-32600"},
	} {
		t.Run(name, func(t *testing.T) {
			got := answers(t, hello+test.line+"\n"+ping)
			if got[test.id] != test.want {
				t.Errorf("answer to %s is %q, want %q (all: %.300v)", test.id, got[test.id], test.want, got)
			}
			if got[`"p"`] == "" {
				t.Errorf("the message after it was not answered: %.300v", got)
			}
		})
	}
}

// The bound itself still passes.
func TestStdioLongestLine(t *testing.T) {
	frame := `{"jsonrpc":"2.0","id":7,"method":"ping","params":{"_meta":{"a":""}}}` + "\n"
	line := strings.Replace(frame, `""`, `"`+strings.Repeat("x", maxLine-len(frame))+`"`, 1)
	if got := answers(t, hello+line); got["7"] != "{}" {
		t.Errorf("a line of %d bytes: %.300v", len(line), got)
	}
}

// Whatever was asked before the end of input is answered, also what takes a
// moment; what takes longer than the grace is cancelled.
func TestStdioEndOfInput(t *testing.T) {
	got := answers(t, hello+wait(1, 1, "")+wait(2, 100, "")+`{"jsonrpc":"2.0","id":3,"method":"tools/list"}`)
	if !strings.Contains(got["1"], "waited") {
		t.Errorf("call of 1 s: %q", got["1"])
	}
	if got["3"] == "" || got["0"] == "" {
		t.Errorf("not everything was answered: %v", got)
	}
	synctest.Test(t, func(t *testing.T) {
		for _, test := range []struct {
			seconds int
			want    time.Duration
		}{{0, 0}, {1, time.Second}, {100, eofGrace}} {
			start := time.Now()
			_ = waiter().Run(t.Context(), newStdio(strings.NewReader(hello+wait(1, test.seconds, "")), io.Discard, eofGrace))
			if got := time.Since(start); got != test.want {
				t.Errorf("with a call of %d s the session ended after %v, want %v", test.seconds, got, test.want)
			}
		}
	})
}

// An id may be used again once it is answered, not before.
func TestStdioIDInUse(t *testing.T) {
	got := answers(t, hello+wait(1, 1, "")+`{"jsonrpc":"2.0","id":1,"method":"ping"}`)
	if got["null"] != "-32600" || !strings.Contains(got["1"], "waited") {
		t.Errorf("answers %v", got)
	}
}

// A broken output ends the session with its cause.
func TestStdioBrokenOutput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in, feed := io.Pipe()
		defer feed.Close()
		tr := newStdio(in, brokenWriter{}, eofGrace)
		go waiter().Run(t.Context(), tr)
		go io.WriteString(feed, hello)
		<-tr.Ended()
		if !errors.Is(tr.Cause(), errBroken) {
			t.Errorf("cause %v, want %v", tr.Cause(), errBroken)
		}
	})
}

var errBroken = errors.New("broken")

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, errBroken }

// The reader keeps no more than its bound of any line.
func TestLineReaderMemory(t *testing.T) {
	const bound = 1 << 20
	r := newLineReader(io.MultiReader(io.LimitReader(endless{}, 64*bound), strings.NewReader("\nafter\n")), bound)
	_, cut, err := r.next()
	if cut == nil || err != nil {
		t.Fatalf("cut %v, err %v", cut, err)
	}
	if n := cap(cut.head) + cap(cut.tail) + cap(r.line); n > 2*bound {
		t.Errorf("%d bytes kept of a long line", n)
	}
	if line, _, _ := r.next(); string(line) != "after\n" {
		t.Errorf("the line after it is %q", line)
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

// FuzzStdio throws lines at a session: it must answer the last one whatever
// came before.
func FuzzStdio(f *testing.F) {
	for _, seed := range []string{"", "{}", "[]", ping, ping + ping, `{"jsonrpc":"2.0","id":1.5,"method":"ping"}`, `{"jsonrpc":"2.0","id":"p","method":"ping"}`, "null", `"`, "\x00"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, line string) {
		if slices.ContainsFunc([]string{`"last"`, "initialize", "listen"}, func(s string) bool { return strings.Contains(line, s) }) {
			t.Skip("it could be the answer looked for, or change the session")
		}
		in := hello + line + "\n" + `{"jsonrpc":"2.0","id":"last","method":"ping"}`
		if got := answers(t, in); got[`"last"`] != "{}" {
			t.Errorf("after %q: %v", line, got)
		}
	})
}
