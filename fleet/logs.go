package fleet

import (
	"fmt"
	"unicode/utf8"
)

// LogQuery says which console lines to return.
type LogQuery struct {
	Cursor   string // of an earlier page: the lines after it; empty: the newest ones
	Tail     int    // 1..10000: how many, without a cursor or when its place is lost
	MaxBytes int    // of all lines, an end of line each; 0 sets no bound
}

// LogPage is a run of console lines and where the next one begins.
type LogPage struct {
	Lines  []string
	Cursor string // opaque; give it to the next call, for this machine only
	Gap    bool   // lines between the cursor and Lines may be missing (rotation, restart)
	More   bool   // MaxBytes left lines out: older ones without a cursor, else the next page has them
}

// Fit bounds a page to maxBytes: without a cursor it keeps the newest lines, else
// the oldest. It returns how many lines come before and how many are
// kept. A line that alone is too long is kept, cut and marked, so that reading always moves on.
func (p *LogPage) Fit(maxBytes int, newest bool) (before, kept int) {
	n := len(p.Lines)
	if maxBytes <= 0 || n == 0 {
		return 0, n
	}
	from, to := 0, 0
	if newest {
		from, to = n, n
	}
	for left := maxBytes; ; {
		next := to
		if newest {
			next = from - 1
		}
		if next < 0 || next >= n || len(p.Lines[next])+1 > left {
			break
		}
		left -= len(p.Lines[next]) + 1
		if newest {
			from--
		} else {
			to++
		}
	}
	if from == to {
		if newest {
			from--
		} else {
			to++
		}
		p.Lines[from] = cutTo(p.Lines[from], maxBytes)
		p.More = true
	}
	p.More = p.More || to-from < n
	p.Lines = p.Lines[from:to]
	return from, to - from
}

// cutTo cuts a line to about n bytes and says how many are left out.
func cutTo(line string, n int) string {
	cut := max(0, min(len(line), n-40))
	for cut > 0 && cut < len(line) && !utf8.RuneStart(line[cut]) {
		cut--
	}
	return fmt.Sprintf("%s [%d more bytes of this line]", line[:cut], len(line)-cut)
}
