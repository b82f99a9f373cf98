package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/yamux"
)

// Client is the engine's end of a conversation. Its methods may be called at
// once from many goroutines.
type Client struct {
	conn    net.Conn
	session *yamux.Session
}

// ErrGone is wrapped by errors that mean that the guest no longer listens, so that
// the caller dials anew.
var ErrGone = errors.New("the guest's agent does not answer")

// answerWait is how long one connection waits for the handshake. A guest that was
// still in an old conversation may have eaten the hello, and gets another.
const answerWait = 5 * time.Second

// Dial shakes hands with the guest behind dial, again and again until ctx ends:
// a guest that boots does not listen yet.
func Dial(ctx context.Context, dial func(context.Context) (net.Conn, error)) (*Client, error) {
	for wait := 5 * time.Millisecond; ; wait = min(2*wait, 200*time.Millisecond) {
		c, err := once(ctx, dial)
		if err == nil {
			return c, nil
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, fmt.Errorf("%w: %w (%w)", ErrGone, err, context.Cause(ctx))
		}
	}
}

func once(ctx context.Context, dial func(context.Context) (net.Conn, error)) (*Client, error) {
	conn, err := dial(ctx)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(answerWait))
	err = hello(conn)
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	_ = conn.SetDeadline(time.Time{})
	s, err := yamux.Client(&whole{ReadWriteCloser: conn}, session())
	if err != nil {
		conn.Close()
		return nil, err
	}
	return &Client{conn, s}, nil
}

// Close ends the conversation. Commands in the guest go on.
func (c *Client) Close() error {
	err := c.session.Close()
	c.conn.Close()
	return err
}

// Gone is closed when the conversation has ended.
func (c *Client) Gone() <-chan struct{} { return c.session.CloseChan() }

// open begins a request. Its stream fails when ctx ends, until unwatch is called.
func (c *Client) open(ctx context.Context, req Request) (*yamux.Stream, func() bool, error) {
	st, err := c.session.OpenStream()
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrGone, err)
	}
	unwatch := context.AfterFunc(ctx, func() { _ = st.SetDeadline(time.Now()) })
	f := Frames{W: st}
	if err := f.JSON(Ask, req); err != nil {
		unwatch()
		_ = st.Close()
		return nil, nil, c.broken(ctx, err)
	}
	return st, unwatch, nil
}

// broken says why a stream ended early.
func (c *Client) broken(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return fmt.Errorf("%w: %w", ErrGone, err)
}

// Call asks for something that has only a result.
func (c *Client) Call(ctx context.Context, req Request) (Result, error) {
	st, unwatch, err := c.open(ctx, req)
	if err != nil {
		return Result{}, err
	}
	defer unwatch()
	defer st.Close()
	return c.result(ctx, st)
}

// result reads the end of an answer.
func (c *Client) result(ctx context.Context, st io.Reader) (Result, error) {
	kind, data, err := Next(st, nil)
	if err != nil {
		return Result{}, c.broken(ctx, err)
	}
	return readResult(kind, data)
}

func readResult(kind byte, data []byte) (Result, error) {
	var res Result
	if kind != End || json.Unmarshal(data, &res) != nil || len(res.Entries) > MaxEntries {
		return Result{}, fmt.Errorf("the guest's answer is not one (kind %d, %d bytes)", kind, len(data))
	}
	if res.Error != "" {
		return res, errors.New(res.Error)
	}
	return res, nil
}

// Exec runs a program and gives its output to stdout and stderr as it comes;
// their errors end the wait. The program lives on when ctx ends.
func (c *Client) Exec(ctx context.Context, e Exec, stdin io.Reader, stdout, stderr io.Writer) (Exit, error) {
	return c.run(ctx, Request{Op: "exec", Exec: &e}, stdin, stdout, stderr)
}

// ErrNoJobs says that a guest is of a release that has no jobs. Nothing was begun.
var ErrNoJobs = errors.New("the guest has no jobs: its machine was started by an earlier release")

// Job runs a program as a job, and gives what it answers to stdout and stderr.
func (c *Client) Job(ctx context.Context, e Exec, j Job, stdin io.Reader, stdout, stderr io.Writer) (Exit, error) {
	return c.run(ctx, Request{Op: "job", Exec: &e, Job: &j}, stdin, stdout, stderr)
}

func (c *Client) run(ctx context.Context, req Request, stdin io.Reader, stdout, stderr io.Writer) (Exit, error) {
	st, unwatch, err := c.open(ctx, req)
	if err != nil {
		return Exit{}, err
	}
	var feeding sync.WaitGroup
	defer feeding.Wait()
	defer unwatch()
	defer st.Close() // ends the feeding too
	if req.Job == nil || req.Job.Input == "-" {
		feeding.Go(func() { send(st, stdin) })
	}
	var buf []byte
	for {
		kind, data, err := Next(st, buf)
		if err != nil {
			return Exit{}, c.broken(ctx, err)
		}
		buf = data
		switch kind {
		case Stdout:
			_, err = stdout.Write(data)
		case Stderr:
			_, err = stderr.Write(data)
		case Exited:
			var exit Exit
			if err := json.Unmarshal(data, &exit); err != nil {
				return exit, fmt.Errorf("the guest's answer is not one: %w", err)
			}
			return exit, nil
		case End: // of what it does not know
			return Exit{}, ErrNoJobs
		default:
			err = fmt.Errorf("the guest answered an exec with a frame of kind %d", kind)
		}
		if err != nil {
			return Exit{}, err
		}
	}
}

// send gives a program its input, and says that this was all.
func send(st *yamux.Stream, stdin io.Reader) {
	f := Frames{W: st}
	if stdin != nil {
		if _, err := io.Copy(f.Stream(Stdin), stdin); err != nil {
			return
		}
	}
	_ = f.Write(StdinEnd, nil) // a guest that is through with the program does not care
}

// Read copies a file to the writer that open returns, once its size, or that it
// is a directory, is known. The result is the one that open was given.
func (c *Client) Read(ctx context.Context, f File, open func(Result) (io.Writer, error)) error {
	st, unwatch, err := c.open(ctx, Request{Op: "read", File: &f})
	if err != nil {
		return err
	}
	defer unwatch()
	defer st.Close()
	head, err := c.result(ctx, st)
	if err != nil {
		return err
	}
	if head.Size < 0 || f.Limit > 0 && head.Size > f.Limit {
		return fmt.Errorf("the guest announced %d bytes", head.Size)
	}
	w, err := open(head)
	if err != nil || head.Dir {
		return err
	}
	var buf []byte
	for n := int64(0); ; {
		kind, data, err := Next(st, buf)
		if err != nil {
			return c.broken(ctx, err)
		}
		buf = data
		switch kind {
		case Data:
			if n += int64(len(data)); n > head.Size {
				return fmt.Errorf("the guest sent more than the %d bytes it announced", head.Size)
			}
			if _, err := w.Write(data); err != nil {
				return err
			}
		default:
			if _, err := readResult(kind, data); err != nil {
				return err
			}
			if n != head.Size {
				return fmt.Errorf("the file changed while it was read: %d bytes of %d", n, head.Size)
			}
			return nil
		}
	}
}

// Write makes or replaces a file with all of r. Nothing is changed when r fails.
func (c *Client) Write(ctx context.Context, path string, r io.Reader) (int64, error) {
	st, unwatch, err := c.open(ctx, Request{Op: "write", File: &File{Path: path}})
	if err != nil {
		return 0, err
	}
	defer unwatch()
	defer st.Close()
	f := Frames{W: st}
	src := &reader{r: r}
	_, sendErr := io.CopyBuffer(struct{ io.Writer }{f.Stream(Data)}, src, make([]byte, Chunk))
	if src.err != nil {
		return 0, src.err
	}
	if sendErr == nil {
		sendErr = f.Write(End, nil)
	}
	if sendErr != nil { // the guest may have said why
		_ = st.SetReadDeadline(time.Now().Add(time.Second))
	}
	res, err := c.result(ctx, st)
	return res.Size, err
}

// reader remembers its own error, to tell it from the writer's.
type reader struct {
	r   io.Reader
	err error
}

func (r *reader) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	if err != nil && err != io.EOF {
		r.err = err
	}
	return n, err
}

// Forward joins conn to a port of the guest's loopback until both directions have
// ended. No network card is needed. Conn is closed.
func (c *Client) Forward(ctx context.Context, port int, conn net.Conn) error {
	defer conn.Close()
	st, unwatch, err := c.open(ctx, Request{Op: "dial", Port: port})
	if err != nil {
		return err
	}
	defer unwatch()
	defer st.Close()
	if _, err := c.result(ctx, st); err != nil {
		return err
	}
	return Join(st, conn)
}

// Join copies between a stream and a connection. A yamux stream has no halves that
// end apart, so the end of one direction is a frame.
func Join(st io.ReadWriter, conn net.Conn) error {
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		f := Frames{W: st}
		_, _ = io.Copy(f.Stream(Data), conn)
		_ = f.Write(End, nil)
	}()
	err := receive(st, conn)
	if half, ok := conn.(interface{ CloseWrite() error }); ok && err == nil {
		_ = half.CloseWrite()
	} else {
		conn.Close()
	}
	<-sent
	return err
}

func receive(st io.Reader, w io.Writer) error {
	var buf []byte
	for {
		kind, data, err := Next(st, buf)
		if err != nil || kind == End {
			return err
		}
		if _, err := w.Write(data); err != nil {
			return err
		}
		buf = data
	}
}
