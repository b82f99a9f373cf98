package fleet

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
	"time"
)

// wire is one HTTP API: how to reach it, and how to ask. Each request is sent
// once, follows no redirect, and ends by its own deadline.
type wire struct {
	transport http.RoundTripper
	base      string        // scheme and host, no slash at the end
	header    http.Header   // goes with every request
	dialWait  time.Duration // how long a request may wait for a connection
	denied    Code          // what 401 and 403 mean

	// hide takes secrets out of what the server says; nil where there are none.
	hide func(body []byte) []byte
}

// request is one question to a wire.
type request struct {
	op      string // what failed if it fails, as in Error.Op
	method  string
	path    string // escaped, from the slash, with the query
	json    any    // the body, as JSON; POST without one sends {}
	body    io.Reader
	size    int64         // bytes of body
	empty   bool          // a POST has no body at all
	keyless bool          // cloud: it goes without the key
	key     string        // cloud: it goes with this key, whatever is known of it; empty: with the one of now
	header  http.Header   // of this request alone
	before  func()        // called before each sending
	wait    time.Duration // from the connection to the last byte of the answer
	limit   int64         // bytes of a JSON answer; 0 is maxAnswer

	// effect is set when the request changes something, so that a lost answer
	// leaves open whether it was done.
	effect bool
	// twice is set when doing it again does nothing more.
	twice bool
	// guest is set when the guest does the work: servers report all its
	// failures as 500 and tell them apart only in the text.
	guest bool
	// killAfter is when the guest ends the work by itself; 0 when it does not.
	killAfter time.Duration
}

// maxAnswer bounds JSON answers in bytes where a request names no bound.
const maxAnswer = 4 << 20

// drainLimit is how much of an unread answer is read away so that its connection
// can be used again; with more to come the connection is cheaper to drop.
const drainLimit = 256 << 10

// errLate ends a request whose own deadline passed.
var errLate = errors.New("deadline of the request")

// dialError marks an error as one from before anything was sent.
type dialError struct{ error }

func (e dialError) Unwrap() error { return e.error }

// answer is a 2xx reply whose body is still to be read. Close it.
type answer struct {
	*http.Response
	req    request
	parent context.Context
	ctx    context.Context
	cancel context.CancelCauseFunc
	timer  *time.Timer
	kept   bool        // it went through a kept connection
	dialed bool        // it went through a new one
	sent   func() bool // whether any of the request has left
	heads  atomic.Bool // its head was written, perhaps only to a buffer
}

// do sends r and decodes the JSON answer into out.
func (w *wire) do(ctx context.Context, r request, out any) error {
	a, err := w.open(ctx, r)
	if err != nil {
		return err
	}
	defer a.Close()
	data, err := a.read()
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, out); err != nil {
		return r.fail(CodeInternal, r.effect, fmt.Errorf("the answer is not the JSON we know: %w", err))
	}
	return nil
}

// open sends r and returns the answer once its head is there, or the refusal. A
// kept connection can turn out to be one of an engine that has gone; as long as
// nothing of r has left, the next connection gets it. A body that is read only
// once stays with the first.
func (w *wire) open(parent context.Context, r request) (*answer, error) {
	for try := 1; ; try++ {
		a, err := w.once(parent, r)
		switch {
		case err == nil:
			return a, nil
		case a.Response != nil || !a.kept || a.sent() || r.body != nil || CodeOf(err) != CodeUnreachable || try == maxStale:
			return nil, err
		}
	}
}

// maxStale bounds the connections that are tried; more are never kept.
const maxStale = 20

// once sends r on one connection. The answer tells about it also when there is an
// error.
func (w *wire) once(parent context.Context, r request) (*answer, error) {
	a := &answer{req: r, parent: parent}
	a.sent = a.heads.Load
	a.ctx, a.cancel = context.WithCancelCause(parent)
	req, err := w.build(a)
	if err != nil {
		a.cancel(nil)
		return a, r.fail(CodeInternal, false, err)
	}
	a.timer = time.AfterFunc(w.dialWait+r.wait, func() { a.cancel(errLate) })
	if r.before != nil {
		r.before()
	}
	begun := time.Now()
	res, err := w.transport.RoundTrip(req)
	if err != nil {
		a.release()
		return a, a.broken(err)
	}
	a.Response = res
	if res.StatusCode/100 == 2 {
		return a, nil
	}
	defer a.Close()
	body, _ := io.ReadAll(io.LimitReader(res.Body, 64<<10)) // a cut refusal is still the refusal
	if w.hide != nil {
		body = w.hide(body)
	}
	return a, r.refusal(res, body, time.Since(begun), w.denied)
}

// build makes the HTTP request of a. Its deadline begins anew with the
// connection, because getting one may mean starting an engine.
func (w *wire) build(a *answer) (*http.Request, error) {
	r := a.req
	trace := &httptrace.ClientTrace{
		GotConn: func(info httptrace.GotConnInfo) {
			a.kept, a.dialed = info.Reused, !info.Reused
			if c, ok := info.Conn.(*countedConn); ok {
				before := c.wrote.Load()
				a.sent = func() bool { return c.wrote.Load() != before }
			}
			a.timer.Reset(r.wait)
		},
		WroteHeaders: func() { a.heads.Store(true) },
	}
	body, size, kind := r.body, r.size, "application/octet-stream"
	switch {
	case body != nil && size == 0:
		body = http.NoBody
	case body == nil && r.json != nil || r.method == http.MethodPost && !r.empty:
		data := []byte("{}")
		if r.json != nil {
			var err error
			if data, err = json.Marshal(r.json); err != nil {
				return nil, err
			}
		}
		body, size, kind = bytes.NewReader(data), int64(len(data)), "application/json"
	}
	req, err := http.NewRequestWithContext(httptrace.WithClientTrace(a.ctx, trace), r.method, w.base+r.path, body)
	if err != nil {
		return nil, err
	}
	for _, header := range []http.Header{w.header, r.header} {
		for k, v := range header {
			req.Header[k] = v
		}
	}
	if body != nil {
		req.ContentLength = size
		req.Header.Set("Content-Type", kind)
	}
	return req, nil
}

// read returns the whole body, at most the request's limit.
func (a *answer) read() ([]byte, error) {
	limit := a.req.limit
	if limit == 0 {
		limit = maxAnswer
	}
	data, err := io.ReadAll(io.LimitReader(a.Body, limit+1))
	if err != nil {
		return nil, a.broken(err)
	}
	if int64(len(data)) > limit {
		return nil, a.req.fail(CodeInternal, a.req.effect, fmt.Errorf("the answer is larger than %d bytes", limit))
	}
	return data, nil
}

// extend sets the deadline anew, from now.
func (a *answer) extend(wait time.Duration) { a.timer.Reset(wait) }

// Close lets go of the answer; its connection is kept when little is left to read.
func (a *answer) Close() {
	_, _ = io.CopyN(io.Discard, a.Body, drainLimit)
	_ = a.Body.Close()
	a.release()
}

func (a *answer) release() {
	a.timer.Stop()
	a.cancel(nil)
}

// broken says what it means that the exchange ended with err instead of an answer.
func (a *answer) broken(err error) error {
	maybe := a.req.effect && a.sent()
	var own *Error
	var dial dialError
	switch {
	case errors.Is(a.parent.Err(), context.Canceled):
		return a.req.fail(CodeCancelled, maybe, context.Canceled)
	case a.parent.Err() != nil:
		return a.req.fail(CodeTimeout, maybe, fmt.Errorf("the caller's deadline passed: %w", a.parent.Err()))
	case errors.Is(context.Cause(a.ctx), errLate):
		return a.late(maybe)
	case errors.As(err, &own):
		return own
	case errors.As(err, &dial):
		return a.req.fail(CodeUnavailable, false, dial.error)
	}
	return a.req.fail(CodeUnreachable, maybe, fmt.Errorf("the connection broke: %w", err))
}

func (a *answer) late(maybe bool) error {
	if !a.sent() {
		return a.req.fail(CodeTimeout, false, errors.New("no connection in time"))
	}
	why := fmt.Errorf("no answer within %v", a.req.wait)
	if maybe {
		why = fmt.Errorf("no answer within %v; it may still be going on", a.req.wait)
	}
	return a.req.fail(CodeTimeout, maybe, why)
}

// fail makes the Error of r.
func (r request) fail(code Code, maybe bool, err error) *Error {
	return &Error{Code: code, Op: r.op, Why: Bound(err.Error(), MaxWhy), MaybeDone: maybe, Err: err}
}
