package fleettest

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// api talks to a fake as any HTTP client would.
type api struct {
	t    testing.TB
	http http.Client
}

func newAPI(t testing.TB, dial func(context.Context) (net.Conn, error)) *api {
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) }}
	t.Cleanup(tr.CloseIdleConnections)
	return &api{t, http.Client{Transport: tr}}
}

type answer struct {
	code int
	kind string
	body string
}

func (a answer) String() string { return fmt.Sprintf("%d %s %.300s", a.code, a.kind, a.body) }

// try sends a request; body is JSON when it begins with "{", else bytes.
func (a *api) try(method, path, body string) (answer, error) {
	req, err := http.NewRequest(method, "http://smolvm"+path, strings.NewReader(body))
	if err != nil {
		a.t.Fatal(err)
	}
	if strings.HasPrefix(body, "{") {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := a.http.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return answer{res.StatusCode, res.Header.Get("Content-Type"), string(b)}, err
}

func (a *api) do(method, path, body string) answer {
	a.t.Helper()
	got, err := a.try(method, path, body)
	if err != nil {
		a.t.Fatalf("%s %s: %v", method, path, err)
	}
	return got
}

// want fails unless the answer has the status and contains text.
func (a *api) want(status int, text, method, path, body string) answer {
	a.t.Helper()
	got := a.do(method, path, body)
	if got.code != status || !strings.Contains(got.body, text) {
		a.t.Errorf("%s %s %.80s\n got %v\nwant %d %s", method, path, body, got, status, text)
	}
	return got
}

const base = "/api/v1/machines"

// sh runs a script and returns its exit code and output.
func (a *api) sh(machine, script string) (int, string) {
	a.t.Helper()
	body, _ := json.Marshal(map[string]any{"command": []string{"sh", "-c", script}, "timeoutSecs": 20})
	got := a.want(200, "", "POST", base+"/"+machine+"/exec", string(body))
	var res struct {
		ExitCode             int
		StdoutB64, StderrB64 string
	}
	json.Unmarshal([]byte(got.body), &res)
	out, _ := base64.StdEncoding.DecodeString(res.StdoutB64)
	return res.ExitCode, string(out)
}

func TestServerLife(t *testing.T) {
	f := StartSmolvm(t, SmolvmOptions{})
	a := newAPI(t, f.Dial)
	a.want(200, `"version":"1.14.5"`, "GET", "/health", "")
	a.want(200, `{"machines":[]}`, "GET", base, "")
	a.want(200, `"state":"created"`, "POST", base, `{"name":"m","image":"alpine","network":true,"env":[{"name":"A","value":"b"}],"allowedCidrs":[]}`)
	a.want(409, "already exists", "POST", base, `{"name":"m"}`)
	a.want(404, "has not been started", "GET", base+"/m/logs?tail=10", "")
	a.want(200, `"state":"running"`, "POST", base+"/m/start", `{}`)
	a.want(200, `"state":"running"`, "POST", base+"/m/start", ``)
	a.want(200, `"allowedCidrs":[]`, "GET", base+"/m", "")
	if code, out := a.sh("m", `echo $A; exit 3`); code != 3 || out != "b\n" {
		t.Errorf("%d %q", code, out)
	}
	a.sh("m", "echo t >/tmp/t; echo d >/root/d; echo from the guest >>/dev/console")
	a.want(200, "ready\n\ndata: from the guest\n\n", "GET", base+"/m/logs?tail=2", "").kindIs(t, "text/event-stream")
	a.want(400, "tail", "GET", base+"/m/logs?tail=10001", "")
	a.want(200, `"stopped"`, "POST", base+"/m/stop", "")
	a.want(200, `"stopped"`, "POST", base+"/m/stop", "")
	if _, out := a.sh("m", "ls /tmp; cat /root/d"); out != "d\n" { // starts it again
		t.Errorf("after a stop: %q", out)
	}
	a.want(200, `{"deleted":"m"}`, "DELETE", base+"/m", "")
	a.want(404, `"code":"NOT_FOUND"`, "DELETE", base+"/m", "")
	if n := f.Count("DELETE", "/m"); n != 2 {
		t.Errorf("counted %d deletes", n)
	}
}

func (a answer) kindIs(t *testing.T, want string) {
	t.Helper()
	if a.kind != want {
		t.Errorf("Content-Type %q, want %q", a.kind, want)
	}
}

func TestServerFraming(t *testing.T) {
	f := StartSmolvm(t, SmolvmOptions{})
	a := newAPI(t, f.Dial)
	const text = "text/plain; charset=utf-8"
	a.want(415, "Content-Type", "POST", base, `x`).kindIs(t, text)
	a.want(400, "parse", "POST", base, `{"name":`).kindIs(t, text)
	a.want(422, "deserialize", "POST", base, `{"name":5}`).kindIs(t, text)
	a.want(422, "deserialize", "POST", base, `{"cpus":256}`).kindIs(t, text)
	a.want(413, "length limit", "POST", base, `{"name":"`+strings.Repeat("x", jsonLimit)+`"}`).kindIs(t, text)
	a.want(200, "", "POST", base, `{"name":"m","nope":1}`)
	a.want(422, "unknown field `nope`", "POST", base+"/m/exec", `{"command":["true"],"nope":1}`).kindIs(t, text)
	a.want(400, "command cannot be empty", "POST", base+"/m/exec", `{"command":[]}`)
	a.want(400, "not `true`", "POST", base+"/m/start?forkable=1", "").kindIs(t, text)
	for _, c := range [][2]string{{"GET", "/nope"}, {"GET", base + "/m/start"}, {"POST", base + "/m/branches/x"}, {"POST", base + "/m/pause"}} {
		if got := a.do(c[0], c[1], ""); got.body != "" || got.kind != "" || got.code != 404 && got.code != 405 {
			t.Errorf("%v: %v", c, got)
		}
	}
	f.SetVersion("1.22.2")
	a.want(422, "unknown field `nope`, expected one of `allowedCidrs`", "POST", base, `{"name":"n","nope":1}`).kindIs(t, text)
}

func TestServerRefusals(t *testing.T) {
	f := StartSmolvm(t, SmolvmOptions{})
	a := newAPI(t, f.Dial)
	for _, body := range []string{
		`{"name":"a--b"}`, `{"name":"-a"}`, `{"name":"a."}`, `{"cmd":["x"]}`, `{"cpus":0}`, `{"memoryMb":63}`,
		`{"env":[{"name":"1","value":""}]}`, `{"allowedCidrs":["x"]}`, `{"ports":[{"host":0,"guest":1}]}`,
		`{"mounts":[{"source":"/etc","target":"/x"}]}`, `{"mounts":[{"source":"/nope","target":"/x"}]}`, `{"image":"alpine"}`,
	} {
		a.want(400, `"code":"BAD_REQUEST"`, "POST", base, body)
	}
	f.SetVersion("1.23.0")
	a.want(200, "", "POST", base, `{"name":"sealed","image":"alpine"}`)
	a.want(200, "", "POST", base, `{"name":"p","image":"fail-pull/x","network":true}`)
	a.want(500, "denied", "POST", base+"/p/start", `{}`)
	a.want(200, `"state":"created"`, "GET", base+"/p", "")
	a.want(200, "", "POST", base, `{"name":"d","image":"distroless/x","network":true}`)
	a.want(200, `"exitCode":1`, "POST", base+"/d/exec", `{"command":["sh"]}`)
	a.want(200, `"stdout":"hi\n"`, "POST", base+"/d/exec", `{"command":["echo","hi"]}`)
	a.want(200, "", "POST", base, `{"name":"bare"}`)
	a.want(500, "failed to spawn command", "POST", base+"/bare/exec", `{"command":["nope"]}`)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	a.want(200, "", "POST", base, fmt.Sprintf(`{"name":"q","ports":[{"host":%d,"guest":80}]}`, port))
	a.want(409, `"code":"PORT_IN_USE"`, "POST", base+"/q/start", `{}`)
}

func TestServerFiles(t *testing.T) {
	f := StartSmolvm(t, SmolvmOptions{})
	a := newAPI(t, f.Dial)
	a.want(200, "", "POST", base, `{"name":"m"}`)
	blob := strings.Repeat("\x00\xffab", 1<<20)
	a.want(200, `{"path":"/a/b c","size":4194304}`, "PUT", base+"/m/files/a/b%20c", blob)
	for _, p := range []string{"/a/b%20c", "//a/b%20c", "/%2Fa%2Fb%20c"} {
		if got := a.do("GET", base+"/m/files"+p, ""); got.body != blob || got.kind != "application/octet-stream" {
			t.Errorf("%s: %d %s %d bytes", p, got.code, got.kind, len(got.body))
		}
	}
	a.want(200, `"size":0`, "PUT", base+"/m/files/empty", "")
	a.want(500, "No such file or directory (os error 2)", "GET", base+"/m/files/nope", "")
	a.want(500, "not a regular file", "GET", base+"/m/files/a", "")
	a.want(500, "Is a directory (os error 21)", "PUT", base+"/m/files/a", "x")
	a.want(400, "invalid path", "PUT", base+"/m/files/a/%2e%2e/x", "x")
	f.SetVersion("1.18.0")
	a.want(200, `"entries":[{"kind":"file","name":"b c"`, "GET", base+"/m/files/a", "").kindIs(t, "application/json")
}

func TestServerBranchAndPause(t *testing.T) {
	f := StartSmolvm(t, SmolvmOptions{})
	a := newAPI(t, f.Dial)
	a.want(200, "", "POST", base, `{"name":"m"}`)
	a.want(409, "not running as a fork base", "POST", base+"/m/branches", `{"name":"c"}`)
	a.want(200, `"forkable":true`, "POST", base+"/m/start?branchable=true", `{}`)
	a.sh("m", "echo kept >/root/f")
	a.want(200, `"state":"running"`, "POST", base+"/m/branches", `{"name":"c"}`)
	if _, out := a.sh("c", "cat /root/f; echo changed >/root/f"); out != "kept\n" {
		t.Errorf("clone has %q", out)
	}
	a.want(200, `"state":"frozen"`, "GET", base+"/m", "")
	a.want(409, "frozen", "POST", base+"/m/start", `{}`)
	a.want(409, "has clones: c", "DELETE", base+"/m", "")
	a.want(400, "nested", "POST", base+"/c/fork", `{"name":"cc"}`)
	a.want(200, "", "DELETE", base+"/c", "")
	if _, out := a.sh("m", "cat /root/f"); out != "kept\n" {
		t.Errorf("source has %q", out)
	}
	f.SetVersion("1.18.0")
	a.want(200, "", "POST", base+"/m/branches", `{"name":"d"}`)
	a.want(200, `"state":"running"`, "GET", base+"/m", "")
	a.want(200, `"state":"paused"`, "POST", base+"/m/pause", `{}`)
	a.want(409, "saved execution", "POST", base+"/m/exec", `{"command":["true"]}`)
	a.want(200, `"state":"running"`, "POST", base+"/m/resume", `{}`)
	a.want(200, "", "DELETE", base+"/m?cascade=true", "")
	if n := f.Names(); len(n) != 0 {
		t.Errorf("left %v", n)
	}
}

func TestServerFaults(t *testing.T) {
	data := filepath.Join(t.TempDir(), "d")
	f := StartSmolvm(t, SmolvmOptions{Data: data})
	a := newAPI(t, f.Dial)
	f.Fault(SmolvmFault{Method: "POST", Path: base + "$", Nth: 2, Drop: "before"})
	f.Fault(SmolvmFault{Method: "POST", Path: base + "$", Nth: 3, Drop: "after"})
	f.Fault(SmolvmFault{Method: "POST", Path: base + "$", Nth: 4, Status: 500, Body: `{"error":"x"}`, Done: true})
	f.Fault(SmolvmFault{Method: "POST", Path: base + "$", Nth: 5, Status: 408})
	a.want(200, "", "POST", base, `{"name":"one"}`)
	for _, name := range []string{"two", "three"} {
		if got, err := a.try("POST", base, `{"name":"`+name+`"}`); err == nil {
			t.Errorf("%s: %v", name, got)
		}
	}
	a.want(500, "x", "POST", base, `{"name":"four"}`)
	if got := a.do("POST", base, `{"name":"five"}`); got.code != 408 || got.body != "" || got.kind != "" {
		t.Errorf("408: %v", got)
	}
	for name, want := range map[string]int{"one": 200, "two": 404, "three": 200, "four": 200, "five": 404} {
		a.want(want, "", "GET", base+"/"+name, "")
	}
	write := func(text string) {
		if err := os.WriteFile(filepath.Join(data, "faults.json"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(`[{"path":"/health","status":503,"body":"busy","times":-1}]`)
	a.want(503, "busy", "GET", "/health", "")
	write(`[{"path":"/health","sta`) // half written: the old ones stay
	a.want(503, "busy", "GET", "/health", "")
	write(`[]`)
	a.want(200, "", "GET", "/health", "")
	b, err := os.ReadFile(filepath.Join(data, "requests.log"))
	if err != nil || bytes.Count(b, []byte("\n")) != len(f.Requests()) {
		t.Errorf("requests.log has %d lines of %d: %v", bytes.Count(b, []byte("\n")), len(f.Requests()), err)
	}
}

// A create whose client gives up is carried out all the same.
func TestServerWorksOnAfterTheClient(t *testing.T) {
	f := StartSmolvm(t, SmolvmOptions{})
	a := newAPI(t, f.Dial)
	f.Fault(SmolvmFault{Method: "POST", LatencyMs: 200})
	a.http.Timeout = 50 * time.Millisecond
	if got, err := a.try("POST", base, `{"name":"late"}`); err == nil {
		t.Fatal(got)
	}
	a.http.Timeout = 0
	for deadline := time.Now().Add(10 * time.Second); a.do("GET", base+"/late", "").code != 200; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("never created")
		}
	}
}

func TestServerLimit(t *testing.T) {
	f := StartSmolvm(t, SmolvmOptions{Limit: 300 * time.Millisecond})
	a := newAPI(t, f.Dial)
	a.want(200, "", "POST", base, `{"name":"m"}`)
	if got := a.do("POST", base+"/m/exec", `{"command":["sh","-c","sleep 1; echo x >/root/done"]}`); got.code != 408 || got.body != "" {
		t.Errorf("%v", got)
	}
	for deadline := time.Now().Add(10 * time.Second); a.do("GET", base+"/m/files/root/done", "").code != 200; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the command died with its answer")
		}
	}
}

func TestServerSlots(t *testing.T) {
	f := StartSmolvm(t, SmolvmOptions{})
	a := newAPI(t, f.Dial)
	a.want(200, "", "POST", base, `{"name":"m"}`)
	a.want(200, "", "POST", base+"/m/start", `{}`)
	g := f.Guest("m")
	var wg sync.WaitGroup
	for range guestSlots + 1 {
		wg.Go(func() {
			a.sh("m", "echo >>/root/begun; while test ! -e /root/go; do sleep 0.02; done")
		})
	}
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if b, _ := g.ReadFile("/root/begun"); len(b) == guestSlots {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("eight commands do not run at once")
		}
	}
	a.want(200, `"unreachable"`, "GET", base+"/m", "") // and waits its 3 s
	if b, _ := g.ReadFile("/root/begun"); len(b) != guestSlots {
		t.Errorf("%d commands run at once", len(b))
	}
	g.WriteFile("/root/go", strings.NewReader(""))
	wg.Wait()
	if b, _ := g.ReadFile("/root/begun"); len(b) != guestSlots+1 {
		t.Errorf("%d commands ran", len(b))
	}
}

func TestServerRestart(t *testing.T) {
	f := StartSmolvm(t, SmolvmOptions{})
	a := newAPI(t, f.Dial)
	before := a.do("GET", "/capacity", "").body
	a.want(200, "", "POST", base, `{"name":"m","cpus":2}`)
	a.sh("m", "echo x >/tmp/x")
	f.Restart()
	a.want(200, `"cpus":2`, "GET", base+"/m", "")
	if _, out := a.sh("m", "cat /tmp/x"); out != "x\n" {
		t.Errorf("machine has %q", out)
	}
	if after := a.do("GET", "/capacity", "").body; before == after {
		t.Error("the boot id stands still")
	}
}

func TestServerLogRotation(t *testing.T) {
	f := StartSmolvm(t, SmolvmOptions{ConsoleMax: 4 << 10})
	a := newAPI(t, f.Dial)
	a.want(200, "", "POST", base, `{"name":"m"}`)
	a.want(200, "", "POST", base+"/m/start", `{}`)
	f.Console("m", strings.Repeat("x", 5<<10))
	if got := a.do("GET", base+"/m/logs?tail=5", ""); got.body != "" {
		t.Errorf("after rotation: %v", got)
	}
	f.Console("m", "new")
	a.want(200, "data: new\n\n", "GET", base+"/m/logs?tail=5", "")
}

func TestServerImages(t *testing.T) {
	f := StartSmolvm(t, SmolvmOptions{})
	a := newAPI(t, f.Dial)
	a.want(200, "", "POST", base, `{"name":"m","network":true}`)
	a.want(200, `"images":[]`, "GET", base+"/m/images", "")
	a.want(200, `"reference":"alpine:3"`, "POST", base+"/m/images/pull", `{"image":"alpine:3"}`)
	a.want(200, `"reference":"alpine:3"`, "GET", base+"/m/images", "")
	a.want(500, "denied", "POST", base+"/m/images/pull", `{"image":"fail-pull/x"}`)
}

func TestServerOpenAPI(t *testing.T) {
	f := StartSmolvm(t, SmolvmOptions{})
	a := newAPI(t, f.Dial)
	has := func(want bool, text string) {
		t.Helper()
		if got := strings.Contains(a.do("GET", "/api-docs/openapi.json", "").body, text); got != want {
			t.Errorf("%s: %v", text, got)
		}
	}
	has(true, `"/api/v1/machines/{name}/branches"`)
	has(false, `freezeSource`)
	has(false, `/pause"`)
	has(true, `"0.5.2"`)
	f.SetVersion("1.18.0")
	has(true, `freezeSource`)
	has(true, `/pause"`)
	f.SetVersion("1.9.3")
	has(false, `/branches"`)
	has(false, `"branchable"`)
}
