package tools

import (
	"encoding/base64"
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"
)

// Whatever the bytes and budgets, a shaped stream keeps to them, and its parts
// are the stream's own.
func TestShapeProperties(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 7))
	for range 5000 {
		data := stream(random)
		budget := 1 + random.IntN(3000)
		chars := 200 + random.IntN(6000)
		full := output{head: data, total: int64(len(data)), path: "/tmp/x"}
		if random.IntN(2) == 0 && len(data) > 200 {
			full.head, full.tail = data[:len(data)/2], data[len(data)-len(data)/3:]
		}
		s := full.shape(budget, chars)
		raw, err := jsonText(s.text)
		if err != nil || !json.Valid(raw) || !utf8.ValidString(s.text) {
			t.Fatalf("no JSON of %q: %v", s.text, err)
		}
		if len(raw) > chars+200 { // 200 for the line between
			t.Fatalf("%d characters for a budget of %d (base64 %v)", len(raw), chars, s.base64)
		}
		checkParts(t, data, s)
	}
}

func stream(random *rand.Rand) []byte {
	alphabets := []string{"abc\n", "äöü€😀x", "\"\\\n", "\x01\x02a"}
	var b strings.Builder
	n := random.IntN(6000)
	if random.IntN(4) == 0 {
		raw := make([]byte, n)
		for i := range raw {
			raw[i] = byte(random.Uint32())
		}
		return raw
	}
	letters := []rune(alphabets[random.IntN(len(alphabets))])
	for b.Len() < n {
		b.WriteRune(letters[random.IntN(len(letters))])
	}
	return []byte(b.String())
}

func checkParts(t *testing.T, data []byte, s shaped) {
	t.Helper()
	if s.base64 {
		part, err := base64.StdEncoding.DecodeString(s.text)
		if err != nil || !strings.HasPrefix(string(data), string(part)) || !s.truncated && len(part) != len(data) {
			t.Fatalf("base64 is not the stream's: %v", err)
		}
		return
	}
	if !s.truncated {
		if s.text != string(data) {
			t.Fatal("a whole stream was changed")
		}
		return
	}
	i := strings.LastIndex(s.text, "\n[")
	head, rest := s.text[:i], s.text[i:]
	_, tail, found := strings.Cut(rest, "]\n")
	if !found || !strings.HasPrefix(string(data), head) || !strings.HasSuffix(string(data), tail) {
		t.Fatalf("the parts are not the stream's: %q", s.text)
	}
}

func TestSignals(t *testing.T) {
	for code, want := range map[int]string{0: "", 1: "", 128: "", 137: "KILL", 143: "TERM", 139: "SEGV", 128 + 40: "40", 255: ""} {
		if got := signalOf(code); got != want {
			t.Errorf("%d is %q, want %q", code, got, want)
		}
	}
}

func TestDistance(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"a", "", 1}, {"", "abc", 3}, {"kitten", "sitting", 3}, {"same", "same", 0}} {
		if got := Distance(c.a, c.b); got != c.want {
			t.Errorf("%q to %q: %d, want %d", c.a, c.b, got, c.want)
		}
	}
}

// An answer that was cut off on the way loses nothing silently: its mark is no output, and what
// came last is not taken for the stream's end.
func TestCutLook(t *testing.T) {
	p := part{count: 1, tail: 2}
	whole := strings.Repeat("a", block) + strings.Repeat("y", block) + "end\n"
	for answer, tail := range map[string]string{whole + "smol1 end\n": strings.Repeat("y", block) + "end\n", whole[:block+100] + "smol1 cut\n": "", whole[:block+100]: ""} {
		r := reply{line: strings.Fields("exit 0 1 2 - - 0 60 40964 0"), stdout: []byte("/tmp/x\n" + answer), stderr: []byte("smol1 end\n")}
		s, err := r.standing()
		if err != nil {
			t.Fatal(err)
		}
		if o := s.output(0, p); string(o.head) != whole[:block] || string(o.tail) != tail || o.total != 40964 {
			t.Errorf("%d bytes of head, tail %.20q, total %d", len(o.head), o.tail, o.total)
		}
	}
	r := reply{line: strings.Fields("exit 0 1 2 - - 0 60 100 0"), stdout: []byte("/tmp/x\nabcsmol1 cut\n"), stderr: []byte("smol1 end\n")}
	if s, err := r.standing(); err != nil || string(s.output(0, p).head) != "abc" {
		t.Errorf("a short one: %v, %v", s, err)
	}
}
