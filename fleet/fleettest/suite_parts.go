package fleettest

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"smol-mcp/fleet"
)

// Parts of files are the bytes that are there, where the fleet reads parts at all.
func testParts(t *testing.T, s *suite) {
	reader, ok := s.Fleet.(fleet.PartReader)
	if !ok {
		t.Skip("the fleet reads no parts of files")
	}
	m := s.running(t, "parts", fleet.StartOptions{})
	const content = "0123456789"
	if err := s.Upload(ctx(t), m.Name, "/tmp/parts", strings.NewReader(content), int64(len(content))); err != nil {
		t.Fatal(err)
	}
	_, err := reader.DownloadPart(ctx(t), m.Name, "/tmp/parts", io.Discard, 0, 1)
	if fleet.CodeOf(err) == fleet.CodeUnsupported {
		t.Skip("the engine reads no parts of files")
	}
	for _, c := range []struct {
		offset, length int64
		want           string
	}{{0, 4, "0123"}, {3, 4, "3456"}, {8, 100, "89"}, {0, 10, content}, {9, 1, "9"}} {
		var got bytes.Buffer
		p, err := reader.DownloadPart(ctx(t), m.Name, "/tmp/parts", &got, c.offset, c.length)
		if err != nil || got.String() != c.want || p != (fleet.Part{Bytes: int64(len(c.want)), Size: int64(len(content))}) {
			t.Errorf("%d bytes from %d on: %q, %+v, %v", c.length, c.offset, got.String(), p, err)
		}
	}
	if err := s.Upload(ctx(t), m.Name, "/tmp/empty", strings.NewReader(""), 0); err != nil {
		t.Fatal(err)
	}
	if p, err := reader.DownloadPart(ctx(t), m.Name, "/tmp/empty", io.Discard, 0, 5); err != nil || p != (fleet.Part{}) {
		t.Errorf("an empty file: %+v, %v", p, err)
	}
	for what, c := range map[string]struct {
		path           string
		offset, length int64
	}{"a missing file": {"/tmp/none", 0, 1}, "a directory": {"/tmp", 0, 1}, "behind the end": {"/tmp/parts", 10, 1}, "nothing": {"/tmp/parts", 0, 0}, "before the start": {"/tmp/parts", -1, 1}} {
		var got bytes.Buffer
		if _, err := reader.DownloadPart(ctx(t), m.Name, c.path, &got, c.offset, c.length); err == nil || got.Len() > 0 {
			t.Errorf("%s: %q, %v", what, got.String(), err)
		}
	}
	if _, err := s.Stop(ctx(t), m.Name, fleet.StopOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []bool{true, false} {
		p, err := reader.DownloadPart(ctx(t), m.Name, "/etc/passwd", io.Discard, 0, 1)
		if err != nil || p.Started != want {
			t.Errorf("started: %+v, %v, want %v", p, err, want)
		}
	}
}
