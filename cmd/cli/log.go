package cli

import (
	"context"
	"io"
	"log/slog"
	"time"
)

// quiet is a writer for the log that never fails and never blocks: nobody may
// be reading standard error, or it may be gone with the client. Lines that do
// not fit into its queue are dropped.
type quiet struct {
	lines chan []byte
	done  chan struct{}
}

// newLog returns a logger that writes to w in a format, which is text or json, and what
// to call before the process exits: it waits for the last lines, within a bound.
func newLog(w io.Writer, format string) (*slog.Logger, func()) {
	q := &quiet{lines: make(chan []byte, 256), done: make(chan struct{})}
	go q.copy(w)
	if format == "json" {
		return slog.New(slog.NewJSONHandler(q, nil)), q.close
	}
	return slog.New(slog.NewTextHandler(q, nil)), q.close
}

func (q *quiet) copy(w io.Writer) {
	defer close(q.done)
	for line := range q.lines {
		if line == nil {
			return
		}
		_, _ = w.Write(line)
	}
}

// Write implements io.Writer; slog calls it once a line.
func (q *quiet) Write(p []byte) (int, error) {
	select {
	case q.lines <- append([]byte(nil), p...):
	default:
	}
	return len(p), nil
}

func (q *quiet) close() {
	bound := time.NewTimer(200 * time.Millisecond)
	defer bound.Stop()
	select {
	case q.lines <- nil:
	case <-bound.C:
		return
	}
	select {
	case <-q.done:
	case <-bound.C:
	}
}

// warnings is log without what is below a warning: the SDK tells every step
// of a session as news.
func warnings(log *slog.Logger) *slog.Logger { return slog.New(warningHandler{log.Handler()}) }

type warningHandler struct{ slog.Handler }

func (h warningHandler) Enabled(ctx context.Context, l slog.Level) bool {
	return l >= slog.LevelWarn && h.Handler.Enabled(ctx, l)
}

func (h warningHandler) WithAttrs(a []slog.Attr) slog.Handler {
	return warningHandler{h.Handler.WithAttrs(a)}
}

func (h warningHandler) WithGroup(name string) slog.Handler {
	return warningHandler{h.Handler.WithGroup(name)}
}
