package fleettest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// SmolvmVersion is the release that a fake smolvm plays unless told otherwise.
const SmolvmVersion = "1.14.5"

// guestSlots is how many agent connections a machine takes at once.
const guestSlots = 8

// smolvmServer answers the smolvm API. Its machines are directories below data
// with a record each, so that they outlive the server like the real ones.
type smolvmServer struct {
	data       string
	boot       time.Duration // how long a machine takes to start
	limit      time.Duration // after which an answer is given up with 408
	consoleMax int64         // bytes after which a console log is rotated
	bootID     string        // differs for each server
	began      time.Time
	builtin    bool // play the built-in engine
	faults     *faultBook
	requests   *requestBook

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	work   sync.WaitGroup // operations, also those whose client has gone

	mu       sync.Mutex // guards version and machines with their records
	version  string
	machines map[string]*smolvmMachine
}

// SmolvmOptions say how a fake smolvm behaves. The zero value is a good one.
type SmolvmOptions struct {
	Version    string        // SmolvmVersion when empty
	Data       string        // where machines, faults.json and requests.log are; a temporary directory when empty
	Boot       time.Duration // how long a machine takes to start
	Limit      time.Duration // 300 s when 0; after it the answer is an empty 408, and the work goes on
	ConsoleMax int64         // bytes after which a console log is copied away and truncated; 10 MiB when 0
}

// newSmolvmServer opens the machines below opts.Data.
func newSmolvmServer(opts SmolvmOptions) (*smolvmServer, error) {
	s := &smolvmServer{
		data: opts.Data, boot: opts.Boot, limit: opts.Limit, consoleMax: opts.ConsoleMax, version: opts.Version,
		began: time.Now(), bootID: randomHex(8), machines: map[string]*smolvmMachine{},
	}
	if s.version == "" {
		s.version = SmolvmVersion
	}
	if s.limit == 0 {
		s.limit = 300 * time.Second
	}
	if s.consoleMax == 0 {
		s.consoleMax = 10 << 20
	}
	if err := os.MkdirAll(filepath.Join(s.data, "machines"), 0o755); err != nil {
		return nil, err
	}
	s.faults = &faultBook{path: filepath.Join(s.data, "faults.json")}
	s.requests = &requestBook{path: filepath.Join(s.data, "requests.log")}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s, s.load()
}

// close ends what the server does; the machines go on.
func (s *smolvmServer) close() {
	s.cancel()
}

// killAll ends every process of every machine.
func (s *smolvmServer) killAll() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, m := range s.machines {
		if m.guest != nil {
			errs = append(errs, m.guest.Kill())
		}
	}
	return errors.Join(errs...)
}

func (s *smolvmServer) release() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.version
}

// ServeHTTP answers one request: the faults first, then the route.
func (s *smolvmServer) ServeHTTP(w http.ResponseWriter, hr *http.Request) {
	w.Header().Set("X-Trace-Id", randomHex(8))
	body := &countedBody{r: hr.Body}
	r := &call{Request: hr, body: body, server: s, version: s.release()}
	entry := s.requests.begin(hr)
	re := s.answer(r)
	if f := r.fault; f != nil && f.Drop != "" {
		s.requests.end(entry, body.n.Load(), 0, 0)
		panic(http.ErrAbortHandler) // net/http closes the connection
	}
	s.requests.end(entry, body.n.Load(), re.status, len(re.body))
	if re.kind != "" {
		w.Header().Set("Content-Type", re.kind)
	} else {
		w.Header()["Content-Type"] = nil
	}
	if hr.Method != http.MethodHead {
		w.Header().Set("Content-Length", fmt.Sprint(len(re.body)))
	}
	w.WriteHeader(re.status)
	w.Write(re.body)
}

// answer carries the call out, unless a fault says otherwise. After the
// route's time limit the work goes on and the answer is an empty 408.
func (s *smolvmServer) answer(r *call) reply {
	r.fault = s.faults.take(r.Method, r.URL.EscapedPath())
	done := make(chan reply, 1)
	s.work.Go(func() { done <- s.carryOut(r) })
	timer := time.NewTimer(s.limit)
	defer timer.Stop()
	select {
	case re := <-done:
		return re
	case <-timer.C:
		return reply{status: http.StatusRequestTimeout}
	}
}

func (s *smolvmServer) carryOut(r *call) reply {
	f := r.fault
	if f == nil {
		return s.route(r)
	}
	s.pause(time.Duration(f.LatencyMs) * time.Millisecond)
	switch {
	case f.Drop == "before" || f.Status != 0 && !f.Done:
		return f.reply()
	case f.Status != 0 && f.Done:
		s.route(r)
		return f.reply()
	}
	return s.route(r)
}

// pause waits for d, also when the client goes away, but not when the server ends.
func (s *smolvmServer) pause(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.ctx.Done():
	}
}

func randomHex(n int) string {
	b := make([]byte, n)
	rand.Read(b)
	return hex.EncodeToString(b)
}
