//go:build unix

// Package qmp asks a running QEMU for things, over the socket of its machine
// protocol. [Dial] connects, [Client.Do] asks.
package qmp

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Client is a connection. QEMU serves one at a time, so it is kept no longer than
// it is needed. Not for use from several goroutines.
type Client struct {
	conn *net.UnixConn
	in   *json.Decoder
}

// Error is a refusal, in QEMU's words.
type Error struct {
	Command string
	Desc    string `json:"desc"`
}

func (e *Error) Error() string { return "QEMU refuses " + e.Command + ": " + e.Desc }

// maxAnswers bounds what is read over one connection in bytes.
const maxAnswers = 64 << 20

// message is what QEMU says: a greeting, an event, or an answer.
type message struct {
	Greeting json.RawMessage `json:"QMP"`
	Event    string          `json:"event"`
	Return   json.RawMessage `json:"return"`
	Error    *Error          `json:"error"`
}

// Dial takes a connection to the socket and makes it ready for commands.
func Dial(ctx context.Context, conn *net.UnixConn) (*Client, error) {
	c := &Client{conn: conn, in: json.NewDecoder(bufio.NewReader(&limited{conn, maxAnswers}))}
	defer c.until(ctx)()
	var m message
	if err := c.in.Decode(&m); err != nil || m.Greeting == nil {
		conn.Close()
		return nil, fmt.Errorf("QEMU does not greet: %w", errors.Join(err, context.Cause(ctx)))
	}
	if err := c.Do(ctx, "qmp_capabilities", nil, nil); err != nil {
		conn.Close()
		return nil, err
	}
	return c, nil
}

type limited struct {
	conn net.Conn
	left int
}

func (l *limited) Read(p []byte) (int, error) {
	if l.left <= 0 {
		return 0, errors.New("QEMU says too much")
	}
	n, err := l.conn.Read(p[:min(len(p), l.left)])
	l.left -= n
	return n, err
}

// Close ends the connection, not QEMU.
func (c *Client) Close() error { return c.conn.Close() }

// Do carries out one command. out, when not nil, takes its answer.
func (c *Client) Do(ctx context.Context, command string, args, out any) error {
	return c.do(ctx, command, args, out, nil)
}

// Pass gives QEMU an open file under a name.
func (c *Client) Pass(ctx context.Context, name string, f *os.File) error {
	return c.do(ctx, "getfd", map[string]string{"fdname": name}, nil, f)
}

func (c *Client) do(ctx context.Context, command string, args, out any, f *os.File) error {
	defer c.until(ctx)()
	ask := map[string]any{"execute": command}
	if args != nil {
		ask["arguments"] = args
	}
	text, err := json.Marshal(ask)
	if err != nil {
		return err
	}
	var rights []byte
	if f != nil {
		rights = unix.UnixRights(int(f.Fd()))
	}
	if _, _, err := c.conn.WriteMsgUnix(append(text, '\n'), rights, nil); err != nil {
		return fmt.Errorf("ask QEMU for %s: %w", command, errors.Join(err, context.Cause(ctx)))
	}
	for {
		var m message
		if err := c.in.Decode(&m); err != nil {
			return fmt.Errorf("QEMU does not answer %s: %w", command, errors.Join(err, context.Cause(ctx)))
		}
		switch {
		case m.Error != nil:
			m.Error.Command = command
			return m.Error
		case m.Event != "" || m.Return == nil:
		case out != nil:
			return json.Unmarshal(m.Return, out)
		default:
			return nil
		}
	}
}

// until lets the connection fail when ctx ends.
func (c *Client) until(ctx context.Context) func() bool {
	_ = c.conn.SetDeadline(time.Time{})
	return context.AfterFunc(ctx, func() { _ = c.conn.SetDeadline(time.Now()) })
}
