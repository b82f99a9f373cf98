package fleet

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"slices"
)

// logCursor remembers where a reader of a console was: the last lines it saw, by
// their hashes, and how many there had been from the beginning of the log
// where that was known. The count settles what the lines alone
// cannot, when a console repeats itself.
type logCursor struct {
	count int      // lines from the beginning of the log; -1 unknown
	head  lineHash // of the first line of the log, when count > 0
	last  int      // bytes of the newest line, which may have been half written
	run   []lineHash
}

type lineHash [8]byte

// cursorRun is how many lines a cursor remembers.
const cursorRun = 16

func hashLine(line string) lineHash {
	sum := sha256.Sum256([]byte(line))
	return lineHash(sum[:8])
}

var errCursor = errors.New("the cursor is none of this machine's console")

// token renders c as an opaque token that belongs to machine.
func (c logCursor) token(machine string) string {
	data := []byte{1}
	data = binary.AppendVarint(data, int64(c.count))
	data = binary.AppendVarint(data, int64(c.last))
	data = append(data, c.head[:]...)
	for _, h := range c.run {
		data = append(data, h[:]...)
	}
	data = binary.BigEndian.AppendUint32(data, cursorSum(data, machine))
	return base64.RawURLEncoding.EncodeToString(data)
}

func cursorSum(data []byte, machine string) uint32 {
	return crc32.ChecksumIEEE(append([]byte(machine+"\x00"), data...))
}

func parseCursor(token, machine string) (logCursor, error) {
	data, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err != nil || len(data) < 5 || data[0] != 1 {
		return logCursor{}, errCursor
	}
	data, sum := data[:len(data)-4], binary.BigEndian.Uint32(data[len(data)-4:])
	if sum != cursorSum(data, machine) {
		return logCursor{}, errCursor
	}
	var c logCursor
	rest := data[1:]
	for _, field := range []*int{&c.count, &c.last} {
		v, n := binary.Varint(rest)
		if n <= 0 {
			return logCursor{}, errCursor
		}
		*field, rest = int(v), rest[n:]
	}
	if len(rest) < 8 || len(rest)%8 != 0 || len(rest)/8-1 > cursorRun || c.count < -1 || c.last < 0 {
		return logCursor{}, errCursor
	}
	c.head, rest = lineHash(rest), rest[8:]
	for ; len(rest) > 0; rest = rest[8:] {
		c.run = append(c.run, lineHash(rest))
	}
	return c, nil
}

// consoleLog is what a fleet gave of a console: all of it, or its newest lines.
type consoleLog struct {
	lines []string
	whole bool
}

// page returns the newest lines, or what follows from, and the cursor behind
// what it returns.
func (l consoleLog) page(from *logCursor, q LogQuery, machine string) LogPage {
	newest := LogPage{Lines: slices.Clone(l.lines[max(0, len(l.lines)-q.Tail):]), Cursor: l.cursor().token(machine)}
	if from == nil {
		newest.Fit(q.MaxBytes, true)
		return newest
	}
	at, rest, gap := l.find(*from)
	if at < 0 {
		newest.Gap = true
		newest.Fit(q.MaxBytes, true)
		return newest
	}
	page := LogPage{Lines: slices.Clone(l.lines[at:]), Gap: gap}
	if rest != "" { // the end of a line that was half written
		page.Lines = slices.Insert(page.Lines, 0, rest)
		at--
	}
	_, kept := page.Fit(q.MaxBytes, false)
	page.Cursor = l.upTo(at + kept).cursor().token(machine)
	return page
}

// upTo is the console as it was when it had n of its lines.
func (l consoleLog) upTo(n int) consoleLog { return consoleLog{lines: l.lines[:n], whole: l.whole} }

// cursor is the place behind the newest line.
func (l consoleLog) cursor() logCursor {
	c := logCursor{count: -1}
	if l.whole {
		c.count = len(l.lines)
	}
	if len(l.lines) == 0 {
		return c
	}
	if l.whole {
		c.head = hashLine(l.lines[0])
	}
	c.last = len(l.lines[len(l.lines)-1])
	for _, line := range l.lines[max(0, len(l.lines)-cursorRun):] {
		c.run = append(c.run, hashLine(line))
	}
	return c
}

// find returns the index of the first line after c, or -1 when the place of c is
// not there any more. rest is what was added since to the line that was the newest.
// gap is set when the place is in doubt.
func (l consoleLog) find(c logCursor) (at int, rest string, gap bool) {
	if len(c.run) == 0 { // of an empty log: everything is new
		return 0, "", !l.whole
	}
	hashes := make([]lineHash, len(l.lines))
	for i, line := range l.lines {
		hashes[i] = hashLine(line)
	}
	if l.whole && c.count > 0 && c.count <= len(l.lines) && hashes[0] == c.head && c.endsAt(hashes, c.count) {
		return c.count, "", false
	}
	places := 0
	for end := len(hashes); end > 0; end-- {
		if c.endsAt(hashes, end) {
			if places++; places == 1 {
				at = end
			}
		}
	}
	if places > 0 {
		return at, "", places > 1
	}
	return l.findHalf(c, hashes)
}

// findHalf looks for the place where the newest line of c was half written and has
// grown since.
func (l consoleLog) findHalf(c logCursor, hashes []lineHash) (at int, rest string, gap bool) {
	newest := c.run[len(c.run)-1]
	before := logCursor{run: c.run[:len(c.run)-1]}
	for end := len(hashes); end > 0 && c.last > 0; end-- {
		line := l.lines[end-1]
		if len(line) > c.last && before.endsAt(hashes, end-1) && hashLine(line[:c.last]) == newest {
			return end, line[c.last:], false
		}
	}
	return -1, "", true
}

// endsAt reports whether the lines before end are those of c's run.
func (c logCursor) endsAt(hashes []lineHash, end int) bool {
	return end >= len(c.run) && slices.Equal(hashes[end-len(c.run):end], c.run)
}
