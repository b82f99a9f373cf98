package fleet

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// Code says what kind of failure an [Error] is, in the words of the tool
// contract.
type Code string

// Refusals of the request: nothing was changed.
const (
	CodeNotFound    Code = "NOT_FOUND"   // no machine, file or image of that name
	CodeConflict    Code = "CONFLICT"    // the name is taken, or the state forbids it
	CodeInvalid     Code = "INVALID"     // the request breaks a rule or a bound
	CodeUnsupported Code = "UNSUPPORTED" // this fleet or release cannot do it
	CodeQuota       Code = "QUOTA"       // a limit of the account or of the settings
	CodePortInUse   Code = "PORT_IN_USE" // a published port is taken

	CodeTimeoutTooLong Code = "TIMEOUT_TOO_LONG" // over the ceiling of the settings
)

// Failures to get the work done. Whether it may have been done all the same is
// in [Error.MaybeDone].
const (
	CodeNotReady           Code = "NOT_READY"         // the machine does not answer yet
	CodeTimeout            Code = "TIMEOUT"           // a deadline passed
	CodeCancelled          Code = "CANCELLED"         // the caller went away
	CodeUnavailable        Code = "LOCAL_UNAVAILABLE" // no engine answers and none could be started
	CodeCloudNotConfigured Code = "CLOUD_NOT_CONFIGURED"
	CodeCloudUnauthorized  Code = "CLOUD_UNAUTHORIZED"
	CodeRateLimited        Code = "RATE_LIMITED"
	CodeUnreachable        Code = "UNREACHABLE" // the connection broke, or the guest is silent
	CodeInternal           Code = "INTERNAL"    // the fleet failed and does not say why in a way we know
)

// Error is a failure of a fleet. Its text has up to three parts: what failed,
// why in the server's own words, and what to do next.
type Error struct {
	Code Code
	Op   string // what failed, as "create machine mcp-x"
	Why  string // the server's words or the cause, at most MaxWhy bytes
	Next string // what to do; empty when the caller knows better

	// MaybeDone is set when the request was sent and its outcome was not seen:
	// it may have been carried out, or may be going on.
	MaybeDone bool

	// Err is the cause, when there is one; never shown beside Why.
	Err error

	status int           // of the HTTP answer that was the refusal; 0 when there was none
	after  time.Duration // the server asks to be left alone for so long; 0 when it does not say
}

// MaxWhy bounds [Error.Why] in bytes.
const MaxWhy = 1024

// Error returns what failed and why, without the code and the next step.
func (e *Error) Error() string {
	if e.Why == "" {
		return e.Op
	}
	return e.Op + ": " + e.Why
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Errorf makes an Error whose Why is the formatted text. A cause given with %w
// is kept.
func Errorf(code Code, op, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Code: code, Op: op, Why: Bound(err.Error(), MaxWhy), Err: errors.Unwrap(err)}
}

// CodeOf returns the code of the first Error in err's chain; Cancelled and
// Timeout for the errors of a context; Internal for anything else. It is empty
// for nil.
func CodeOf(err error) Code {
	var e *Error
	switch {
	case err == nil:
		return ""
	case errors.As(err, &e):
		return e.Code
	case errors.Is(err, context.Canceled):
		return CodeCancelled
	case errors.Is(err, context.DeadlineExceeded):
		return CodeTimeout
	}
	return CodeInternal
}

// MaybeDone reports whether the failed request may have been carried out.
func MaybeDone(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.MaybeDone
}

// Bound returns s with control characters made spaces and at most n bytes, cut at a
// rune border and marked where it was cut. Server texts pass through it
// before anybody sees them.
func Bound(s string, n int) string {
	s = strings.TrimSpace(strings.Map(func(r rune) rune {
		if r < ' ' && r != '\n' && r != '\t' || r == 0x7f || r == utf8.RuneError {
			return ' '
		}
		return r
	}, s))
	if len(s) <= n {
		return s
	}
	const mark = " [cut]"
	cut := n - len(mark)
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + mark
}
