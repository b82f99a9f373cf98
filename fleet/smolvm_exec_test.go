package fleet

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestExecBody(t *testing.T) {
	for _, c := range []struct {
		cmd  Command
		want string
	}{
		{Command{Argv: []string{"true"}, Timeout: time.Second}, `{"command":["true"],"timeoutSecs":1}`},
		{Command{Argv: []string{"a", ""}, Timeout: 1500 * time.Millisecond}, `{"command":["a",""],"timeoutSecs":2}`},
		{Command{Argv: []string{"a"}, Timeout: 900 * time.Second, Workdir: "/w", Stdin: "in", Env: map[string]string{"Z": "1", "_a": "2", "A": "3"}},
			`{"command":["a"],"env":[{"name":"A","value":"3"},{"name":"Z","value":"1"},{"name":"_a","value":"2"}],"workdir":"/w","timeoutSecs":900,"stdin":"in"}`},
	} {
		s := serve(t, says(200, "application/json", `{"exitCode":0,"stdout":"","stderr":"","stdoutB64":"","stderrB64":""}`))
		if _, err := s.Exec(t.Context(), "Foreign_VM", c.cmd); err != nil {
			t.Error(err)
		}
		if got := s.requests(); len(got) != 1 || got[0] != "POST /api/v1/machines/Foreign_VM/exec "+c.want {
			t.Errorf("sent %s\nwant %s", got, c.want)
		}
	}
}

func TestExecRefuses(t *testing.T) {
	s := serve(t, says(500, "text/plain", "not to be reached"))
	for what, change := range map[string]func(*Command){
		"no argv": func(c *Command) { c.Argv = []string{} }, "empty program": func(c *Command) { c.Argv = []string{""} },
		"NUL in argv": func(c *Command) { c.Argv = []string{"a", "b\x00"} }, "bytes in argv": func(c *Command) { c.Argv = []string{"\xff"} },
		"relative workdir": func(c *Command) { c.Workdir = "tmp" }, "negative timeout": func(c *Command) { c.Timeout = -1 },
		"bytes on stdin": func(c *Command) { c.Stdin = "\xff" }, "env name": func(c *Command) { c.Env = map[string]string{"ä": ""} },
		"env value": func(c *Command) { c.Env = map[string]string{"A": "\xff"} },
	} {
		cmd := Command{Argv: []string{"true"}, Timeout: time.Second}
		change(&cmd)
		_, err := s.Exec(t.Context(), "vm", cmd)
		if CodeOf(err) != CodeInvalid || len(s.requests()) > 0 {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// W32, B3: the exact bytes are taken, and no exit code is made up.
func TestExecAnswer(t *testing.T) {
	for _, c := range []struct {
		answer string
		want   *Result // nil: an error
	}{
		{`{"exitCode":3,"stdout":"\ufffd","stderr":"","stdoutB64":"/wA=","stderrB64":""}`, &Result{ExitCode: 3, Stdout: []byte{0xff, 0}, Stderr: []byte{}}},
		{`{"exitCode":137,"stdout":"a","stderr":"b"}`, &Result{ExitCode: 137, Stdout: []byte("a"), Stderr: []byte("b")}},
		{`{"exitCode":0,"stdout":"a","stdoutB64":null,"stderr":"b","stderrB64":"Yw=="}`, &Result{ExitCode: 0, Stdout: []byte("a"), Stderr: []byte("c")}},
		{`{"stdout":"a","stderr":""}`, nil},
		{`{"exitCode":null,"stdout":"a","stderr":""}`, nil},
		{`{"exitCode":0,"stdoutB64":"?","stderrB64":""}`, nil},
		{`{"exitCode":0`, nil},
		{``, nil},
	} {
		s := serve(t, says(200, "application/json", c.answer))
		res, err := s.Exec(t.Context(), "vm", Command{Argv: []string{"x"}, Timeout: time.Second})
		if c.want == nil {
			wantErr(t, err, CodeInternal, true)
			continue
		}
		if err != nil || res.ExitCode != c.want.ExitCode || !bytes.Equal(res.Stdout, c.want.Stdout) || !bytes.Equal(res.Stderr, c.want.Stderr) {
			t.Errorf("%s became %+v, %v", c.answer, res, err)
		}
	}
}

// A3: the server never sees more operations of a machine at once than leave it
// connections for itself; other machines do not wait.
func TestGuestWidth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var now, most, other int
		turn := make(chan struct{}, 1)
		count := func(n *int, by int) {
			turn <- struct{}{}
			*n += by
			most = max(most, now)
			<-turn
		}
		s := serve(t, func(w http.ResponseWriter, r *http.Request) {
			if strings.Contains(r.URL.Path, "/vm/") {
				count(&now, 1)
				defer count(&now, -1)
			} else {
				count(&other, 1)
			}
			time.Sleep(10 * time.Second) // in the bubble's time
			reply(w, 200, "application/json", `{"exitCode":0,"stdoutB64":"","stderrB64":"","image":{},"size":0}`)
		})
		done := make(chan error)
		for i := range 24 {
			go func() {
				var err error
				switch i % 4 {
				case 0:
					_, err = s.Exec(t.Context(), "vm", Command{Argv: []string{"x"}, Timeout: time.Minute})
				case 1:
					_, err = s.Pull(t.Context(), "vm", "alpine")
				case 2:
					err = s.Upload(t.Context(), "vm", "/x", strings.NewReader(""), 0)
				case 3:
					_, err = s.Download(t.Context(), "vm", "/x", io.Discard, 0)
					if CodeOf(err) == CodeInvalid { // JSON is a directory
						err = nil
					}
				}
				done <- err
			}()
		}
		synctest.Wait()
		begun := time.Now()
		if _, err := s.Exec(t.Context(), "other", Command{Argv: []string{"x"}, Timeout: time.Minute}); err != nil || time.Since(begun) > 11*time.Second || other != 1 {
			t.Errorf("another machine waited %v: %v", time.Since(begun), err)
		}
		for range 24 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if most != guestWidth {
			t.Errorf("%d operations at once, want %d", most, guestWidth)
		}
		if len(s.guests.rooms) != 0 {
			t.Errorf("rooms are left: %v", s.guests.rooms)
		}
	})
}

// Who waits for a place hears the end of its caller, and does not wait for ever.
func TestGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate(1, 1)
		leave, err := g.enter(t.Context(), "first", "vm", time.Minute, false)
		if err != nil {
			t.Fatal(err)
		}
		_, err = g.enter(t.Context(), "second", "vm", time.Minute, false)
		wantErr(t, err, CodeNotReady, false, "1 operations have been running")
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		_, err = g.enter(ctx, "third", "vm", time.Minute, false)
		wantErr(t, err, CodeCancelled, false)
		if len(g.rooms) != 1 || g.rooms["vm"].people != 1 {
			t.Errorf("rooms: %+v", g.rooms)
		}
		leave()
		if len(g.rooms) != 0 {
			t.Errorf("rooms are left: %+v", g.rooms)
		}
	})
}

// W37: whatever a path is made of, the request is about a file of that machine,
// and about the file of exactly that name.
func TestFilePaths(t *testing.T) {
	for path, want := range map[string]string{
		"/etc/passwd":               "/etc/passwd",
		"//etc///passwd":            "/etc/passwd",
		"/a b":                      "/a%20b",
		"/a%2Fb":                    "/a%252Fb",
		"/%2e%2e/%2e%2e/x":          "/%252e%252e/%252e%252e/x",
		"/a?b#c":                    "/a%3Fb%23c",
		"/a\\..\\b":                 "/a%5C..%5Cb",
		"/...":                      "/...",
		"/ü\n\t;:@&=+$,":            "/%C3%BC%0A%09%3B:@&=+$%2C",
		"/x/y/api/v1/machines/vm-2": "/x/y/api/v1/machines/vm-2",
	} {
		s := serve(t, says(200, "application/octet-stream", "data"))
		if _, err := s.Download(t.Context(), "vm", path, io.Discard, 0); err != nil {
			t.Errorf("%q: %v", path, err)
			continue
		}
		if got := s.requests()[0]; got != "GET /api/v1/machines/vm/files"+want {
			t.Errorf("%q was asked for as %s, want %s", path, got, want)
		}
	}
	for _, path := range []string{"", "x", "/", "/x/", "/..", "/../x", "/x/..", "/x/../y", "/.", "/x/./y", "/x\x00", "/\xff", "/" + strings.Repeat("a", maxGuestPath)} {
		s := serve(t, says(500, "text/plain", "not to be reached"))
		_, err := s.Download(t.Context(), "vm", path, io.Discard, 0)
		wantErr(t, err, CodeInvalid, false)
		wantErr(t, s.Upload(t.Context(), "vm", path, strings.NewReader(""), 0), CodeInvalid, false)
		if len(s.requests()) != 0 {
			t.Errorf("%q was sent: %q", path, s.requests())
		}
	}
}

func FuzzFilePath(f *testing.F) {
	for _, seed := range []string{"/a", "/../x", "/a/%2e%2e/b", "//x", "/ü/\\"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, path string) {
		escaped, err := guestPath(path)
		if err != nil {
			return
		}
		req, err := http.NewRequest(http.MethodGet, "http://x"+machinePath("vm", "/files"+escaped), nil)
		if err != nil {
			t.Fatal(err)
		}
		rest, found := strings.CutPrefix(req.URL.RequestURI(), "/api/v1/machines/vm/files/")
		if !found || strings.Contains(rest, "?") || req.URL.Fragment != "" {
			t.Errorf("%q is asked for as %s", path, req.URL.RequestURI())
		}
		for _, segment := range strings.Split(rest, "/") {
			if segment == "" || segment == "." || segment == ".." {
				t.Errorf("%q is asked for as %s", path, req.URL.RequestURI())
			}
		}
	})
}

func TestDownload(t *testing.T) {
	length := func(n int) http.HandlerFunc { // with a Content-Length
		return says(200, "application/octet-stream", strings.Repeat("x", n))
	}
	chunked := func(n int) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/octet-stream")
			_ = http.NewResponseController(w).Flush()
			length(n)(w, r)
		}
	}
	cut := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/octet-stream")
		w.Header().Set("Content-Length", "100")
		_, _ = io.WriteString(w, "0123456789")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
	for _, c := range []struct {
		what    string
		handler http.HandlerFunc
		limit   int64
		bytes   int64
		code    Code
	}{
		{"empty", length(0), 0, 0, ""}, {"empty within 1", length(0), 1, 0, ""},
		{"within", length(9), 10, 9, ""}, {"exactly", length(10), 10, 10, ""}, {"exactly, chunked", chunked(10), 10, 10, ""},
		{"announced too large", length(11), 10, 0, CodeInvalid}, {"too large", chunked(11), 10, 10, CodeInvalid},
		{"cut", cut, 0, 10, CodeUnreachable},
		{"directory", says(200, "application/json", `{"entries":[]}`), 0, 0, CodeInvalid},
	} {
		t.Run(c.what, func(t *testing.T) {
			var got bytes.Buffer
			n, err := serve(t, c.handler).Download(t.Context(), "vm", "/x", &got, c.limit)
			if n != c.bytes || int64(got.Len()) != n || CodeOf(err) != c.code {
				t.Errorf("%d bytes, wrote %d, %v", n, got.Len(), err)
			}
		})
	}
	_, err := serve(t, length(10)).Download(t.Context(), "vm", "/x", failing{}, 0)
	wantErr(t, err, CodeInternal, false, "disk full")
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, fmt.Errorf("disk full") }

func TestUpload(t *testing.T) {
	var got []byte
	var length int64
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		length = r.ContentLength
		data, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		got = data
		reply(w, 200, "application/json", fmt.Sprintf(`{"path":"/x","size":%d}`, len(data)))
	})
	for _, size := range []int{0, 1, 100, 1 << 20} {
		want := bytes.Repeat([]byte("u"), size)
		src := bytes.NewReader(append(bytes.Clone(want), "more than announced"...))
		if err := s.Upload(t.Context(), "vm", "/x", src, int64(size)); err != nil || !bytes.Equal(got, want) || length != int64(size) {
			t.Errorf("%d bytes arrived as %d, announced as %d: %v", size, len(got), length, err)
		}
	}
	got = nil
	err := s.Upload(t.Context(), "vm", "/x", strings.NewReader("short"), 10)
	wantErr(t, err, CodeInternal, false, "5 bytes are missing")
	err = s.Upload(t.Context(), "vm", "/x", io.MultiReader(strings.NewReader("part"), failingReader{}), 10)
	wantErr(t, err, CodeInternal, false, "disk broken")
	if got != nil {
		t.Errorf("the server kept %q", got)
	}
	before := len(s.requests())
	wantErr(t, s.Upload(t.Context(), "vm", "/x", failingReader{}, maxUpload+1), CodeInvalid, false, "too large")
	wantErr(t, s.Upload(t.Context(), "vm", "/x", failingReader{}, -1), CodeInvalid, false)
	if len(s.requests()) != before {
		t.Error("sent what is too large")
	}
	lying := serve(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		reply(w, 200, "application/json", `{"path":"/x","size":3}`)
	})
	wantErr(t, lying.Upload(t.Context(), "vm", "/x", strings.NewReader("four"), 4), CodeInternal, true, "4 bytes were sent and 3 arrived")
}

type failingReader struct{}

func (failingReader) Read([]byte) (int, error) { return 0, fmt.Errorf("disk broken") }

// A refusal that comes while a file is still being sent is the answer.
func TestUploadRefusedEarly(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Connection", "close")
		reply(w, 413, "text/plain", "length limit exceeded")
	})
	err := s.Upload(t.Context(), "vm", "/x", zeros{}, 50<<20)
	if CodeOf(err) != CodeInvalid && CodeOf(err) != CodeUnreachable {
		t.Error(err)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// When Upload returns, nobody reads from the source any more, also when the answer
// came early or the caller left.
func TestUploadLetsGo(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.CopyN(io.Discard, r.Body, 1<<20)
		if strings.HasSuffix(r.URL.Path, "/early") {
			reply(w, 500, "text/plain", "disk full")
			return
		}
		<-t.Context().Done()
	})
	for _, path := range []string{"/early", "/hang"} {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		src := &plainReader{}
		err := s.Upload(ctx, "vm", path, src, 64<<20)
		src.n++ // the race detector sees a Read that goes on
		if err == nil {
			t.Errorf("%s succeeded", path)
		}
		cancel()
	}
}

type plainReader struct{ n int }

func (r *plainReader) Read(p []byte) (int, error) {
	r.n++
	return len(p), nil
}

func TestPull(t *testing.T) {
	s := serve(t, says(200, "application/json", `{"image":{"reference":"alpine:3","digest":"sha256:1","size":5,"architecture":"arm64","os":"linux","layerCount":2}}`))
	img, err := s.Pull(t.Context(), "vm", "alpine:3")
	if want := (Image{"alpine:3", "sha256:1", 5, "arm64", "linux", 2}); err != nil || img != want {
		t.Errorf("%+v, %v", img, err)
	}
	if got := s.requests()[0]; got != `POST /api/v1/machines/vm/images/pull {"image":"alpine:3"}` {
		t.Errorf("sent %s", got)
	}
	_, err = serve(t, says(200, "application/json", `{}`)).Pull(t.Context(), "vm", "alpine:3")
	wantErr(t, err, CodeInternal, true)
}

// Files of any size pass through in constant memory.
func TestFilesAreStreamed(t *testing.T) {
	const size = 64 << 20
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut {
			n, _ := io.Copy(io.Discard, r.Body)
			reply(w, 200, "application/json", fmt.Sprintf(`{"size":%d}`, n))
			return
		}
		w.Header().Set("Content-Type", "application/octet-stream")
		_, _ = io.CopyN(w, zeros{}, size)
	})
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if n, err := s.Download(t.Context(), "vm", "/x", io.Discard, 0); err != nil || n != size {
		t.Errorf("%d bytes, %v", n, err)
	}
	if err := s.Upload(t.Context(), "vm", "/x", zeros{}, size); err != nil {
		t.Error(err)
	}
	runtime.ReadMemStats(&after)
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 4<<20 {
		t.Errorf("%d bytes were allocated for two files of %d", grown, size)
	}
}
