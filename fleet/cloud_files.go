package fleet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"strings"
	"time"
)

// fileGone are the words by which a missing file is told from a missing machine.
var fileGone = phrases{"file not found", "no such file", "not a directory"}

// maxCloudFile bounds an upload in bytes. The service publishes no bound of its own.
const maxCloudFile = 1 << 30

// cloudFile makes a request about a file: its path is what follows files/, each part
// escaped, so that it can reach no other route.
func cloudFile(verb, method, name, file string) (r request, suffix string, err error) {
	r = request{op: verb + " " + Quote(file) + " of machine " + name, method: method, wait: fileWait}
	if err := CheckAnyName(name); err != nil {
		return r, "", err
	}
	escaped, err := guestPath(file)
	if err != nil {
		return r, "", r.fail(CodeInvalid, false, err)
	}
	return r, "/files" + escaped, nil
}

// Download streams a file to w.
func (c *Cloud) Download(ctx context.Context, name, file string, w io.Writer, limit int64) (n int64, err error) {
	r, suffix, err := cloudFile("read", http.MethodGet, name, file)
	if err != nil {
		return 0, err
	}
	err = c.with(ctx, r.op, name, func(id string) (err error) {
		if !c.can.lacks("/files") {
			r.path = cloudPath(id, suffix)
			n, err = c.download(ctx, r, w, limit)
			if !noRoute(err) {
				return err
			}
		}
		n, err = c.downloadByExec(ctx, r, id, file, w, limit)
		return err
	})
	return n, err
}

// download reads a file by its route. It begins anew only while w has got nothing.
func (c *Cloud) download(ctx context.Context, r request, w io.Writer, limit int64) (n int64, err error) {
	err = c.try(ctx, r, func(a *answer) (bool, error) {
		if limit > 0 && a.ContentLength > limit {
			return false, r.fail(CodeInvalid, false, fmt.Errorf("too large: %d bytes, more than %d", a.ContentLength, limit))
		}
		a.extend(transferWait(a.ContentLength))
		var err error
		n, err = a.copy(w, limit)
		return n == 0, err
	})
	if err == nil {
		c.can.retry("/files")
	}
	return n, err
}

// Upload makes or replaces a file with size bytes of src.
func (c *Cloud) Upload(ctx context.Context, name, file string, src io.Reader, size int64) error {
	r, suffix, err := cloudFile("write", http.MethodPut, name, file)
	if err != nil {
		return err
	}
	if size < 0 || size > maxCloudFile {
		return r.fail(CodeInvalid, false, fmt.Errorf("too large: %d bytes, and one file takes at most %d", size, maxCloudFile))
	}
	r.size, r.effect, r.wait = size, true, transferWait(size)
	return c.with(ctx, r.op, name, func(id string) error {
		r.path = cloudPath(id, suffix)
		return c.upload(ctx, r, id, file, src)
	})
}

// upload sends a file by its route. The service need not make the directory of a
// file: where it refuses, and the bytes can be had again, that is done and the file
// sent once more. Bytes that cannot be had again are sent after it.
func (c *Cloud) upload(ctx context.Context, r request, id, file string, src io.Reader) error {
	if c.can.lacks("/files") {
		return c.uploadByExec(ctx, r, id, file, src)
	}
	rewind, from := rewinder(src)
	if rewind == nil {
		if err := c.makeParent(ctx, r.op, id, file); err != nil {
			return err
		}
		return c.put(ctx, r, src)
	}
	again := func() error {
		if _, err := rewind.Seek(from, io.SeekStart); err != nil {
			return r.fail(CodeInternal, false, fmt.Errorf("the bytes to send could not be read again: %w", err))
		}
		return nil
	}
	err := c.putAgain(ctx, r, src, again)
	switch {
	case noRoute(err):
		c.can.without("/files")
		if err := again(); err != nil {
			return err
		}
		return c.uploadByExec(ctx, r, id, file, src)
	case mayLackParent(err):
		if c.makeParent(ctx, r.op, id, file) != nil {
			return err
		}
		if err := again(); err != nil {
			return err
		}
		return c.putAgain(ctx, r, src, again)
	}
	return err
}

// putAgain sends the bytes, anew where that may help: a file that is written twice
// is the same.
func (c *Cloud) putAgain(ctx context.Context, r request, src io.Reader, again func() error) error {
	r.twice = true
	for n := 1; ; n++ {
		err := c.put(ctx, r, src)
		wait, ok := c.nextTry(ctx, r, err, n) // r has no body yet
		if !ok || mayLackParent(err) {
			return err
		}
		if wait > 0 && c.opts.Pause(ctx, wait) != nil {
			return err
		}
		if err := again(); err != nil {
			return err
		}
	}
}

// put sends the bytes once.
func (c *Cloud) put(ctx context.Context, r request, src io.Reader) error {
	body := &uploadBody{src: src, left: r.size, closed: make(chan struct{})}
	r.body = body
	err := c.tell(ctx, r)
	if r.size > 0 {
		body.wait()
	}
	if short := body.failed(); short != nil {
		return r.fail(CodeInternal, false, fmt.Errorf("the bytes to send could not be read: %w", short))
	}
	return err
}

// rewinder returns src as something that can be read again from where it is now; nil
// when it cannot.
func rewinder(src io.Reader) (io.Seeker, int64) {
	s, ok := src.(io.Seeker)
	if !ok {
		return nil, 0
	}
	at, err := s.Seek(0, io.SeekCurrent)
	if err != nil {
		return nil, 0
	}
	return s, at
}

// mayLackParent reports whether an upload may have failed since the directory is not
// there: the service has no word for it.
func mayLackParent(err error) bool {
	switch statusOf(err) {
	case http.StatusBadRequest, http.StatusNotFound, http.StatusInternalServerError:
		return !gone(err)
	}
	return false
}

// makeParent makes the directory of a file.
func (c *Cloud) makeParent(ctx context.Context, op, id, file string) error {
	dir := path.Dir(file)
	if dir == "/" {
		return nil
	}
	_, err := c.inGuest(ctx, op, id, Command{Argv: []string{"mkdir", "-p", dir}})
	return err
}

// inGuest runs one of our own commands in a guest; it fails when the command does.
func (c *Cloud) inGuest(ctx context.Context, op, id string, cmd Command) (Result, error) {
	cmd.Timeout = 60 * time.Second
	r := request{op: op}
	res, err := c.execOn(ctx, r, id, cmd)
	if err != nil {
		return res, err
	}
	said := strings.TrimSpace(string(res.Stderr))
	switch {
	case res.ExitCode == 0:
		return res, nil
	case fileMissing.in(said):
		return res, r.fail(CodeNotFound, false, errors.New(said))
	case said == "":
		said = fmt.Sprintf("%s ended with exit code %d in the guest", cmd.Argv[0], res.ExitCode)
	}
	return res, r.fail(CodeInvalid, false, errors.New(said))
}
