package cli

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"regexp"
	"slices"
	"strconv"
)

// lineReader splits a stream into lines of at most max bytes. Of a longer one
// it keeps only what is needed to find out whose it was.
type lineReader struct {
	r    *bufio.Reader
	max  int
	line []byte // reused
}

// longLine is what is kept of a line over the bound.
type longLine struct{ head, tail []byte }

func newLineReader(r io.Reader, max int) *lineReader {
	return &lineReader{r: bufio.NewReaderSize(r, 64<<10), max: max}
}

// next returns a line, or what is left of one that is too long. Both are valid
// until the next call. A line may come with an error: it was the last.
func (l *lineReader) next() (line []byte, cut *longLine, err error) {
	l.line = l.line[:0]
	if cap(l.line) > 1<<20 {
		l.line = nil // after a rare large message, do not keep its memory
	}
	for {
		part, err := l.r.ReadSlice('\n')
		if cut == nil && len(l.line)+len(part) > l.max {
			cut = &longLine{head: slices.Clone(l.line[:min(keptHead, len(l.line))])}
			l.line = nil
		}
		if cut != nil {
			cut.add(part)
		} else {
			l.line = append(l.line, part...)
		}
		if err == bufio.ErrBufferFull {
			continue
		}
		if cut != nil {
			return nil, cut, err
		}
		return l.line, nil, err
	}
}

func (c *longLine) add(part []byte) {
	c.head = append(c.head, part[:min(len(part), keptHead-len(c.head))]...)
	c.tail = append(c.tail, part...)
	if n := len(c.tail) - keptTail; n > 0 {
		c.tail = slices.Clone(c.tail[n:])
	}
}

// lastID matches an id that is the last member of the outermost object. Inside
// a string its quotes would stand behind backslashes, and deeper the line
// would end in two braces.
var lastID = regexp.MustCompile(`[,{]\s*"id"\s*:\s*("(?:[^"\\]|\\.)*"|-?[0-9]+)\s*\}\s*$`)

// id finds the id of the request that the line was: as one of the first
// members, or as the last, where the TypeScript SDK puts it. Nil when it is in
// neither place.
func (c *longLine) id() json.RawMessage {
	if m := lastID.FindSubmatch(c.tail); m != nil {
		return m[1]
	}
	dec := json.NewDecoder(bytes.NewReader(c.head))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return nil
	}
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return nil
		}
		var value json.RawMessage
		if dec.Decode(&value) != nil {
			return nil
		}
		if key == "id" && usableID(value) {
			return value
		}
	}
	return nil
}

// largestID bounds the numbers that every client and server holds exactly.
const largestID = 1 << 53

// usableID reports whether a JSON value may be the id of a request: a string
// or a whole number that survives being held as a float.
func usableID(v []byte) bool {
	if len(v) > 0 && v[0] == '"' {
		return true
	}
	n, err := strconv.ParseInt(string(v), 10, 64)
	return err == nil && n >= -largestID && n <= largestID
}
