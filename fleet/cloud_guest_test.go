package fleet_test

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"smol-mcp/fleet"
	"smol-mcp/fleet/fleettest"
)

func running(t *testing.T, c fleet.Fleet, name string) string {
	t.Helper()
	made(t, c, name)
	if _, err := c.Start(t.Context(), name, fleet.StartOptions{}); err != nil {
		t.Fatal(err)
	}
	return name
}

// More output than the service's text holds comes whole, or with the mark that it
// does not.
func TestCloudOutput(t *testing.T) {
	for _, old := range []bool{false, true} {
		c := cloud(t, fleettest.StartCloud(t, fleettest.CloudOptions{Old: old}))
		running(t, c, "vm")
		for _, size := range []int{1 << 20, 1<<20 + 1, 3 << 20} {
			line := fmt.Sprintf("head -c %d /dev/zero | tr '\\0' x; echo err >&2", size)
			res, err := c.Exec(t.Context(), "vm", fleet.Command{Argv: []string{"sh", "-c", line}, Timeout: time.Minute})
			if err != nil || string(res.Stderr) != "err\n" || res.StderrTruncated {
				t.Fatalf("%d, %v", size, err)
			}
			whole := !old || size <= 1<<20
			if res.StdoutTruncated == whole || (len(res.Stdout) == size) != whole {
				t.Errorf("old %v: %d bytes of %d, truncated %v", old, len(res.Stdout), size, res.StdoutTruncated)
			}
		}
	}
}

// Answers that do not say how a command ended are no success.
func TestCloudStrangeResults(t *testing.T) {
	server := fleettest.StartCloud(t, fleettest.CloudOptions{})
	c := cloud(t, server)
	made(t, c, "vm")
	for _, body := range []string{"", "{}", "[]", "null", `{"stdout":"x"}`, `{"exitCode":null}`, `{"exitCode":"0"}`, `{"exitCode":0,"stdoutB64":"%"}`, "<html>"} {
		server.Fault(fleettest.CloudFault{Method: "POST", Path: "/exec", Status: 200, Body: body})
		if _, err := c.Exec(t.Context(), "vm", run); fleet.CodeOf(err) != fleet.CodeInternal || !fleet.MaybeDone(err) {
			t.Errorf("%q: %v", body, err)
		}
	}
	var sent atomic.Int64
	cmd := run
	cmd.Sent = func() { sent.Add(1) }
	server.Fault(fleettest.CloudFault{Method: "POST", Path: "/exec", Status: 429, Header: map[string]string{"Retry-After": "1"}})
	if _, err := cloud(t, server, by(newClock())).Exec(t.Context(), "vm", cmd); err != nil || sent.Load() != 1 {
		t.Errorf("Sent was called %d times, %v", sent.Load(), err)
	}
}

// W37: no path leads to another route, however it is spelt.
func TestCloudPaths(t *testing.T) {
	server := fleettest.StartCloud(t, fleettest.CloudOptions{})
	c := cloud(t, server)
	running(t, c, "vm")
	for _, bad := range []string{"/../../../account", "/tmp/../../account", "/tmp/./x", "/..", "tmp", "/tmp/", ""} {
		_, err := c.Download(t.Context(), "vm", bad, io.Discard, 0)
		if fleet.CodeOf(err) != fleet.CodeInvalid {
			t.Errorf("%q: %v", bad, err)
		}
	}
	for path, plain := range map[string]string{
		"/tmp/%2e%2e/%2E/x":     "/tmp/%2e%2e/%2E/x",
		"//tmp//two///slashes":  "/tmp/two/slashes",
		"/tmp/a?b=c&d#e;f":      "/tmp/a?b=c&d#e;f",
		"/tmp/ü %2F\\..\\%5c":   "/tmp/ü %2F\\..\\%5c",
		"/tmp/...":              "/tmp/...",
		"/tmp/a\nb\x7f":         "/tmp/a\nb\x7f",
		"/tmp/includeUsage=tr+": "/tmp/includeUsage=tr+",
	} {
		if err := c.Upload(t.Context(), "vm", path, strings.NewReader(path), int64(len(path))); err != nil {
			t.Errorf("%q: %v", path, err)
			continue
		}
		if got, err := server.Guest("vm").ReadFile(plain); err != nil || string(got) != path {
			t.Errorf("%q: %q, %v", path, got, err)
		}
		var got bytes.Buffer
		if _, err := c.Download(t.Context(), "vm", path, &got, 0); err != nil || got.String() != path {
			t.Errorf("%q: %q, %v", path, got.String(), err)
		}
	}
	for _, r := range server.Requests() {
		if !strings.HasPrefix(r.Path, "/v1/machines") && r.Path != "/v1/me" {
			t.Errorf("asked for %s", r.Path)
		}
	}
}

// Files go through commands where there is no route for them, and the route is
// tried once.
func TestCloudFilesByExec(t *testing.T) {
	server := fleettest.StartCloud(t, fleettest.CloudOptions{NoFiles: true, Old: true})
	c := cloud(t, server)
	running(t, c, "vm")
	for _, size := range []int{0, 1, 512 << 10, 512<<10 + 1, 1200 << 10} {
		data := bytes.Repeat([]byte{0xff, 0, '\n', 'x'}, size/4+1)[:size]
		path := fmt.Sprintf("/root/new dir/$(x)'\"%d", size)
		if err := c.Upload(t.Context(), "vm", path, bytes.NewReader(data), int64(size)); err != nil {
			t.Fatal(err)
		}
		var got bytes.Buffer
		if n, err := c.Download(t.Context(), "vm", path, &got, int64(max(size, 1))); err != nil || n != int64(size) || !bytes.Equal(got.Bytes(), data) {
			t.Errorf("%d bytes of %d, %v", n, size, err)
		}
		if size > 1 {
			n, err := c.Download(t.Context(), "vm", path, io.Discard, int64(size-1))
			want(t, err, fleet.CodeInvalid, false, "too large")
			if n > 0 {
				t.Errorf("%d bytes over the limit", n)
			}
		}
	}
	if n := server.Count("PUT", ""); n != 1 {
		t.Errorf("the route was tried %d times", n)
	}
	err := c.Upload(t.Context(), "vm", "/root/short", io.MultiReader(strings.NewReader("abc")), 1<<20)
	want(t, err, fleet.CodeInternal, false, "could not be read")
	if entries, err := server.Guest("vm").List("/root"); err != nil || len(entries) != 1 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

// The directory of a file is made when it is not there, and bytes that can be read
// only once are not lost to that.
func TestCloudUploadParents(t *testing.T) {
	server := fleettest.StartCloud(t, fleettest.CloudOptions{})
	c := cloud(t, server)
	running(t, c, "vm")
	wantSent(t, server, func() { mustNot(t, c.Upload(t.Context(), "vm", "/a/b/c", strings.NewReader("seek"), 4)) },
		"PUT /machines/ID/files/a/b/c", "POST /machines/ID/exec", "PUT /machines/ID/files/a/b/c")
	wantSent(t, server, func() { mustNot(t, c.Upload(t.Context(), "vm", "/a/b/d", strings.NewReader("seek"), 4)) },
		"PUT /machines/ID/files/a/b/d")
	wantSent(t, server, func() { mustNot(t, c.Upload(t.Context(), "vm", "/e/f", io.MultiReader(strings.NewReader("once")), 4)) },
		"POST /machines/ID/exec", "PUT /machines/ID/files/e/f")
	for path, content := range map[string]string{"/a/b/c": "seek", "/e/f": "once"} {
		if got, err := server.Guest("vm").ReadFile(path); err != nil || string(got) != content {
			t.Errorf("%s: %q, %v", path, got, err)
		}
	}
	err := c.Upload(t.Context(), "vm", "/a/b", strings.NewReader("x"), 1) // a directory stands there
	want(t, err, fleet.CodeInvalid, false, "write failed")
}

// Events are told once each, oldest first, though the service gives the newest first
// and many in one second; what it has forgotten is said.
func TestCloudEvents(t *testing.T) {
	server := fleettest.StartCloud(t, fleettest.CloudOptions{})
	c := cloud(t, server)
	made(t, c, "vm")
	var seen []string
	cursor := ""
	for i := range 30 {
		for j := range i % 4 {
			server.Event("vm", "warn", fmt.Sprintf("event %d.%d of\nmany", i, j))
		}
		page, err := c.Logs(t.Context(), "vm", fleet.LogQuery{Cursor: cursor, Tail: 100, MaxBytes: 120})
		if err != nil || page.Gap {
			t.Fatalf("%+v, %v", page, err)
		}
		seen, cursor = append(seen, page.Lines...), page.Cursor
	}
	for more := true; more; {
		page, err := c.Logs(t.Context(), "vm", fleet.LogQuery{Cursor: cursor, Tail: 100, MaxBytes: 120})
		if err != nil {
			t.Fatal(err)
		}
		seen, cursor, more = append(seen, page.Lines...), page.Cursor, page.More
	}
	all, err := c.Logs(t.Context(), "vm", fleet.LogQuery{Tail: 1000})
	if err != nil || !slices.Equal(all.Lines, seen) || len(seen) != 44 {
		t.Errorf("%d lines in pages, %d in all, %v", len(seen), len(all.Lines), err)
	}
	if !strings.HasSuffix(seen[0], "INFO machine created") || !strings.HasSuffix(seen[1], "WARN event 1.0 of many") {
		t.Errorf("%q", seen[:2])
	}
	old, err := c.Logs(t.Context(), "vm", fleet.LogQuery{Tail: 1})
	if err != nil || len(old.Lines) != 1 || old.Lines[0] != seen[len(seen)-1] {
		t.Errorf("%+v, %v", old, err)
	}
	server.Event("vm", "info", "last")
	server.Forget("vm", 44)
	page, err := c.Logs(t.Context(), "vm", fleet.LogQuery{Cursor: old.Cursor, Tail: 10})
	if err != nil || !page.Gap || len(page.Lines) != 1 {
		t.Errorf("after the service forgot: %+v, %v", page, err)
	}
}
