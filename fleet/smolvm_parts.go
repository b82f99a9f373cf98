package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// PartReader is a [Fleet] that may read parts of files without a command in the
// guest. Which engine can is known only when it runs, so a fleet that has the
// method may still answer Unsupported.
type PartReader interface {
	// DownloadPart writes at most length bytes of a file to w, from offset on. It
	// starts a stopped machine. Unsupported where the engine reads no parts, which
	// costs no request once that is known; Invalid for a directory; an error too
	// where the offset is not before the end of a file that has one.
	DownloadPart(ctx context.Context, name, path string, w io.Writer, offset, length int64) (Part, error)
}

// Part is what DownloadPart found. Started is right with an error too, as far as
// there was an answer.
type Part struct {
	Bytes   int64 // written
	Size    int64 // of the whole file in bytes; what is known of it where the guest does not say
	Started bool  // the machine was started for it
}

// startedHeader is how our own engine marks an answer about a file for which it
// started the machine.
const startedHeader = "X-Machine-Started"

// DownloadPart reads a part of a file where the engine offers it.
func (s *Smolvm) DownloadPart(ctx context.Context, name, path string, w io.Writer, offset, length int64) (Part, error) {
	r, err := s.file("read", http.MethodGet, name, path)
	if err != nil {
		return Part{}, err
	}
	if offset < 0 || length <= 0 {
		return Part{}, r.fail(CodeInvalid, false, fmt.Errorf("no part: %d bytes from %d on", length, offset))
	}
	switch can, err := s.abilities(ctx); {
	case err != nil:
		return Part{}, err
	case !can.parts:
		return Part{}, r.fail(CodeUnsupported, false, errors.New("the engine reads no parts of files"))
	}
	leave, err := s.guests.enter(ctx, r.op, name, r.wait, true)
	if err != nil {
		return Part{}, err
	}
	defer leave()
	asking := s.wire
	asking.header = http.Header{"Range": {fmt.Sprintf("bytes=%d-%d", offset, offset+length-1)}}
	a, err := asking.open(ctx, r)
	if err != nil {
		return Part{}, err
	}
	defer a.Close()
	return a.part(w, offset, length)
}

// part copies what was asked for, and reads from the head how large the file is.
func (a *answer) part(w io.Writer, offset, length int64) (Part, error) {
	p := Part{Started: a.Header.Get(startedHeader) == "true"}
	size := a.ContentLength
	switch kind := a.Header.Get("Content-Type"); {
	case strings.HasPrefix(kind, "application/json"):
		return p, a.req.fail(CodeInvalid, false, errors.New("it is a directory"))
	case a.StatusCode == http.StatusPartialContent:
		first, total, err := contentRange(a.Header.Get("Content-Range"))
		if err != nil || first != offset || a.ContentLength > length {
			return p, a.req.fail(CodeInternal, false, fmt.Errorf("asked for %d bytes from %d on, got %d: %q", length, offset, a.ContentLength, a.Header.Get("Content-Range")))
		}
		size = total
	case offset > 0: // all of the file comes, from another engine than the one that was looked at
		return p, a.req.fail(CodeUnsupported, false, errors.New("the engine reads no parts of files"))
	}
	a.extend(transferWait(length))
	src := &source{Reader: io.LimitReader(a.Body, length)}
	n, err := io.Copy(struct{ io.Writer }{w}, src)
	p.Bytes, p.Size = n, max(size, offset+n)
	switch {
	case err != nil && src.err == err:
		return p, a.broken(err)
	case err != nil:
		return p, a.req.fail(CodeInternal, false, fmt.Errorf("its bytes could not be kept: %w", err))
	}
	return p, nil
}

// contentRange reads "bytes FIRST-LAST/SIZE". The size is -1 where it is not known.
func contentRange(text string) (first, size int64, err error) {
	span, total, _ := strings.Cut(strings.TrimPrefix(text, "bytes "), "/")
	from, _, _ := strings.Cut(span, "-")
	if first, err = strconv.ParseInt(from, 10, 64); err != nil {
		return 0, 0, err
	}
	if total == "*" {
		return first, -1, nil
	}
	size, err = strconv.ParseInt(total, 10, 64)
	return first, size, err
}

// abilities are what the engine can do. What was found out once is enough for what it shows in
// its answer when another engine has taken its place since.
func (s *Smolvm) abilities(ctx context.Context) (*features, error) {
	select {
	case s.served.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, &Error{Code: CodeOf(ctx.Err()), Op: "ask the engine what it can do", Why: ctx.Err().Error(), Err: ctx.Err()}
	}
	known := s.served.known
	<-s.served.turn
	if known != nil {
		return known, nil
	}
	return s.features(ctx)
}

// header reports whether a route takes the header.
func (api openapi) header(method, below, name string) bool {
	var op struct {
		Parameters []struct{ Name, In string }
	}
	data, _ := api.operation(method, below)
	_ = json.Unmarshal(data, &op) // no such route: no parameters
	return slices.ContainsFunc(op.Parameters, func(p struct{ Name, In string }) bool { return p.Name == name && p.In == "header" })
}
