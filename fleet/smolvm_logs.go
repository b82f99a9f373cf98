package fleet

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
)

const (
	maxTail     = 10000    // lines of a log that smolvm gives at most
	maxLogLine  = 64 << 10 // bytes of a line, the mark of a cut included
	maxLogBytes = 16 << 20 // of all lines together; smolvm rotates at 10 MiB
	lineCut     = " [cut]"
)

// Logs returns console lines. The API has no offsets: a page after a cursor is
// found in the newest lines that it gives.
func (s *Smolvm) Logs(ctx context.Context, name string, q LogQuery) (LogPage, error) {
	r := request{op: "read the console of machine " + name, method: http.MethodGet, wait: logsWait}
	if err := CheckAnyName(name); err != nil {
		return LogPage{}, err
	}
	if q.Tail < 1 || q.Tail > maxTail {
		return LogPage{}, r.fail(CodeInvalid, false, fmt.Errorf("tail %d is not within 1..%d", q.Tail, maxTail))
	}
	var from *logCursor
	want := q.Tail
	if q.Cursor != "" {
		c, err := parseCursor(q.Cursor, name)
		if err != nil {
			return LogPage{}, r.fail(CodeInvalid, false, err)
		}
		from, want = &c, maxTail
	}
	r.path = machinePath(name, fmt.Sprintf("/logs?follow=false&tail=%d", want))
	log, err := s.console(ctx, r, want)
	if CodeOf(err) == CodeNotFound {
		log, err = s.noConsole(ctx, name, err)
	}
	if err != nil {
		return LogPage{}, err
	}
	return log.page(from, q, name), nil
}

// console fetches up to want lines.
func (s *Smolvm) console(ctx context.Context, r request, want int) (consoleLog, error) {
	a, err := s.wire.open(ctx, r)
	if err != nil {
		return consoleLog{}, err
	}
	defer a.Close()
	if kind := a.Header.Get("Content-Type"); !strings.HasPrefix(kind, "text/event-stream") {
		return consoleLog{}, r.fail(CodeInternal, false, fmt.Errorf("the answer is %s, not an event stream", Quote(kind)))
	}
	lines, dropped, err := readEvents(a.Body)
	if err != nil {
		return consoleLog{}, a.broken(err)
	}
	return consoleLog{lines: lines, whole: len(lines) < want && !dropped}, nil
}

// noConsole tells a machine that has not logged anything, because it was never
// started, from one that does not exist.
func (s *Smolvm) noConsole(ctx context.Context, name string, cause error) (consoleLog, error) {
	m, err := s.look(ctx, name)
	if err == nil && m.State == Created {
		return consoleLog{whole: true}, nil
	}
	return consoleLog{}, cause
}

// readEvents reads the data lines of an event stream, a console line each. Lines
// too long are cut and marked; of a stream too long only the newest stay,
// and dropped is set.
func readEvents(src io.Reader) (lines []string, dropped bool, err error) {
	in := bufio.NewReaderSize(src, 32<<10)
	total, first := 0, 0
	for {
		line, err := readLine(in)
		if text, ok := strings.CutPrefix(line, "data:"); ok {
			text = cutLine(strings.TrimPrefix(text, " "))
			lines = append(lines, text)
			for total += len(text); total > maxLogBytes; dropped = true {
				total -= len(lines[first])
				lines[first] = ""
				first++
			}
		}
		if errors.Is(err, io.EOF) {
			return lines[first:], dropped, nil
		}
		if err != nil {
			return nil, false, err
		}
	}
}

// readLine reads a line without its end. Of one that is too long it keeps a little
// more than a console line may have, so that cutLine notices.
func readLine(in *bufio.Reader) (string, error) {
	var line []byte
	for {
		part, err := in.ReadSlice('\n')
		if room := maxLogLine + 64 - len(line); room > 0 {
			line = append(line, part[:min(room, len(part))]...)
		}
		if err != bufio.ErrBufferFull {
			return strings.TrimSuffix(strings.TrimSuffix(string(line), "\n"), "\r"), err
		}
	}
}

// cutLine bounds a line.
func cutLine(line string) string {
	if len(line) <= maxLogLine {
		return line
	}
	return strings.ToValidUTF8(line[:maxLogLine-len(lineCut)], "") + lineCut
}
