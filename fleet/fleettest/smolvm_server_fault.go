package fleettest

import (
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"strings"
	"sync"
)

// SmolvmFault is something that goes wrong. It concerns the requests of its
// Method whose path contains Path, or ends in it where Path ends in "$"; empty
// ones concern all. Of these it hits the Nth and those after it, Times in all.
type SmolvmFault struct {
	Method string `json:"method,omitempty"`
	Path   string `json:"path,omitempty"`
	Nth    int    `json:"nth,omitempty"`   // 0 is 1, the first
	Times  int    `json:"times,omitempty"` // 0 is 1; below 0 always

	LatencyMs int    `json:"latencyMs,omitempty"` // before anything else; the work is done even when the client does not wait
	Status    int    `json:"status,omitempty"`    // answer this, with Body
	Body      string `json:"body,omitempty"`
	Done      bool   `json:"done,omitempty"` // do the work before answering Status
	Drop      string `json:"drop,omitempty"` // "before" or "after" the work: close the connection without an answer

	Header map[string]string `json:"header,omitempty"` // goes with the answer; the cloud only
}

func (f *SmolvmFault) reply() reply {
	kind := ""
	switch {
	case strings.HasPrefix(f.Body, "{"):
		kind = "application/json"
	case f.Body != "":
		kind = "text/plain; charset=utf-8"
	}
	return reply{max(f.Status, 200), kind, []byte(f.Body)}
}

func (f *SmolvmFault) concerns(method, path string) bool {
	if f.Method != "" && f.Method != method {
		return false
	}
	if end, ok := strings.CutSuffix(f.Path, "$"); ok {
		return strings.HasSuffix(path, end)
	}
	return strings.Contains(path, f.Path)
}

// faultBook holds the faults of a file, read again whenever it changed, and
// those added by the test.
type faultBook struct {
	path string

	mu    sync.Mutex
	text  []byte
	file  []countedFault
	added []countedFault
}

type countedFault struct {
	SmolvmFault
	seen int
}

func (b *faultBook) add(f SmolvmFault) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.added = append(b.added, countedFault{SmolvmFault: f})
}

func (b *faultBook) clear() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.added = nil
}

// take counts a request and returns the fault that hits it.
func (b *faultBook) take(method, path string) *SmolvmFault {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.reread()
	var hit *SmolvmFault
	for _, list := range [][]countedFault{b.file, b.added} {
		for i := range list {
			f := &list[i]
			if !f.concerns(method, path) {
				continue
			}
			f.seen++
			late := f.seen - max(f.Nth, 1)
			if hit == nil && late >= 0 && (f.Times < 0 || late < max(f.Times, 1)) {
				hit = &f.SmolvmFault
			}
		}
	}
	return hit
}

// reread starts the counts anew when the file's text changed. A half-written
// file leaves the old faults.
func (b *faultBook) reread() {
	text, err := os.ReadFile(b.path)
	if err != nil {
		b.text, b.file = nil, nil
		return
	}
	if bytes.Equal(text, b.text) {
		return
	}
	var list []SmolvmFault
	if json.Unmarshal(text, &list) != nil {
		return
	}
	b.text, b.file = text, nil
	for _, f := range list {
		b.file = append(b.file, countedFault{SmolvmFault: f})
	}
}

// SmolvmRequest is a line of the request log.
type SmolvmRequest struct {
	Method     string `json:"method"`
	Path       string `json:"path"` // escaped
	Query      string `json:"query,omitempty"`
	Status     int    `json:"status"` // 0 while it runs, and when the connection was dropped
	BodyBytes  int64  `json:"bodyBytes"`
	ReplyBytes int    `json:"replyBytes"`
}

// requestBook keeps the requests in the order of their arrival, and in its
// file in the order of their ends, each before the client has the whole answer.
type requestBook struct {
	path string

	mu   sync.Mutex
	list []SmolvmRequest
}

func (b *requestBook) begin(r *http.Request) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.list = append(b.list, SmolvmRequest{Method: r.Method, Path: r.URL.EscapedPath(), Query: r.URL.RawQuery})
	return len(b.list) - 1
}

func (b *requestBook) end(i int, body int64, status, replied int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := &b.list[i]
	e.Status, e.BodyBytes, e.ReplyBytes = status, body, replied
	line, _ := json.Marshal(e)
	appendFile(b.path, append(line, '\n'))
}

func (b *requestBook) all() []SmolvmRequest {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]SmolvmRequest(nil), b.list...)
}

// appendFile adds to a file in one write; a log that cannot be written is no
// reason to stop.
func appendFile(path string, b []byte) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	if err != nil {
		return
	}
	f.Write(b)
	f.Close()
}
