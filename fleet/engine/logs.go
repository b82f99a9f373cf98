//go:build unix

package engine

import (
	"bytes"
	"io"
	"net/http"
	"strconv"
	"time"

	"smol-mcp/fleet/engine/machine"
)

const (
	maxTail     = 10000    // lines
	defaultHead = 64 << 10 // bytes that come when no tail is asked for
)

// logs sends the console as events, a line each.
func (s *server) logs(w http.ResponseWriter, r *call) error {
	name := r.vars["name"]
	query := r.URL.Query()
	tail := -1
	if text := query.Get("tail"); text != "" {
		n, err := strconv.ParseUint(text, 10, 32)
		if err != nil {
			return plain(http.StatusBadRequest, "Failed to deserialize query string: tail: invalid digit found in string")
		}
		if tail = int(n); tail > maxTail {
			return badRequest("tail must be at most %d", maxTail)
		}
	}
	data, end, err := s.machines.Console(name, machine.Oldest)
	if err != nil {
		return err
	}
	if data == nil {
		return &machine.Error{Kind: machine.NotFound, Text: "machine '" + name + "' has not been started"}
	}
	follow := query.Get("follow") == "true"
	if tail < 0 && !follow {
		data = data[:min(len(data), defaultHead)]
	}
	w.Header().Set("Content-Type", "text/event-stream")
	for _, line := range lastLines(data, tail) {
		writeLine(w, line)
	}
	if follow {
		s.follow(w, r, name, end)
	}
	return nil
}

// lastLines splits a console; n below 0 is all. A half-written last line is one too.
func lastLines(data []byte, n int) [][]byte {
	if len(data) == 0 {
		return nil
	}
	lines := bytes.Split(bytes.TrimSuffix(data, []byte("\n")), []byte("\n"))
	if n >= 0 && len(lines) > n {
		lines = lines[len(lines)-n:]
	}
	return lines
}

// writeLine sends a line. What is not UTF-8 in it, or would end it, is replaced: a
// guest writes what it likes.
func writeLine(w io.Writer, line []byte) {
	line = bytes.TrimRight(line, "\r")
	line = bytes.ReplaceAll(bytes.ToValidUTF8(line, []byte("\ufffd")), []byte("\r"), []byte(" "))
	io.WriteString(w, "data: ")
	w.Write(line)
	io.WriteString(w, "\n\n")
}

// follow sends whole lines as they come, until the client goes away or the machine
// is deleted.
func (s *server) follow(w http.ResponseWriter, r *call, name string, at int64) {
	flusher, _ := w.(http.Flusher)
	flush := func() {
		if flusher != nil {
			flusher.Flush()
		}
	}
	flush()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-r.Context().Done():
			return
		case <-s.life.Done():
			return
		}
		data, end, err := s.machines.Console(name, at)
		if err != nil {
			return
		}
		whole := bytes.LastIndexByte(data, '\n') + 1
		for _, line := range lastLines(data[:whole], -1) {
			writeLine(w, line)
		}
		at = end - int64(len(data)-whole)
		flush()
	}
}
