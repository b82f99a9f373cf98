package tools_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"smol-mcp/fleet"
	"smol-mcp/fleet/fleettest"
)

func contentOf(t testing.TB, page map[string]any) []byte {
	t.Helper()
	content := page["content"].(string)
	if page["encoding"] == "utf8" {
		return []byte(content)
	}
	b, err := base64.StdEncoding.DecodeString(content)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// W32: pages end between characters, and together they are the file.
func TestPagesOfText(t *testing.T) {
	r := newRig(t, rigOptions{})
	name := r.machine(nil)
	text := strings.Repeat("a€äö😀\n", 3000)
	r.call("write-file", map[string]any{"name": name, "path": "/tmp/text", "content": text})
	for _, length := range []int{1, 3, 4096, 4097, 1 << 20} {
		var all strings.Builder
		for pages := 0; ; pages++ {
			page := r.call("read-file", map[string]any{"name": name, "path": "/tmp/text", "offset": all.Len(), "length": length})
			all.WriteString(page["content"].(string))
			if page["size"] != float64(len(text)) {
				t.Fatalf("size %v", page["size"])
			}
			if page["eof"] == true || length < 10 && pages > 30 {
				break
			}
		}
		if got := all.String(); got != text[:len(got)] || length > 10 && len(got) != len(text) {
			t.Errorf("pages of %d bytes: %d of %d bytes, or not the same", length, len(got), len(text))
		}
	}
	if text := r.refused("read-file", map[string]any{"name": name, "path": "/tmp/text", "offset": 2}); !strings.Contains(text, "base64") {
		t.Errorf("an offset inside a character: %q", text)
	}
}

// Random bytes, offsets and lengths: what comes back is what is there.
func TestRandomRanges(t *testing.T) {
	r := newRig(t, rigOptions{})
	name := r.machine(nil)
	random := rand.New(rand.NewPCG(1, 2))
	data := make([]byte, 100_003)
	for i := range data {
		data[i] = byte(random.Uint32())
	}
	r.call("write-file", map[string]any{"name": name, "path": "/tmp/data", "content": base64.StdEncoding.EncodeToString(data), "encoding": "base64"})
	for range 60 {
		offset, length := random.IntN(len(data)+100), 1+random.IntN(20_000)
		page := r.call("read-file", map[string]any{"name": name, "path": "/tmp/data", "offset": offset, "length": length, "encoding": "base64"})
		want := data[min(offset, len(data)):min(offset+length, len(data))]
		if !bytes.Equal(contentOf(t, page), want) || page["bytes"] != float64(len(want)) || page["eof"] != (offset+length >= len(data)) {
			t.Fatalf("offset %d length %d: %v bytes, eof %v", offset, length, page["bytes"], page["eof"])
		}
	}
	if all := r.readAll(name, "/tmp/data"); !bytes.Equal(all, data) {
		t.Error("the pages together are not the file")
	}
}

func TestWhatIsNoFile(t *testing.T) {
	r := newRig(t, rigOptions{})
	name := r.machine(nil)
	r.run(name, "mkdir -p '/tmp/d/sub dir' && cd /tmp/d && touch a .hidden $(printf 'new\\nline') && ln -s a link && mkfifo /tmp/fifo")
	read := r.call("read-file", map[string]any{"name": name, "path": "/tmp/d"})
	kinds := map[string]string{}
	for _, e := range read["entries"].([]any) {
		entry := e.(map[string]any)
		kinds[entry["name"].(string)] = entry["kind"].(string)
	}
	want := map[string]string{"a": "file", ".hidden": "file", "sub dir": "directory", "link": "link"}
	for k, v := range want {
		if kinds[k] != v {
			t.Errorf("entry %q is %q, want %q (%v)", k, kinds[k], v, kinds)
		}
	}
	for path, code := range map[string]string{"/tmp/none": "NOT_FOUND", "/tmp/fifo": "INVALID", "relative": "INVALID", "/a/../b": "INVALID", "/a/./b": "INVALID", "/": ""} {
		if code == "" {
			r.call("read-file", map[string]any{"name": name, "path": path})
			continue
		}
		if text := r.refused("read-file", map[string]any{"name": name, "path": path}); !strings.HasPrefix(text, code) {
			t.Errorf("%s: %q", path, text)
		}
	}
	if empty := r.call("read-file", map[string]any{"name": name, "path": "/tmp/d/a"}); empty["content"] != "" || empty["eof"] != true || empty["size"] != 0.0 {
		t.Errorf("an empty file: %v", empty)
	}
	if past := r.call("read-file", map[string]any{"name": name, "path": "/etc/passwd", "offset": 1 << 20}); past["bytes"] != 0.0 || past["eof"] != true {
		t.Errorf("past the end: %v", past)
	}
}

// A replaced file keeps mode and owner, a link is written through, and no reader sees half.
func TestWriteKeepsWhatWasThere(t *testing.T) {
	r := newRig(t, rigOptions{})
	name := r.machine(nil)
	write := func(arguments map[string]any) map[string]any {
		t.Helper()
		arguments["name"] = name
		return r.call("write-file", arguments)
	}
	r.run(name, "echo old >/root/tool; chmod 751 /root/tool; chown 7:8 /root/tool; ln -s tool /root/link")
	write(map[string]any{"path": "/root/link", "content": "new\n"})
	if got := r.run(name, "stat -c '%a %u:%g' /root/tool; cat /root/tool; readlink /root/link")["stdout"]; got != "751 7:8\nnew\ntool\n" {
		t.Errorf("after a write through a link: %q", got)
	}
	write(map[string]any{"path": "/deep/er/file", "content": "x", "mode": "0700"})
	if got := r.run(name, "stat -c %a /deep/er/file")["stdout"]; got != "700\n" {
		t.Errorf("mode: %q", got)
	}
	if out := write(map[string]any{"path": "/deep/er/file", "content": "yz", "append": true}); out["size"] != 3.0 {
		t.Errorf("appended: %v", out)
	}
	if out := write(map[string]any{"path": "/new", "content": ""}); out["size"] != 0.0 || out["sha256"] != "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" {
		t.Errorf("empty: %v", out)
	}
	for what, arguments := range map[string]map[string]any{
		"directory":  {"path": "/root", "content": "x"},
		"bad base64": {"path": "/root/tool", "content": "ab*=", "encoding": "base64"},
		"unpadded":   {"path": "/root/tool", "content": "YQ", "encoding": "base64"},
		"relative":   {"path": "root/tool", "content": "x"},
		"dots":       {"path": "/root/../etc/x", "content": "x"},
		"bad mode":   {"path": "/root/tool", "content": "x", "mode": "99"},
	} {
		arguments["name"] = name
		if text := r.refused("write-file", arguments); !strings.HasPrefix(text, "INVALID") {
			t.Errorf("%s: %q", what, text)
		}
	}
	if got := r.run(name, "cat /root/tool; ls -a / /root /deep/er | grep -c '.smol-mcp-'")["stdout"]; got != "new\n0\n" {
		t.Errorf("left behind: %q", got)
	}
}

// A18: an upload that the workload does not see, since it came up later, is sent again.
func TestHiddenUploadIsRepeated(t *testing.T) {
	r := newRig(t, rigOptions{})
	name := r.machine(nil)
	r.memory.Fault(fleettest.Fault{Method: "Exec", Nth: 1, Times: 1, Hook: func(ctx context.Context) {
		// What lay in /tmp is covered by the workload's own.
		if _, err := r.memory.Stop(ctx, name, fleet.StopOptions{}); err != nil {
			t.Error(err)
		}
	}})
	out := r.call("write-file", map[string]any{"name": name, "path": "/tmp/a", "content": "abc"})
	if out["size"] != 3.0 || r.memory.Count("Upload") != 2 {
		t.Errorf("written: %v with %d uploads", out, r.memory.Count("Upload"))
	}
}

func TestFileResource(t *testing.T) {
	r := newRig(t, rigOptions{})
	name := r.machine(nil)
	r.call("write-file", map[string]any{"name": name, "path": "/tmp/a b%", "content": "text"})
	r.call("write-file", map[string]any{"name": name, "path": "/tmp/raw", "content": "AP8=", "encoding": "base64"})
	read := func(uri string) (*mcp.ReadResourceResult, error) {
		return r.client.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: uri})
	}
	if res, err := read("smol://machine/local/" + name + "/file/tmp/a%20b%25"); err != nil || res.Contents[0].Text != "text" {
		t.Errorf("text: %v %v", res, err)
	}
	if res, err := read("smol://machine/local/" + name + "/file/tmp/raw"); err != nil || !bytes.Equal(res.Contents[0].Blob, []byte{0, 255}) {
		t.Errorf("bytes: %v %v", res, err)
	}
	for _, uri := range []string{"smol://machine/cloud/" + name + "/file/tmp/raw", "smol://machine/local/" + name + "/file/tmp/../etc/passwd",
		"smol://machine/local/" + name + "/file/tmp/%2e%2e/x", "smol://machine/local/none/file/x"} {
		if res, err := read(uri); err == nil {
			t.Errorf("%s was served: %v", uri, res)
		}
	}
	ran := r.try("run-command", map[string]any{"name": name, "command": "yes | head -c 200000"})
	link, ok := ran.Content[1].(*mcp.ResourceLink)
	if !ok {
		t.Fatalf("no link: %v", ran.Content)
	}
	if res, err := read(link.URI); err != nil || len(res.Contents[0].Text) != 200000 {
		t.Errorf("the link %s: %v", link.URI, err)
	}
}
