package fleettest

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"smol-mcp/fleet"
)

// MaxOutput is how many bytes a guest's command may write to each of its two
// streams, as in smolvm.
const MaxOutput = 11 << 20

// GuestOptions say what kind of guest to make. The zero value is a bare
// machine with every applet of busybox.
type GuestOptions struct {
	// Image makes the guest answer like a machine with an image: what cannot be
	// run is an exit code and a line on stderr, where a bare machine has
	// an error, and too much output is cut, where a bare machine has an error.
	Image bool

	// NoShell makes a guest like one of a distroless image: no shell, no
	// true, only the programs cat and echo.
	NoShell bool

	// Busybox is a copy of busybox to hard link, so that many guests share one
	// file; it is made when there is none. Empty: each guest has its own.
	Busybox string
}

// ErrOutput is returned by a bare guest for a command that wrote more than MaxOutput.
var ErrOutput = errors.New("command output exceeded 11534336 bytes")

// ErrNotRegular is returned for reading a directory, a device or a pipe.
var ErrNotRegular = errors.New("not a regular file")

// NewGuest makes a guest for the time of a test. The test fails where none can be
// made.
func NewGuest(t testing.TB, opts GuestOptions) *Guest {
	t.Helper()
	g, err := OpenGuest(filepath.Join(t.TempDir(), "root"), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
	return g
}

// Exec runs a command like [Guest.Run], and stops waiting for it when ctx
// ends; the command goes on until its own Timeout.
func (g *Guest) Exec(ctx context.Context, cmd fleet.Command) (fleet.Result, error) {
	type outcome struct {
		res fleet.Result
		err error
	}
	done := make(chan outcome, 1)
	go func() { // ends with the command; Close kills it
		res, err := g.Run(cmd)
		done <- outcome{res, err}
	}()
	select {
	case o := <-done:
		return o.res, o.err
	case <-ctx.Done():
		return fleet.Result{}, ctx.Err()
	}
}

// osWords is an error of the operating system in the words of smolvm's agent,
// which is written in Rust; other errors stay as they are.
func osWords(err error) error {
	var no syscall.Errno
	if !errors.As(err, &no) {
		return err
	}
	text := no.Error()
	return &wordedError{fmt.Sprintf("%s (os error %d)", strings.ToUpper(text[:1])+text[1:], int(no)), no}
}

// wordedError is a cause in other words.
type wordedError struct {
	text string
	err  error
}

func (e *wordedError) Error() string { return e.text }
func (e *wordedError) Unwrap() error { return e.err }
