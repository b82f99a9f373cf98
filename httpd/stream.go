package httpd

import (
	"bytes"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"
)

// maxHeld bounds how much of an error's text is kept, in bytes.
const maxHeld = 16 << 10

// A stream is what the SDK writes the answer of one request to. It adds what the SDK
// leaves out:
//
//   - A silent stream of events gets a comment now and then, so that nobody between
//     here and the client takes it for dead.
//   - A client that takes nothing is cut off.
//   - Errors in plain text become JSON-RPC errors; see [Server.answer].
//   - Proxies are told not to collect events.
type stream struct {
	out     http.ResponseWriter
	control *http.ResponseController
	wait    time.Duration // for a client to take what is written
	opening bool          // the answer's header has the id of a new session
	log     *slog.Logger

	mu     sync.Mutex
	header http.Header // the SDK's; out's own is only touched under mu
	status int         // 0: nothing is sent yet
	events bool        // the answer is a stream of events
	failed int         // status of an error in plain text, which is held back
	held   bytes.Buffer
	silent bool // nothing was sent since the last look
}

// openStream makes the stream of a request. Its caller runs keepAlive.
func openStream(w http.ResponseWriter, wait time.Duration, log *slog.Logger) *stream {
	return &stream{out: w, log: log, control: http.NewResponseController(w), wait: wait, header: make(http.Header)}
}

// Header implements [http.ResponseWriter].
func (s *stream) Header() http.Header { return s.header }

// WriteHeader implements [http.ResponseWriter].
func (s *stream) WriteHeader(status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begin(status)
}

// begin sends the header, unless that is done or the answer is held back.
func (s *stream) begin(status int) {
	if s.status != 0 || s.failed != 0 {
		return
	}
	contentType := s.header.Get("Content-Type")
	if status >= 400 && !strings.HasPrefix(contentType, "application/json") {
		s.failed = status
		return
	}
	for k, v := range s.header {
		if k != "Connection" { // it is for net/http to say
			s.out.Header()[k] = v
		}
	}
	s.send(status, strings.HasPrefix(contentType, "text/event-stream"))
}

func (s *stream) send(status int, events bool) {
	s.status, s.events = status, events
	if events {
		s.out.Header().Set("X-Accel-Buffering", "no")
	}
	s.out.WriteHeader(status)
}

// Write implements [http.ResponseWriter].
func (s *stream) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begin(http.StatusOK)
	if s.failed != 0 {
		s.held.Write(p[:min(len(p), max(0, maxHeld-s.held.Len()))])
		return len(p), nil
	}
	if s.events && !isEvent(p) {
		// An error that would have been the whole answer, had no comment been sent before it.
		framed := append(append([]byte("event: message\ndata: "), bytes.TrimSpace(p)...), "\n\n"...)
		_, err := s.write(framed)
		return len(p), err
	}
	return s.write(p)
}

// isEvent reports whether p is a piece of a stream of events, which the SDK writes
// whole: JSON begins otherwise.
func isEvent(p []byte) bool { return len(p) > 0 && p[0] != '{' && p[0] != '[' }

// write sends p to a client that takes it in time.
func (s *stream) write(p []byte) (int, error) {
	s.silent = false
	// A deadline that passes while nothing is written would break the next write.
	_ = s.control.SetWriteDeadline(time.Now().Add(s.wait))
	defer func() { _ = s.control.SetWriteDeadline(time.Time{}) }()
	n, err := s.out.Write(p)
	if err == nil && s.events {
		err = s.control.Flush()
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		s.log.Info("a client takes nothing; its stream is cut off", "request", s.out.Header().Get("X-Request-Id"))
	}
	return n, err
}

// FlushError is what [http.ResponseController] calls. Events are sent as they are
// written, all else at its end.
func (s *stream) FlushError() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begin(http.StatusOK)
	return nil
}

// comment is what a silent stream says. Parsers of events skip it.
const comment = ": still there\n\n"

// beat lets a stream on which nothing was sent since the last beat say that it lives. A
// request that is only being carried out becomes a stream of events by it, unless its
// header is not ours to send.
func (s *stream) beat() {
	s.mu.Lock()
	defer s.mu.Unlock()
	silent := s.silent
	s.silent = true
	if !silent || s.failed != 0 || s.status != 0 && !s.events || s.status == 0 && s.opening {
		return
	}
	if s.status == 0 {
		// What the SDK may be about to put into its header must not be read here.
		s.out.Header().Set("Content-Type", "text/event-stream")
		s.out.Header().Set("Cache-Control", "no-cache, no-transform")
		s.send(http.StatusOK, true)
	}
	_, _ = s.write([]byte(comment)) // a broken connection ends the request by itself
	s.silent = true
}

// keepAlive beats until stop is closed.
func (s *stream) keepAlive(every time.Duration, stop <-chan struct{}) {
	// Two looks make one silence.
	tick := time.NewTicker(every / 2)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
			s.beat()
		}
	}
}

// heldError returns the status and the text of an error that was held back; zero when there
// was none.
func (s *stream) heldError() (int, string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed, strings.TrimSpace(s.held.String())
}
