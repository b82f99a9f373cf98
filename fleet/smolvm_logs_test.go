package fleet

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// consoleServer serves the lines of a console as smolvm does: the newest tail ones.
func consoleServer(t *testing.T, lines *[]string) *script {
	return serve(t, func(w http.ResponseWriter, r *http.Request) {
		tail, err := strconv.Atoi(r.URL.Query().Get("tail"))
		if err != nil || tail < 1 || tail > 10000 || r.URL.Query().Get("follow") != "false" {
			reply(w, 400, "text/plain", "bad query "+r.URL.RawQuery)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		for _, line := range (*lines)[max(0, len(*lines)-tail):] {
			_, _ = io.WriteString(w, "data: "+line+"\n\n")
		}
	})
}

func numbered(from, to int) []string {
	var out []string
	for i := from; i < to; i++ {
		out = append(out, fmt.Sprintf("[%d] line", i))
	}
	return out
}

func wantPage(t *testing.T, page LogPage, err error, gap bool, lines ...string) {
	t.Helper()
	if err != nil || page.Gap != gap || !slices.Equal(page.Lines, lines) {
		t.Errorf("gap %v, %v, %d lines %.300q\nwant gap %v, %d lines %.300q", page.Gap, err, len(page.Lines), page.Lines, gap, len(lines), lines)
	}
}

// W29: a page after a cursor begins where the one before it ended.
func TestLogPages(t *testing.T) {
	lines := numbered(0, 500)
	s := consoleServer(t, &lines)
	next := func(cursor string) LogPage {
		t.Helper()
		page, err := s.Logs(t.Context(), "vm", LogQuery{Cursor: cursor, Tail: 100})
		if err != nil {
			t.Fatal(err)
		}
		return page
	}
	first := next("")
	wantPage(t, first, nil, false, numbered(400, 500)...)
	same := next(first.Cursor)
	wantPage(t, same, nil, false)
	lines = numbered(0, 750)
	wantPage(t, next(same.Cursor), nil, false, numbered(500, 750)...)
	last := next(first.Cursor)
	wantPage(t, last, nil, false, numbered(500, 750)...)

	lines = numbered(700, 9000) // the beginning is gone, the place is not
	last = next(last.Cursor)
	wantPage(t, last, nil, false, numbered(750, 9000)...)
	lines = numbered(700, 15000) // longer than what is given
	last = next(last.Cursor)
	wantPage(t, last, nil, false, numbered(9000, 15000)...)

	lines = numbered(20000, 20050) // rotated past the place
	gap := next(last.Cursor)
	wantPage(t, gap, nil, true, numbered(20000, 20050)...)
	lines = append(lines, "more")
	wantPage(t, next(gap.Cursor), nil, false, "more")
	lines = nil // emptied
	gap = next(gap.Cursor)
	wantPage(t, gap, nil, true)
	lines = []string{"a", "b"}
	wantPage(t, next(gap.Cursor), nil, false, "a", "b")
}

// A console that repeats itself has no place that its lines alone could tell; how
// many there were does. Where that is not known, the doubt is told.
func TestLogRepeats(t *testing.T) {
	lines := slices.Repeat([]string{"tick"}, 40)
	s := consoleServer(t, &lines)
	all, err := s.Logs(t.Context(), "vm", LogQuery{Tail: 100})
	wantPage(t, all, err, false, lines...)
	few, err := s.Logs(t.Context(), "vm", LogQuery{Tail: 20})
	wantPage(t, few, err, false, lines[:20]...)
	lines = slices.Repeat([]string{"tick"}, 45)
	page, err := s.Logs(t.Context(), "vm", LogQuery{Cursor: all.Cursor, Tail: 100})
	wantPage(t, page, err, false, lines[:5]...)
	page, err = s.Logs(t.Context(), "vm", LogQuery{Cursor: few.Cursor, Tail: 100})
	wantPage(t, page, err, true)
}

// The newest line may be half written when it is read.
func TestLogHalfLine(t *testing.T) {
	lines := append(numbered(0, 30), "Loading")
	s := consoleServer(t, &lines)
	page, err := s.Logs(t.Context(), "vm", LogQuery{Tail: 2})
	wantPage(t, page, err, false, "[29] line", "Loading")
	lines = append(numbered(0, 30), "Loading done", "next")
	page, err = s.Logs(t.Context(), "vm", LogQuery{Cursor: page.Cursor, Tail: 2})
	wantPage(t, page, err, false, " done", "next")
	lines = append(lines, "")
	page, err = s.Logs(t.Context(), "vm", LogQuery{Cursor: page.Cursor, Tail: 2})
	wantPage(t, page, err, false, "")
	lines = append(lines, "", "x")
	page, err = s.Logs(t.Context(), "vm", LogQuery{Cursor: page.Cursor, Tail: 2})
	wantPage(t, page, err, false, "", "x")
}

// Any console, read at any moments: the pages together are the console.
func TestLogPagesAddUp(t *testing.T) {
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 1))
		var lines, read []string
		s := consoleServer(t, &lines)
		cursor := ""
		for range 30 {
			for range r.IntN(30) {
				lines = append(lines, strconv.Itoa(r.IntN(1+int(seed%5)))) // few different lines
			}
			page, err := s.Logs(t.Context(), "vm", LogQuery{Cursor: cursor, Tail: 10000})
			if err != nil || page.Gap {
				t.Fatalf("seed %d: gap %v, %v", seed, page.Gap, err)
			}
			read, cursor = append(read, page.Lines...), page.Cursor
		}
		if !slices.Equal(read, lines) {
			t.Errorf("seed %d: read %d lines of %d", seed, len(read), len(lines))
		}
	}
}

// W30: a line of any length is cut and marked, never dropped, and memory is bounded.
func TestLogLongLines(t *testing.T) {
	long := strings.Repeat("ä", 1<<20)
	lines := []string{"before", long, strings.Repeat("b", maxLogLine), "", " indented", "data: x", "after"}
	s := consoleServer(t, &lines)
	page, err := s.Logs(t.Context(), "vm", LogQuery{Tail: 100})
	if err != nil || len(page.Lines) != len(lines) {
		t.Fatalf("%d lines, %v", len(page.Lines), err)
	}
	cut := page.Lines[1]
	if len(cut) > maxLogLine || !strings.HasSuffix(cut, "ä"+lineCut) || !strings.HasPrefix(long, strings.TrimSuffix(cut, lineCut)) {
		t.Errorf("cut to %d bytes: %.20q ... %q", len(cut), cut, cut[len(cut)-20:])
	}
	page.Lines[1], lines[1] = "", ""
	if !slices.Equal(page.Lines, lines) {
		t.Error("the lines around it are not as they were")
	}

	lines = slices.Repeat([]string{strings.Repeat("c", maxLogLine)}, 400) // 25 MiB
	lines = append(lines, "the newest")
	page, err = s.Logs(t.Context(), "vm", LogQuery{Tail: 10000})
	total := 0
	for _, line := range page.Lines {
		total += len(line)
	}
	if err != nil || total > maxLogBytes || total < maxLogBytes-2*maxLogLine || page.Lines[len(page.Lines)-1] != "the newest" {
		t.Errorf("%d lines of %d bytes, %v", len(page.Lines), total, err)
	}
}

func TestLogStream(t *testing.T) {
	for stream, want := range map[string][]string{
		"": nil, ": keep-alive\n\n": nil, "data: a\n\ndata:b\n\n": {"a", "b"}, "event: x\ndata: a\ndata: b\nid: 3\n\n": {"a", "b"},
		"data: a\r\n\r\n": {"a"}, "data: unfinished": {"unfinished"}, "data:\n\ndata: \n\n": {"", ""},
	} {
		lines, _, err := readEvents(strings.NewReader(stream))
		if err != nil || !slices.Equal(lines, want) {
			t.Errorf("%q became %q, %v", stream, lines, err)
		}
	}
}

func TestLogRefusals(t *testing.T) {
	created := strings.Replace(vm, "running", "created", 1)
	missing := refused(404, "no log file", "NOT_FOUND")
	page, err := serve(t, inOrder(missing, ok(created))).Logs(t.Context(), "vm", LogQuery{Tail: 10})
	wantPage(t, page, err, false)
	_, err = serve(t, inOrder(missing, ok(vm))).Logs(t.Context(), "vm", LogQuery{Tail: 10})
	wantErr(t, err, CodeNotFound, false, "no log file")
	_, err = serve(t, inOrder(missing, missing)).Logs(t.Context(), "vm", LogQuery{Tail: 10})
	wantErr(t, err, CodeNotFound, false)
	_, err = serve(t, inOrder(ok(`{}`))).Logs(t.Context(), "vm", LogQuery{Tail: 10})
	wantErr(t, err, CodeInternal, false, "event stream")
}

// A cursor is of one machine, and any change to it is noticed.
func TestCursor(t *testing.T) {
	c := logCursor{count: -1, last: 5, run: []lineHash{hashLine("a"), hashLine("b")}}
	token := c.token("vm")
	if back, err := parseCursor(token, "vm"); err != nil || fmt.Sprint(back) != fmt.Sprint(c) {
		t.Errorf("%+v, %v", back, err)
	}
	if _, err := parseCursor(token, "vm-2"); err == nil {
		t.Error("another machine takes it")
	}
	for i := range token {
		for _, b := range []byte("Az9_ .") {
			other := token[:i] + string(b) + token[i+1:]
			if _, err := parseCursor(other, "vm"); err == nil && other != token {
				t.Errorf("%s passed for %s", other, token)
			}
		}
		if _, err := parseCursor(token[:i], "vm"); err == nil {
			t.Errorf("%s passed", token[:i])
		}
	}
	if len(logCursor{run: slices.Repeat(c.run, 8)}.token("vm")) > 256 {
		t.Error("a cursor is longer than 256 bytes")
	}
}

func FuzzCursor(f *testing.F) {
	f.Add("AQ")
	f.Add(logCursor{count: 3, last: 1, run: []lineHash{{1}}}.token("vm"))
	log := consoleLog{lines: numbered(0, 40), whole: true}
	f.Fuzz(func(t *testing.T, token string) {
		if c, err := parseCursor(token, "vm"); err == nil {
			log.page(&c, LogQuery{Tail: 10}, "vm")
		}
	})
}

// W30: over the bound nothing is lost: pages after a cursor give the oldest lines
// first, and go on where they ended.
func TestLogPagesWithinBytes(t *testing.T) {
	lines := numbered(0, 10)
	s := consoleServer(t, &lines)
	first, err := s.Logs(t.Context(), "vm", LogQuery{Tail: 100})
	if err != nil {
		t.Fatal(err)
	}
	lines = append(numbered(0, 200), strings.Repeat("x", 5000))
	lines = append(lines, numbered(300, 310)...)
	cursor, all := first.Cursor, []string{}
	for more := true; more; {
		page, err := s.Logs(t.Context(), "vm", LogQuery{Cursor: cursor, Tail: 100, MaxBytes: 300})
		if err != nil || page.Gap || len(page.Lines) == 0 {
			t.Fatalf("%+v, %v", page, err)
		}
		size := 0
		for _, line := range page.Lines {
			size += len(line) + 1
		}
		if size > 301 {
			t.Errorf("a page of %d bytes", size)
		}
		all, cursor, more = append(all, page.Lines...), page.Cursor, page.More && len(all) < 1000
	}
	want := slices.Clone(lines[10:])
	want[190] = fmt.Sprintf("%s [%d more bytes of this line]", strings.Repeat("x", 260), 4740)
	// The page of the long line has more to come only after it.
	rest, err := s.Logs(t.Context(), "vm", LogQuery{Cursor: cursor, Tail: 100})
	if err != nil {
		t.Fatal(err)
	}
	if all = append(all, rest.Lines...); !slices.Equal(all, want) {
		t.Errorf("%d lines, want %d: %.200q", len(all), len(want), all[185:])
	}
	newest, err := s.Logs(t.Context(), "vm", LogQuery{Tail: 100, MaxBytes: 60})
	if err != nil || !newest.More || !slices.Equal(newest.Lines, numbered(305, 310)) {
		t.Errorf("%+v, %v", newest, err)
	}
}
