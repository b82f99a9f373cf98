package tools

import (
	"encoding/base64"
	"fmt"
	"strconv"
	"unicode/utf8"
)

// resultChars is how many characters of JSON a whole result may have when
// SMOL_MCP_MAX_OUTPUT_BYTES is at its default: a client was seen to put larger results aside.
const (
	resultChars      = 50_000
	defaultMaxOutput = 65_536
	resultOverhead   = 2_500 // field names, paths, marker lines
)

// payloadChars is how many characters of JSON the data in a result may take.
func (l Limits) payloadChars() int {
	return max(resultChars*l.MaxOutputBytes/defaultMaxOutput, 4*resultOverhead) - resultOverhead
}

// An output is what is known of one stream: its size, and all of it or its two ends.
type output struct {
	head, tail []byte // tail is empty when head is all
	total      int64  // bytes
	path       string // guest file with all of it; empty when there is none
	held       int64  // bytes more: the beginning of a character that is still being printed
	cut        bool   // the fleet dropped what followed
	skip       bool   // it is not to be shown
}

// bytes is how much was printed so far.
func (o output) bytes() int64 { return o.total + o.held }

// whole reports whether head is everything.
func (o output) whole() bool { return int64(len(o.head)) >= o.total }

// A shaped stream is what a result says of an output.
type shaped struct {
	text      string
	base64    bool
	truncated bool
}

// shape renders an output in at most budget bytes and chars characters of JSON:
// all of it, or its head, a line with the exact gap, and its tail.
func (o output) shape(budget, chars int) shaped {
	if o.skip {
		return shaped{}
	}
	if o.whole() && len(o.head) <= budget {
		if utf8.Valid(o.head) && jsonLen(o.head) <= chars {
			return shaped{text: string(o.head)}
		}
		if !utf8.Valid(o.head) && base64.StdEncoding.EncodedLen(len(o.head)) <= chars {
			return shaped{text: base64.StdEncoding.EncodeToString(o.head), base64: true}
		}
	}
	head, tail := o.ends(budget, chars)
	if !utf8.Valid(head) || !utf8.Valid(tail) {
		n := min(len(o.head), budget, chars/4*3)
		return shaped{text: base64.StdEncoding.EncodeToString(o.head[:n]), base64: true, truncated: true}
	}
	gap := o.total - int64(len(head)+len(tail))
	mark := fmt.Sprintf("\n[%d bytes left out", gap)
	if o.path != "" {
		mark += "; read-file " + o.path + " from offset " + strconv.Itoa(len(head))
	}
	return shaped{text: string(head) + mark + "]\n" + string(tail), truncated: true}
}

// ends are the first two thirds and the last third of what the budgets allow,
// cut at rune borders.
func (o output) ends(budget, chars int) (head, tail []byte) {
	head = o.head[:fit(o.head, min(budget*2/3, len(o.head)), chars*2/3)]
	rest := o.tail
	if o.whole() {
		rest = o.head[len(head):]
	}
	tail = rest[len(rest)-min(len(rest), budget/3):]
	for jsonLen(tail) > chars/3 {
		tail = tail[max(1, len(tail)/8):]
	}
	for n := 0; n < utf8.UTFMax-1 && len(tail) > 0 && !utf8.RuneStart(tail[0]); n++ {
		tail = tail[1:]
	}
	return head, tail
}

// fit is the largest n up to limit, at a rune border, for which b[:n] takes at
// most chars characters of JSON.
func fit(b []byte, limit, chars int) int {
	used := 0
	for i := 0; i < limit; {
		n, cost := 1, jsonCost(b[i])
		if b[i] >= utf8.RuneSelf {
			if !utf8.FullRune(b[i:]) {
				return i // the rest of it was not fetched
			}
			_, n = utf8.DecodeRune(b[i:])
			cost = n
		}
		used += cost
		if used > chars || i+n > limit {
			return i
		}
		i += n
	}
	return limit
}

// jsonLen is how many bytes b takes inside a JSON string.
func jsonLen(b []byte) int {
	n := 0
	for _, c := range b {
		n += jsonCost(c)
	}
	return n
}

func jsonCost(c byte) int {
	switch {
	case c == '"' || c == '\\' || c == '\n' || c == '\r' || c == '\t' || c == '\b' || c == '\f':
		return 2
	case c < ' ':
		return 6
	}
	return 1
}
