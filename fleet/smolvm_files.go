package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// maxUpload is the largest file in bytes that smolvm takes over HTTP.
const maxUpload = 100 << 20

// maxGuestPath bounds guest paths in bytes, as Linux does.
const maxGuestPath = 4096

// guestPath checks the absolute path of a file in a guest and returns it escaped
// segment by segment, so that it can reach no route but that of files.
func guestPath(path string) (string, error) {
	switch {
	case !strings.HasPrefix(path, "/"):
		return "", errors.New("the path is not absolute")
	case len(path) > maxGuestPath:
		return "", fmt.Errorf("the path is longer than %d bytes", maxGuestPath)
	case strings.ContainsRune(path, 0) || !utf8.ValidString(path):
		return "", errors.New("the path is not UTF-8 without NUL")
	case strings.HasSuffix(path, "/"):
		return "", errors.New("the path names a directory")
	}
	var out strings.Builder
	for _, segment := range strings.Split(path, "/") {
		switch segment {
		case "":
		case ".", "..":
			return "", fmt.Errorf("the path has a %q segment", segment)
		default:
			out.WriteString("/" + url.PathEscape(segment))
		}
	}
	return out.String(), nil
}

// file makes a request about a file of a guest.
func (s *Smolvm) file(verb, method, name, path string) (request, error) {
	r := request{op: verb + " " + Quote(path) + " of machine " + name, method: method, wait: fileWait, guest: true}
	if err := CheckAnyName(name); err != nil {
		return r, err
	}
	escaped, err := guestPath(path)
	if err != nil {
		return r, r.fail(CodeInvalid, false, err)
	}
	r.path = machinePath(name, "/files"+escaped)
	return r, nil
}

// transferWait is the time for size bytes to pass: a second for each MiB.
func transferWait(size int64) time.Duration {
	return fileWait + time.Duration(max(size, 0)>>20)*time.Second
}

// Download streams a file to w.
func (s *Smolvm) Download(ctx context.Context, name, path string, w io.Writer, limit int64) (int64, error) {
	r, err := s.file("read", http.MethodGet, name, path)
	if err != nil {
		return 0, err
	}
	leave, err := s.guests.enter(ctx, r.op, name, r.wait, true)
	if err != nil {
		return 0, err
	}
	defer leave()
	a, err := s.wire.open(ctx, r)
	if err != nil {
		return 0, err
	}
	defer a.Close()
	// A file is always an octet stream; JSON is how newer releases list a directory.
	if kind := a.Header.Get("Content-Type"); strings.HasPrefix(kind, "application/json") {
		return 0, r.fail(CodeInvalid, false, errors.New("it is a directory"))
	}
	if limit > 0 && a.ContentLength > limit {
		return 0, r.fail(CodeInvalid, false, fmt.Errorf("too large: %d bytes, more than %d", a.ContentLength, limit))
	}
	a.extend(transferWait(a.ContentLength))
	return a.copy(w, limit)
}

// copy writes the body to w, at most limit bytes when limit > 0.
func (a *answer) copy(w io.Writer, limit int64) (int64, error) {
	src := &source{Reader: a.Body}
	if limit > 0 {
		src.Reader = io.LimitReader(a.Body, limit)
	}
	n, err := io.Copy(struct{ io.Writer }{w}, src)
	switch {
	case err != nil && src.err == err:
		return n, a.broken(err)
	case err != nil:
		return n, a.req.fail(CodeInternal, false, fmt.Errorf("its bytes could not be kept: %w", err))
	}
	if limit > 0 && n == limit {
		if extra, _ := io.CopyN(io.Discard, a.Body, 1); extra > 0 {
			return n, a.req.fail(CodeInvalid, false, fmt.Errorf("too large: more than %d bytes", limit))
		}
	}
	return n, nil
}

// source remembers the error of its reader, to tell it from the writer's.
type source struct {
	io.Reader
	err error
}

func (s *source) Read(p []byte) (int, error) {
	n, err := s.Reader.Read(p)
	if err != nil && err != io.EOF {
		s.err = err
	}
	return n, err
}

// Upload makes or replaces a file with size bytes of src. A Read of src that has
// begun is waited for, so that src is the caller's again afterwards.
func (s *Smolvm) Upload(ctx context.Context, name, path string, src io.Reader, size int64) error {
	r, err := s.file("write", http.MethodPut, name, path)
	if err != nil {
		return err
	}
	if size < 0 || size > maxUpload {
		return r.fail(CodeInvalid, false, fmt.Errorf("too large: %d bytes, and one file takes at most %d", size, maxUpload))
	}
	leave, err := s.guests.enter(ctx, r.op, name, r.wait, true)
	if err != nil {
		return err
	}
	defer leave()
	body := &uploadBody{src: src, left: size, closed: make(chan struct{})}
	r.body, r.size, r.effect, r.wait = body, size, true, transferWait(size)
	var out struct {
		Size *int64 `json:"size"`
	}
	err = s.upload(ctx, r, body, &out)
	if err != nil {
		return err
	}
	if out.Size != nil && *out.Size != size {
		return r.fail(CodeInternal, true, fmt.Errorf("%d bytes were sent and %d arrived", size, *out.Size))
	}
	return nil
}

func (s *Smolvm) upload(ctx context.Context, r request, body *uploadBody, out any) error {
	a, err := s.wire.open(ctx, r)
	if r.size > 0 {
		body.wait()
	}
	if short := body.failed(); short != nil {
		if err == nil {
			a.Close()
		}
		return r.fail(CodeInternal, false, fmt.Errorf("the bytes to send could not be read: %w", short))
	}
	if err != nil {
		return err
	}
	defer a.Close()
	data, err := a.read()
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, out); err != nil {
		return r.fail(CodeInternal, true, fmt.Errorf("the answer is not the JSON we know: %w", err))
	}
	return nil
}

// uploadBody gives the transport exactly the announced bytes of src. It remembers
// why src failed, and when the transport is through with it.
type uploadBody struct {
	src    io.Reader
	closed chan struct{}
	once   sync.Once

	mu   sync.Mutex
	left int64
	err  error
}

func (b *uploadBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.left == 0 {
		return 0, io.EOF
	}
	n, err := b.src.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	switch {
	case b.left == 0:
		return n, nil
	case err == io.EOF:
		err = fmt.Errorf("%d bytes are missing: %w", b.left, io.ErrUnexpectedEOF)
	}
	if err != nil {
		b.err = err
	}
	return n, err
}

func (b *uploadBody) Close() error {
	b.once.Do(func() { close(b.closed) })
	return nil
}

// wait waits until the transport has let go of src. After a failed exchange it has;
// when an answer came before the end of the body it still may be reading.
func (b *uploadBody) wait() {
	timer := time.NewTimer(500 * time.Millisecond)
	defer timer.Stop()
	select {
	case <-b.closed:
	case <-timer.C:
	}
}

// failed returns why src gave fewer bytes than announced, when it did.
func (b *uploadBody) failed() error {
	if !b.mu.TryLock() {
		return nil // still being read: the exchange ended for another reason
	}
	defer b.mu.Unlock()
	return b.err
}
