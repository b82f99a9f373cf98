package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// stdio is the transport of one session over two streams, a JSON-RPC message a
// line. It differs from the SDK's in what it survives:
//
//   - A line that is no message is answered with an error; the session goes on.
//   - A line over maxLine bytes is skipped as it comes, and answered.
//   - Several messages may stand on one line.
//   - The end of input is passed on only when the calls that are open have
//     been answered, or grace is over.
//   - A broken output ends the session instead of the process.
//
// Ended tells when either stream is done with.
type stdio struct {
	in    io.Reader
	out   io.Writer
	grace time.Duration

	messages chan jsonrpc.Message
	ended    chan struct{} // closed by end
	endOnce  sync.Once
	cause    error // set before ended is closed

	write sync.Mutex // one message at a time on out

	mu      sync.Mutex // guards the fields below
	open    map[jsonrpc.ID]bool
	owed    int           // answers that the end of input waits for
	settled chan struct{} // made at the end of input, closed when owed is 0
}

// Bounds of the transport.
const (
	maxLine   = 16 << 20        // bytes of one message
	eofGrace  = 2 * time.Second // from the end of input to the end of the session
	keptHead  = 4 << 10         // bytes of an over-long line in which its id is looked for
	keptTail  = 512
	listenFor = "subscriptions/listen" // is answered only when it ends, so nobody waits for it
)

// errClosed is the cause when our own side closed the transport.
var errClosed = errors.New("closed")

func newStdio(in io.Reader, out io.Writer, grace time.Duration) *stdio {
	return &stdio{
		in: in, out: out, grace: grace,
		messages: make(chan jsonrpc.Message),
		ended:    make(chan struct{}),
		open:     map[jsonrpc.ID]bool{},
	}
}

// Connect starts to read; it is called once.
func (s *stdio) Connect(context.Context) (mcp.Connection, error) {
	// Nothing can interrupt a read of standard input everywhere, so this
	// goroutine is not waited for: it ends with the stream or the process.
	go s.readAll()
	return s, nil
}

// Ended is closed when no message will come any more; Cause says why.
func (s *stdio) Ended() <-chan struct{} { return s.ended }

// Cause is io.EOF, errClosed or what broke a stream. It is valid after Ended.
func (s *stdio) Cause() error { return s.cause }

func (s *stdio) end(cause error) {
	s.endOnce.Do(func() {
		s.cause = cause
		close(s.ended)
	})
}

// SessionID implements [mcp.Connection]; a stream has none.
func (s *stdio) SessionID() string { return "" }

// Close implements [mcp.Connection].
func (s *stdio) Close() error {
	s.end(errClosed)
	return nil
}

// Read implements [mcp.Connection].
func (s *stdio) Read(ctx context.Context) (jsonrpc.Message, error) {
	select {
	case m := <-s.messages:
		return m, nil
	case <-s.ended:
		return nil, io.EOF
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Write implements [mcp.Connection].
func (s *stdio) Write(_ context.Context, m jsonrpc.Message) error {
	line, err := jsonrpc.EncodeMessage(m)
	if err != nil {
		return err
	}
	waited := false
	if r, ok := m.(*jsonrpc.Response); ok {
		waited = s.forget(r.ID)
	}
	err = s.writeLine(line)
	if waited {
		s.settle()
	}
	return err
}

func (s *stdio) writeLine(line []byte) error {
	s.write.Lock()
	defer s.write.Unlock()
	_, err := s.out.Write(append(line, '\n'))
	if err != nil {
		s.end(fmt.Errorf("output: %w", err))
	}
	return err
}

// readAll hands on the messages of all lines until the input or the session
// ends.
func (s *stdio) readAll() {
	lines := newLineReader(s.in, maxLine)
	for {
		line, cut, err := lines.next()
		switch {
		case cut != nil:
			s.refuse(cut.id(), jsonrpc.CodeInvalidRequest, fmt.Sprintf("message of more than %d bytes skipped; send less at a time", maxLine))
		case len(bytes.TrimSpace(line)) > 0:
			if !s.take(line) {
				return
			}
		}
		if errors.Is(err, io.EOF) {
			s.awaitAnswers()
			s.end(io.EOF)
			return
		}
		if err != nil {
			s.end(fmt.Errorf("input: %w", err))
			return
		}
	}
}

// take hands on the messages of one line; false when the session has ended.
func (s *stdio) take(line []byte) bool {
	if json.Valid(line) {
		return s.deliver(line)
	}
	// No message, or more than one.
	dec := json.NewDecoder(bytes.NewReader(line))
	for {
		var one json.RawMessage
		err := dec.Decode(&one)
		if err == io.EOF {
			return true
		}
		if err != nil {
			s.refuse(nil, jsonrpc.CodeParseError, "not JSON: "+err.Error())
			return true
		}
		if !s.deliver(one) {
			return false
		}
	}
}

// deliver hands on one JSON value, or answers that it is no message.
func (s *stdio) deliver(value []byte) bool {
	m, err := jsonrpc.DecodeMessage(value)
	if err != nil {
		id, why := explain(value, err)
		s.refuse(id, jsonrpc.CodeInvalidRequest, why)
		return true
	}
	if id, ok := oddID(value, m); ok {
		s.refuse(id, jsonrpc.CodeInvalidRequest, "an id is a string or a whole number up to 2^53")
		return true
	}
	if r, ok := m.(*jsonrpc.Request); ok && r.IsCall() && !s.remember(r) {
		s.refuse(nil, jsonrpc.CodeInvalidRequest, fmt.Sprintf("id %v is that of a request which is still running", r.ID.Raw()))
		return true
	}
	select {
	case s.messages <- m:
		return true
	case <-s.ended:
		return false
	}
}

// oddID returns the id of a request that the SDK would answer under another one, or
// not at all: a fraction, a number too large, null.
func oddID(value []byte, m jsonrpc.Message) (id json.RawMessage, odd bool) {
	r, ok := m.(*jsonrpc.Request)
	if !ok {
		return nil, false
	}
	if _, text := r.ID.Raw().(string); text {
		return nil, false
	}
	// The usual spelling is looked for first: parsing a large message twice costs.
	if n, ok := r.ID.Raw().(int64); ok {
		for _, form := range []string{`"id":%d,`, `"id":%d}`, `"id": %d,`, `"id": %d}`} {
			if bytes.Contains(value, fmt.Appendf(nil, form, n)) && n >= -largestID && n <= largestID {
				return nil, false
			}
		}
	} else if !bytes.Contains(value, []byte(`"id"`)) {
		return nil, false
	}
	var members map[string]json.RawMessage
	if json.Unmarshal(value, &members) != nil {
		return nil, false
	}
	id, given := members["id"]
	return id, given && !usableID(id)
}

// explain says why a JSON value is no message, and returns the id to answer
// under: its own when it was meant as a request, else nil.
func explain(value []byte, err error) (id json.RawMessage, why string) {
	var fields map[string]json.RawMessage
	if json.Unmarshal(value, &fields) != nil {
		if value[0] == '[' {
			return nil, "batches are not part of MCP: send each message on a line of its own"
		}
		return nil, "not a JSON-RPC message: must be an object"
	}
	if _, ok := fields["method"]; ok && usableID(fields["id"]) {
		id = fields["id"]
	}
	return id, "not a JSON-RPC message: " + err.Error()
}

// refuse answers a line that never became a message.
func (s *stdio) refuse(id json.RawMessage, code int, why string) {
	if id == nil {
		id = json.RawMessage("null")
	}
	line, err := json.Marshal(struct {
		Version string          `json:"jsonrpc"`
		ID      json.RawMessage `json:"id"`
		Error   any             `json:"error"`
	}{"2.0", id, map[string]any{"code": code, "message": why}})
	if err == nil {
		_ = s.writeLine(line) // a broken output has ended the session
	}
}

// remember notes an open call; false when its id is taken.
func (s *stdio) remember(r *jsonrpc.Request) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, taken := s.open[r.ID]; taken {
		return false
	}
	awaited := r.Method != listenFor
	s.open[r.ID] = awaited
	if awaited {
		s.owed++
	}
	return true
}

// forget frees the id of a call that is about to be answered, and tells
// whether the answer was waited for: then settle follows when it is written.
func (s *stdio) forget(id jsonrpc.ID) (waited bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	waited = s.open[id]
	delete(s.open, id)
	return waited
}

func (s *stdio) settle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.owed--
	if s.owed == 0 && s.settled != nil {
		close(s.settled)
	}
}

// awaitAnswers returns when every open call is answered, grace is over, or the
// session has ended for another reason.
func (s *stdio) awaitAnswers() {
	s.mu.Lock()
	s.settled = make(chan struct{})
	if s.owed == 0 {
		close(s.settled)
	}
	s.mu.Unlock()
	grace := time.NewTimer(s.grace)
	defer grace.Stop()
	select {
	case <-s.settled:
	case <-grace.C:
	case <-s.ended:
	}
}
