//go:build unix

package machine

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func mustAppend(t *testing.T, c *consoleLog, text string) {
	t.Helper()
	if err := c.append([]byte(text)); err != nil {
		t.Fatal(err)
	}
}

// Both files stay within their bound, whatever is printed, and the newest is kept.
func TestConsoleBound(t *testing.T) {
	c := &consoleLog{dir: t.TempDir()}
	line := strings.Repeat("x", 1000)
	last := ""
	for i := range 3 * ConsoleMax / 1000 {
		last = fmt.Sprintf("%s %d\n", line, i)
		mustAppend(t, c, last)
	}
	for _, name := range []string{"console.log", "console.log.1"} {
		if fi, err := os.Stat(filepath.Join(c.dir, name)); err != nil || fi.Size() > ConsoleMax {
			t.Errorf("%s: %v, %v", name, fi, err)
		}
	}
	data, _, err := c.after(Oldest)
	if err != nil || len(data) != ConsoleMax || !bytes.HasSuffix(data, []byte(last)) {
		t.Errorf("%d bytes, %v", len(data), err)
	}
	if all, err := os.ReadDir(c.dir); err != nil || len(all) != 2 {
		t.Errorf("%v, %v", all, err)
	}
}

// Whoever goes on from the end of what was read misses nothing and reads nothing
// twice, also when the file was put aside meanwhile.
func TestConsoleFollowed(t *testing.T) {
	c := &consoleLog{dir: t.TempDir()}
	mustAppend(t, c, "from before\n")
	var read, wrote bytes.Buffer
	wrote.WriteString("from before\n")
	position := int64(Oldest)
	for i := range 400 {
		text := strings.Repeat(fmt.Sprintf("%d-", i), 5000+i)
		mustAppend(t, c, text)
		wrote.WriteString(text)
		if i%7 == 0 {
			data, end, err := c.after(position)
			if err != nil {
				t.Fatal(err)
			}
			read.Write(data)
			position = end
		}
	}
	data, end, err := c.after(position)
	read.Write(data)
	if err != nil || !bytes.Equal(read.Bytes(), wrote.Bytes()) {
		t.Errorf("%d bytes of %d, %v", read.Len(), wrote.Len(), err)
	}
	if data, again, err := c.after(end); err != nil || len(data) > 0 || again != end {
		t.Errorf("%q at %d, %v", data, again, err)
	}
	// Another engine finds what is there.
	other := &consoleLog{dir: c.dir}
	if data, _, err := other.after(Oldest); err != nil || !bytes.HasSuffix(wrote.Bytes(), data) || len(data) == 0 {
		t.Errorf("%d bytes, %v", len(data), err)
	}
}

// A line of the engine's own begins a line.
func TestConsoleNote(t *testing.T) {
	c := &consoleLog{dir: t.TempDir()}
	mustAppend(t, c, "half a line")
	for _, note := range []string{"one", "two"} {
		if err := c.note(note); err != nil {
			t.Fatal(err)
		}
	}
	if data, _, err := c.after(Oldest); err != nil || string(data) != "half a line\nsmol-engine: one\nsmol-engine: two\n" {
		t.Errorf("%q, %v", data, err)
	}
}

func TestStreams(t *testing.T) {
	for version, want := range map[string]bool{
		"7.2.22 (Debian 1:7.2+dfsg-7)": true, "10.0.2": true, "8.0.0": true, "7.10.0": true, "7.1.0": false, "6.2.0 (Debian 1:6.2)": false, "": false, "x": false,
	} {
		if streams(version) != want {
			t.Errorf("%q: want %v", version, want)
		}
	}
	m := &Manager{host: host{version: "6.2.0"}}
	for what, c := range map[string]struct {
		spec Spec
		ok   bool
	}{
		"none": {Spec{}, true}, "an empty list": {Spec{AllowCIDRs: []string{}}, true},
		"open": {Spec{Network: true}, false}, "a list": {Spec{AllowHosts: []string{"a.test"}}, false},
	} {
		if err := m.supports(c.spec); (err == nil) != c.ok || err != nil && !strings.Contains(err.Error(), "7.2") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// A list takes the place of the open network, also an empty one.
func TestPolicyOfSpec(t *testing.T) {
	for what, c := range map[string]struct {
		spec Spec
		card bool
		want string
	}{
		"none":                  {Spec{}, false, "{false [] []}"},
		"open":                  {Spec{Network: true}, true, "{true [] []}"},
		"open with no range":    {Spec{Network: true, AllowCIDRs: []string{}}, true, "{false [] []}"},
		"open with a name":      {Spec{Network: true, AllowHosts: []string{"a.test"}}, true, "{false [a.test] []}"},
		"a range":               {Spec{AllowCIDRs: []string{"1.0.0.0/8"}}, true, "{false [] [1.0.0.0/8]}"},
		"closed, with no range": {Spec{AllowCIDRs: []string{}}, false, "{false [] []}"},
	} {
		p, err := c.spec.policy()
		if err != nil || fmt.Sprint(p) != c.want || c.spec.Networked() != c.card {
			t.Errorf("%s: %v %v, %v", what, p, c.spec.Networked(), err)
		}
	}
}
