//go:build unix

package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"strconv"
	"strings"

	"smol-mcp/fleet/engine/agent"
	"smol-mcp/fleet/engine/machine"
)

// filePath is the absolute path of a file in the guest.
func filePath(r *call) (string, error) {
	p := r.vars["path"]
	for _, elem := range strings.Split(p, "/") {
		if elem == "." || elem == ".." {
			return "", badRequest("invalid path '%s'", p)
		}
	}
	if len(p) > 4096 || strings.ContainsRune(p, 0) {
		return "", badRequest("invalid path")
	}
	return path.Clean("/" + p), nil
}

// startedHeader tells whether a machine was started for a request about a file.
// smolvm has no such thing.
const startedHeader = "X-Machine-Started"

// openGuest brings a machine to running for a request about a file of it. The answer
// tells whether that took a start.
func (s *server) openGuest(w http.ResponseWriter, r *call) (machine.Guest, func(), error) {
	name := r.vars["name"]
	g, err := detached(s, r, func(ctx context.Context) (machine.Guest, error) { return s.guest(ctx, name, true, nil) })
	if err != nil {
		return g, nil, err
	}
	w.Header().Set(startedHeader, strconv.FormatBool(g.Started))
	leave, err := s.slot(r.Context(), name)
	return g, leave, err
}

// upload streams a body into a file. The file is there when all of it has come.
func (s *server) upload(w http.ResponseWriter, r *call) error {
	p, err := filePath(r)
	if err != nil {
		return err
	}
	if r.ContentLength > fileLimit {
		return plain(http.StatusRequestEntityTooLarge, "Failed to buffer the request body: length limit exceeded")
	}
	c, leave, err := s.openGuest(w, r)
	if err != nil {
		return failed("write file: "+p, err)
	}
	defer leave()
	body := &limited{r: r.Body, left: fileLimit}
	n, err := c.Write(r.Context(), p, body)
	if errors.Is(err, errTooLarge) {
		return plain(http.StatusRequestEntityTooLarge, "Failed to buffer the request body: length limit exceeded")
	}
	if err != nil {
		return failed("write file: "+p, err)
	}
	return answer(w, map[string]any{"path": p, "size": n})
}

var errTooLarge = errors.New("the body is too large")

// limited fails when there is more than it may read.
type limited struct {
	r    io.Reader
	left int64
}

func (l *limited) Read(p []byte) (int, error) {
	n, err := l.r.Read(p)
	if l.left -= int64(n); l.left < 0 {
		return 0, errTooLarge
	}
	return n, err
}

// download streams a file, or the part of it that Range names, and lists a
// directory as JSON.
func (s *server) download(w http.ResponseWriter, r *call) error {
	p, err := filePath(r)
	if err != nil {
		return err
	}
	want := agent.File{Path: p}
	part, err := parseRange(r.Header.Get("Range"))
	if err != nil {
		return err
	}
	if part != nil {
		want.Offset, want.Limit = part.first, part.count
	}
	c, leave, err := s.openGuest(w, r)
	if err != nil {
		return failed("read file: "+p, err)
	}
	defer leave()
	begun := false
	err = c.Read(r.Context(), want, func(head agent.Result) (io.Writer, error) {
		if head.Dir {
			begun = true
			return nil, answer(w, map[string]any{"entries": head.Entries})
		}
		w.Header().Set("Accept-Ranges", "bytes")
		if part != nil && head.Total > 0 && head.Size == 0 {
			w.Header().Set("Content-Range", fmt.Sprintf("bytes */%d", head.Total))
			return nil, plain(http.StatusRequestedRangeNotSatisfiable, "the file has %d bytes", head.Total)
		}
		begun = true
		w.Header().Set("Content-Type", "application/octet-stream")
		w.Header().Set("Content-Length", strconv.FormatInt(head.Size, 10))
		if part != nil && head.Size > 0 { // of an empty file all of it comes
			w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", part.first, part.first+head.Size-1, max(head.Total, part.first+head.Size)))
			w.WriteHeader(http.StatusPartialContent)
		}
		return w, nil
	})
	if err != nil && begun {
		panic(http.ErrAbortHandler) // the client must not take what it has for all
	}
	if err != nil {
		return failed("read file: "+p, err)
	}
	return nil
}

// span is a part of a file in bytes; count 0 is up to the end.
type span struct{ first, count int64 }

// parseRange reads the one form of Range that is offered: bytes=FIRST-[LAST]. Others
// are left alone, as HTTP allows, and the whole file comes.
func parseRange(text string) (*span, error) {
	rest, ok := strings.CutPrefix(text, "bytes=")
	first, last, dash := strings.Cut(rest, "-")
	from, err := strconv.ParseInt(first, 10, 64)
	if !ok || !dash || err != nil || from < 0 {
		return nil, nil
	}
	if last == "" {
		return &span{first: from}, nil
	}
	to, err := strconv.ParseInt(last, 10, 64)
	if err != nil {
		return nil, nil
	}
	if to < from {
		return nil, plain(http.StatusRequestedRangeNotSatisfiable, "the range ends before it begins")
	}
	return &span{from, to - from + 1}, nil
}
