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
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
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
		s.swallow(w, r)
		return nil, false
	}
	if r.ContentLength > s.opts.MaxBody {
		return tooLarge()
	}
	if coding := r.Header.Get("Content-Encoding"); coding != "" && !strings.EqualFold(coding, "identity") {
		w.Header().Set("Accept-Encoding", "identity") // RFC 9110, 12.5.3
		s.refuse(w, r, http.StatusUnsupportedMediaType, codeInvalid, "coding", fmt.Sprintf("the body is coded as %.40q; send it as it is, without a Content-Encoding", coding))
		return nil, false
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

// swallow reads on behind an answer, within bounds: many clients read no answer before all
// is sent, and a connection that is closed on them takes it away.
func (s *Server) swallow(w http.ResponseWriter, r *http.Request) {
	control := http.NewResponseController(w)
	_ = control.Flush() // nobody to tell
	_ = control.SetReadDeadline(time.Now().Add(headTime))
	_, _ = io.CopyN(io.Discard, r.Body, swallowed*s.opts.MaxBody)
}

// swallowed is how many times a body's bound is read of one that is refused for its size.
const swallowed = 4

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

// A summary is what has to be known of a body before a session sees it. It is zero for a
// batch.
type summary struct {
	id     json.RawMessage // of a call; nil for others
	method string
	modern bool // it is of a revision without sessions, by its own words
	opens  bool // it opens a session, and has been given a server of its own
}

// examine reads a body and refuses what the SDK would take for something else: text behind a
// message, ids that it would answer under another one, and more messages than a request may
// have. The code says what is wrong.
func examine(body []byte) (sum summary, code int, err error) {
	if !utf8.Valid(body) { // it would become other text on the way to a file, unmarked
		return sum, codeParse, errors.New("the body is not UTF-8; send other bytes in base64, as the tools' arguments say")
	}
	if !json.Valid(body) {
		return sum, codeParse, errors.New("the body is not one JSON value")
	}
	if trimmed := bytes.TrimLeft(body, " \t\r\n"); trimmed[0] == '[' {
		var all []json.RawMessage
		_ = json.Unmarshal(body, &all) // it is valid, and a list
		if len(all) > maxBatch {
			return sum, codeInvalid, fmt.Errorf("a batch of more than %d messages; send less at a time", maxBatch)
		}
		for _, one := range all {
			if _, code, err = examineOne(one); err != nil {
				return sum, code, err
			}
		}
		return summary{}, 0, nil
	}
	return examineOne(body)
}

func examineOne(message []byte) (sum summary, code int, err error) {
	var m map[string]json.RawMessage
	if json.Unmarshal(message, &m) != nil {
		return sum, codeInvalid, errors.New("a message is a JSON object")
	}
	_ = json.Unmarshal(m["method"], &sum.method) // of another type: the session says so
	if sum.id = m["id"]; sum.id != nil && m["method"] != nil && !usableID(sum.id) {
		return summary{}, codeInvalid, errors.New("an id is a string or a whole number up to 2^53")
	}
	return sum, 0, nil
}

// usableID reports whether the SDK answers under the same id.
func usableID(id json.RawMessage) bool {
	if len(id) > 0 && id[0] == '"' {
		return true
	}
	n, err := strconv.ParseInt(string(id), 10, 64)
	return err == nil && n >= -largestID && n <= largestID
}

// largestID is the largest whole number that every client and we agree on.
const largestID = 1 << 53

// metaVersion is the revision that a message names in its own words.
func metaVersion(body []byte) string {
	var m struct {
		Params struct {
			Meta struct {
				Version string `json:"io.modelcontextprotocol/protocolVersion"`
			} `json:"_meta"`
		} `json:"params"`
	}
	_ = json.Unmarshal(body, &m) // what has another shape names none
	return m.Params.Meta.Version
}

// isKnown reports whether a method is one of the revisions with a handshake.
func isKnown(method string) bool {
	return strings.HasPrefix(method, "notifications/") || slices.Contains([]string{
		"initialize", "ping", "tools/list", "tools/call", "resources/list", "resources/templates/list", "resources/read",
		"resources/subscribe", "resources/unsubscribe", "prompts/list", "prompts/get", "completion/complete", "logging/setLevel",
		"server/discover",
	}, method)
}
