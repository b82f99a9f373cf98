package httpd

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"
)

// maxBatch bounds the messages of one request: each call of them runs by itself.
const maxBatch = 32

// slowestBody bounds how long a whole body may take, however steadily it comes.
const slowestBody = 5 * time.Minute

// readBody reads the body of an authorized request whole, so that nothing behind it
// waits for a slow client, and bounds it. False: the request has been answered.
func (s *Server) readBody(w http.ResponseWriter, r *http.Request) ([]byte, bool) {
	tooLarge := func() ([]byte, bool) {
		w.Header().Set("Connection", "close")
		s.refuse(w, r, http.StatusRequestEntityTooLarge, codeTooLarge, "too large",
			fmt.Sprintf("the body is larger than %d bytes; send less at a time", s.opts.MaxBody))
		return nil, false
	}
	if r.ContentLength > s.opts.MaxBody {
		return tooLarge()
	}
	var body bytes.Buffer
	if r.ContentLength > 0 {
		body.Grow(int(min(r.ContentLength, 64<<10)))
	}
	pieces := &patient{r: r.Body, wait: s.opts.BodyTime, end: time.Now().Add(slowestBody), control: http.NewResponseController(w)}
	n, err := body.ReadFrom(io.LimitReader(pieces, s.opts.MaxBody+1))
	var timeout net.Error
	switch {
	case n > s.opts.MaxBody:
		return tooLarge()
	case errors.As(err, &timeout) && timeout.Timeout():
		w.Header().Set("Connection", "close")
		s.refuse(w, r, http.StatusRequestTimeout, codeInvalid, "slow body", "the body did not come in time")
		return nil, false
	case err != nil:
		w.Header().Set("Connection", "close")
		s.refuse(w, r, http.StatusBadRequest, codeInvalid, "broken body", "the body could not be read")
		return nil, false
	}
	// From here on the connection is only watched for its end.
	_ = pieces.control.SetReadDeadline(time.Time{})
	return body.Bytes(), true
}

// patient reads from r and waits so long for each piece.
type patient struct {
	r       io.Reader
	wait    time.Duration
	end     time.Time
	control *http.ResponseController
}

func (p *patient) Read(b []byte) (int, error) {
	next := time.Now().Add(p.wait)
	if next.After(p.end) {
		next = p.end
	}
	// Not every kind of connection has deadlines; all of net/http's do.
	_ = p.control.SetReadDeadline(next)
	return p.r.Read(b)
}

// A summary is what has to be known of a body before a session sees it.
type summary struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params struct {
		Meta struct {
			Version string `json:"io.modelcontextprotocol/protocolVersion"`
		} `json:"_meta"`
	} `json:"params"`
}

// summarize reads a body. One that is no single message gives a zero summary.
func summarize(body []byte) summary {
	var s summary
	if json.Unmarshal(body, &s) != nil {
		// One part of it of another type must not hide the others.
		var only struct {
			ID     json.RawMessage `json:"id"`
			Method string          `json:"method"`
		}
		_ = json.Unmarshal(body, &only)
		s = summary{ID: only.ID, Method: only.Method}
	}
	if !usableID(s.ID) {
		s.ID = nil
	}
	return s
}

// usableID reports whether an id is one to answer under.
func usableID(id json.RawMessage) bool {
	return len(id) > 0 && (id[0] == '"' || id[0] == '-' || id[0] >= '0' && id[0] <= '9')
}

// checkBatch refuses a body that holds more messages than one request may.
func checkBatch(body []byte) error {
	trimmed := bytes.TrimLeft(body, " \t\r\n")
	if len(trimmed) == 0 || trimmed[0] != '[' {
		return nil
	}
	dec := json.NewDecoder(bytes.NewReader(trimmed))
	if _, err := dec.Token(); err != nil {
		return nil // the session says what is wrong with it
	}
	for n := 1; dec.More(); n++ {
		var one json.RawMessage
		if dec.Decode(&one) != nil {
			return nil
		}
		if n > maxBatch {
			return fmt.Errorf("a batch of more than %d messages", maxBatch)
		}
	}
	return nil
}

// isKnown reports whether a method is one of the revisions with a handshake.
func isKnown(method string) bool {
	return strings.HasPrefix(method, "notifications/") || slices.Contains([]string{
		"initialize", "ping", "tools/list", "tools/call", "resources/list", "resources/templates/list", "resources/read",
		"resources/subscribe", "resources/unsubscribe", "prompts/list", "prompts/get", "completion/complete", "logging/setLevel",
		"server/discover",
	}, method)
}
