package tools_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"io"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"

	"smol-mcp/fleet"
	"smol-mcp/fleet/fleettest"
)

// parted is a fleet in memory that reads parts of files, as the built-in engine
// does. It counts them.
type parted struct {
	*fleettest.Memory
	parts atomic.Int64
}

func (p *parted) DownloadPart(ctx context.Context, name, path string, w io.Writer, offset, length int64) (fleet.Part, error) {
	p.parts.Add(1)
	before, err := p.Get(ctx, name)
	if err != nil {
		return fleet.Part{}, err
	}
	var all bytes.Buffer
	part := fleet.Part{Started: before.State != fleet.Running}
	if _, err := p.Download(ctx, name, path, &all, 0); err != nil {
		return part, err
	}
	data := all.Bytes()
	part.Size = int64(len(data))
	if offset > 0 && offset >= part.Size {
		return part, fleet.Errorf(fleet.CodeInternal, "read", "the file has %d bytes", part.Size)
	}
	n, err := w.Write(data[offset:min(offset+length, part.Size)])
	part.Bytes = int64(n)
	return part, err
}

// newParted is a rig over a fleet that reads parts.
func newParted(t *testing.T) (*rig, *parted) {
	r := newRig(t, rigOptions{})
	p := &parted{Memory: r.memory}
	r.options.Fleets = []fleet.Fleet{fleet.Retry(p)}
	r.session, r.client = r.connect(rigOptions{})
	return r, p
}

// Pages read as parts are the file, need no command in the guest, and take one
// request each.
func TestPagesAsParts(t *testing.T) {
	r, p := newParted(t)
	name := r.machine(nil)
	random := rand.New(rand.NewPCG(3, 4))
	data := make([]byte, 100_003)
	for i := range data {
		data[i] = byte(random.Uint32())
	}
	r.call("write-file", map[string]any{"name": name, "path": "/tmp/data", "content": base64.StdEncoding.EncodeToString(data), "encoding": "base64"})
	execs := r.memory.Count("Exec")
	for i := range 40 {
		offset, length := random.IntN(len(data)), 1+random.IntN(20_000)
		page := r.call("read-file", map[string]any{"name": name, "path": "/tmp/data", "offset": offset, "length": length, "encoding": "base64"})
		want := data[offset:min(offset+length, len(data))]
		if !bytes.Equal(contentOf(t, page), want) || page["size"] != float64(len(data)) || page["eof"] != (offset+length >= len(data)) {
			t.Fatalf("offset %d length %d: %v bytes of %v, eof %v", offset, length, page["bytes"], page["size"], page["eof"])
		}
		if n := p.parts.Load(); n != int64(i+1) || r.memory.Count("Exec") != execs {
			t.Fatalf("page %d took %d parts and %d commands", i, n, r.memory.Count("Exec")-execs)
		}
	}
	text := strings.Repeat("a€äö😀\n", 300)
	r.call("write-file", map[string]any{"name": name, "path": "/tmp/text", "content": text})
	var all strings.Builder
	for eof := false; !eof; {
		page := r.call("read-file", map[string]any{"name": name, "path": "/tmp/text", "offset": all.Len(), "length": 100})
		all.WriteString(page["content"].(string))
		eof = page["eof"] == true
	}
	if all.String() != text {
		t.Errorf("%d of %d bytes, or not the same", all.Len(), len(text))
	}
}

// What is no part of a file is answered as without parts.
func TestPartsFallBack(t *testing.T) {
	r, _ := newParted(t)
	name := r.machine(nil)
	r.run(name, "mkdir /tmp/d; echo x >/tmp/d/file; : >/tmp/empty")
	if list := r.call("read-file", map[string]any{"name": name, "path": "/tmp/d"})["entries"].([]any); len(list) != 1 {
		t.Errorf("a directory: %v", list)
	}
	if text := r.refused("read-file", map[string]any{"name": name, "path": "/tmp/none"}); !strings.HasPrefix(text, "NOT_FOUND") || !strings.Contains(text, "/tmp") {
		t.Errorf("a missing file: %q", text)
	}
	if past := r.call("read-file", map[string]any{"name": name, "path": "/tmp/d/file", "offset": 100}); past["bytes"] != 0.0 || past["eof"] != true || past["size"] != 2.0 {
		t.Errorf("past the end: %v", past)
	}
	if empty := r.call("read-file", map[string]any{"name": name, "path": "/tmp/empty"}); empty["content"] != "" || empty["eof"] != true {
		t.Errorf("an empty file: %v", empty)
	}
	if text := r.refused("read-file", map[string]any{"name": "none", "path": "/x"}); !strings.HasPrefix(text, "NOT_FOUND") || !strings.Contains(text, "none") {
		t.Errorf("a missing machine: %q", text)
	}
	// Started by a read, told once.
	for _, path := range []string{"/etc/passwd", "/etc"} {
		r.call("stop-machine", map[string]any{"name": name})
		for _, want := range []bool{true, false} {
			if got := r.call("read-file", map[string]any{"name": name, "path": path})["startedMachine"]; got != want {
				t.Errorf("%s: startedMachine is %v, want %v", path, got, want)
			}
		}
	}
	r.call("stop-machine", map[string]any{"name": name})
	if got := r.call("read-file", map[string]any{"name": name, "path": "/etc/passwd"})["startedMachine"]; got != true {
		t.Errorf("startedMachine is %v", got)
	}
	if got := r.run(name, "true")["startedMachine"]; got != false {
		t.Errorf("a command after a read that started the machine says that it did: %v", got)
	}
}
