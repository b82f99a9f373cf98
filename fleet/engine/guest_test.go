//go:build unix

package engine_test

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"smol-mcp/fleet"
)

// An image from docker save: its configuration is honoured, and its files are as the
// layers say.
func TestImage(t *testing.T) {
	t.Parallel()
	needMachines(t)
	img := busyboxImage(t, &v1.Config{
		Env: []string{"FROM=image", "BOTH=image"}, WorkingDir: "/home/app", User: "app",
		Entrypoint: []string{"/bin/sh", "-c"}, Cmd: []string{`echo "$0 $FROM $BOTH $(id -u)" >/tmp/workload; echo to the console; sleep 1000`},
	},
		file{name: "data/owned", mode: 0o640, uid: 77, gid: 88, content: "owned"},
		file{name: "data/linked", kind: tar.TypeLink, link: "data/owned"},
		file{name: "data/setuid", mode: 0o4755, content: "x"},
		file{name: "etc/.wh.group", mode: 0o644},
	)
	archive := filepath.Join(t.TempDir(), "image.tar")
	tag, err := name.NewTag("test/image:1")
	if err != nil {
		t.Fatal(err)
	}
	if err := tarball.WriteToFile(archive, tag, img); err != nil {
		t.Fatal(err)
	}
	d := start(t)
	f := d.client(t)
	vm := booted(t, f, fleet.Spec{Name: "vm", Image: archive, Env: map[string]string{"BOTH": "machine", "ALSO": "machine"}})
	for _, c := range []struct{ line, want string }{
		{`echo "$FROM $BOTH $ALSO $HOME"`, "image machine machine /home/app\n"},
		{"pwd; id -u; id -g", "/home/app\n1234\n2345\n"},
		{"stat -c '%u %g %a %h' /data/owned /data/linked; stat -c %a /data/setuid", "77 88 640 2\n77 88 640 2\n4755\n"},
		{"[ -e /etc/group ] || echo gone", "gone\n"},
		{"stat -c %i /data/owned >a; stat -c %i /data/linked >b; [ $(cat a) = $(cat b) ] && echo one file", "one file\n"},
		{"for i in 1 2 3 4 5; do [ -s /tmp/workload ] && break; sleep 1; done; cat /tmp/workload", "/bin/sh image machine 1234\n"},
	} {
		if got := sh(t, f, vm, c.line); got != c.want {
			t.Errorf("%s: got %q, want %q", c.line, got, c.want)
		}
	}
	jobAsUser(t, f, vm)
	page, err := f.Logs(t.Context(), vm, fleet.LogQuery{Tail: 100})
	if err != nil || !strings.Contains(strings.Join(page.Lines, "\n"), "to the console") {
		t.Errorf("the console has %q, %v", page.Lines, err)
	}
	m, err := f.Get(t.Context(), vm)
	if err != nil || m.Image != archive {
		t.Errorf("%+v, %v", m, err)
	}
}

// A job is its user's, with its files.
func jobAsUser(t *testing.T, f *fleet.Smolvm, vm string) {
	t.Helper()
	line := "id -u; pwd; echo $HOME; cd /tmp/.smol-mcp; stat -c %u . owned0.job owned0.stdout; ls /root/. 2>&1 | head -c 5"
	run := func(dir string) (fleet.Result, error) {
		return f.RunJob(t.Context(), vm, fleet.Job{Command: fleet.Command{Argv: []string{"sh", "-c", line}, Workdir: dir, Timeout: time.Minute}, ID: "owned0", Wait: time.Minute, Limit: 1000})
	}
	res, err := run("")
	if _, out, _ := strings.Cut(string(res.Stdout), " -\n"); err != nil || out != "1234\n/home/app\n/home/app\n1234\n1234\n1234\nsmol1 end\n" && !strings.HasPrefix(out, "1234\n/home/app\n/home/app\n1234\n1234\n1234\nls: ") {
		t.Errorf("a job of the user: %q, %v", res.Stdout, err)
	}
	sh(t, f, vm, "mkdir -m 0 /tmp/closed")
	if res, err := run("/tmp/closed"); err != nil || !strings.HasSuffix(string(res.Stdout), "\nnoworkdir\n") {
		t.Errorf("in a directory that the user must not enter: %q, %v", res.Stdout, err)
	}
}

// Machines that continue one template are machines of their own.
func TestUnlike(t *testing.T) {
	t.Parallel()
	f := start(t).client(t)
	a, b := booted(t, f, fleet.Spec{Name: "one"}), booted(t, f, fleet.Spec{Name: "two"})
	const line = "uname -n; cat /proc/sys/kernel/random/uuid; head -c 16 /dev/urandom | od -An -tx1; cat /etc/hosts"
	x, y := strings.Split(sh(t, f, a, line), "\n"), strings.Split(sh(t, f, b, line), "\n")
	for i := range 4 {
		if x[i] == y[i] {
			t.Errorf("both say %q", x[i])
		}
	}
	if x[0] != "one" || !strings.Contains(x[3], "one") {
		t.Errorf("the first calls itself %q", x)
	}
	var seconds int64
	if _, err := fmt.Sscan(sh(t, f, b, "date +%s"), &seconds); err != nil {
		t.Fatal(err)
	}
	if off := time.Since(time.Unix(seconds, 0)); off.Abs() > 3*time.Second {
		t.Errorf("its clock is %v behind", off)
	}
}

// A stopped machine keeps its disk, and nothing else.
func TestRestart(t *testing.T) {
	t.Parallel()
	f := start(t).client(t)
	vm := booted(t, f, fleet.Spec{Name: "vm"})
	sh(t, f, vm, "echo kept >/root/kept; echo gone >/tmp/gone; echo gone >/dev/shm/gone; echo kept >/var/tmp/kept; sleep 1000 >/dev/null 2>&1 &")
	before := sh(t, f, vm, "cat /proc/sys/kernel/random/boot_id; uname -n")
	if m, err := f.Stop(t.Context(), vm, fleet.StopOptions{}); err != nil || m.State != fleet.Stopped || m.PID != 0 {
		t.Fatalf("%+v, %v", m, err)
	}
	if got := sh(t, f, vm, "cat /root/kept /var/tmp/kept; ls /tmp /dev/shm; ps | grep -c '[s]leep 1000' || true"); got != "kept\nkept\n/dev/shm:\n\n/tmp:\n0\n" {
		t.Errorf("after a stop and a start: %q", got)
	}
	if after := sh(t, f, vm, "cat /proc/sys/kernel/random/boot_id; uname -n"); strings.Split(after, "\n")[1] != strings.Split(before, "\n")[1] {
		t.Errorf("it was called %q and is called %q", before, after)
	}
}

// A timeout ends all of a command's group; what it wrote is kept.
func TestTimeoutKillsGroup(t *testing.T) {
	d := start(t)
	f := d.client(t)
	vm := booted(t, f, fleet.Spec{Name: "vm"})
	begun := time.Now()
	res, err := f.Exec(t.Context(), vm, fleet.Command{Argv: []string{"/bin/sh", "-c", "sleep 111 & sleep 112 & printf part; printf of >&2; sleep 113"}, Timeout: 3 * time.Second})
	if err != nil || res.ExitCode != 124 || string(res.Stdout) != "part" || !strings.HasPrefix(string(res.Stderr), "of\ncommand timed out after 3000ms") {
		t.Errorf("%+v, %v", res, err)
	}
	if took := time.Since(begun); took > 8*time.Second {
		t.Errorf("it took %v", took)
	}
	if got := sh(t, f, vm, "ps | grep -c '[s]leep 11' || true"); got != "0\n" {
		t.Errorf("%s of its processes live on", got)
	}
	// What goes on in the background does not hold an answer back.
	begun = time.Now()
	if got := sh(t, f, vm, "sleep 114 & echo at once"); got != "at once\n" || time.Since(begun) > 5*time.Second {
		t.Errorf("%q after %v", got, time.Since(begun))
	}
	if _, _, body := d.ask(t, "POST", "/api/v1/machines/vm/exec", `{"command":["sleep","115"],"background":true}`); !strings.Contains(body, `"stdout":"pid=`) {
		t.Errorf("in the background: %s", body)
	}
	sh(t, f, vm, "ps | grep -q '[s]leep 115'")
	for body, status := range map[string]int{
		`{"command":[]}`: 400, `{"command":["x"],"user":"root"}`: 422, `{"command":"x"}`: 422, `{"command":["x"]`: 400,
		`{"command":["x"],"timeoutSecs":-1}`: 422, `{"command":["x"],"env":[{"name":"1","value":""}]}`: 400,
	} {
		if got, _, text := d.ask(t, "POST", "/api/v1/machines/vm/exec", body); got != status {
			t.Errorf("%s: %d %s", body, got, text)
		}
	}
	if got, _, text := d.ask(t, "POST", "/api/v1/machines/vm/exec", `{"command":["head","-c","12000000","/dev/zero"],"timeoutSecs":60}`); got != 500 || !strings.Contains(text, "output exceeded") {
		t.Errorf("too much output: %d %s", got, text[:min(len(text), 300)])
	}
}

// Output comes as events while the command runs.
func TestExecStream(t *testing.T) {
	d := start(t)
	booted(t, d.client(t), fleet.Spec{Name: "vm"})
	status, header, body := d.ask(t, "POST", "/api/v1/machines/vm/exec/stream", `{"command":["/bin/sh","-c","echo one; echo two >&2; printf 'a\\rb'; exit 7"]}`)
	if status != http.StatusOK || header.Get("Content-Type") != "text/event-stream" {
		t.Errorf("%d %v", status, header)
	}
	for _, want := range []string{"event: stdout\ndata: one\n", "event: stderr\ndata: two\n", "data: a\ndata: b\n", "event: exit\ndata: {\"exitCode\":7}\n\n"} {
		if !strings.Contains(body, want) {
			t.Errorf("no %q in %q", want, body)
		}
	}
}

// Parts of files, listings, and what replaces a file.
func TestFiles(t *testing.T) {
	d := start(t)
	f := d.client(t)
	vm := booted(t, f, fleet.Spec{Name: "vm"})
	sh(t, f, vm, "mkdir -p /d/sub; printf 0123456789 >/d/file; chown 5:6 /d/file; chmod 4751 /d/file; ln -s file /d/link; : >/d/empty; ln -s nowhere /d/dangling; mkfifo /d/fifo")
	const files = "/api/v1/machines/vm/files/d/"
	for _, c := range []struct {
		what, path, part string
		status           int
		want, content    string
	}{
		{"all", "file", "", 200, "0123456789", ""},
		{"through a link", "link", "", 200, "0123456789", ""},
		{"a part", "file", "bytes=2-4", 206, "234", "bytes 2-4/10"},
		{"the rest", "file", "bytes=7-", 206, "789", "bytes 7-9/10"},
		{"more than there is", "file", "bytes=8-100", 206, "89", "bytes 8-9/10"},
		{"the end", "file", "bytes=10-", 416, "the file has 10 bytes", "bytes */10"},
		{"an empty file", "empty", "bytes=0-5", 200, "", ""},
		{"a form that is not offered", "file", "bytes=-3", 200, "0123456789", ""},
		{"backwards", "file", "bytes=4-2", 416, "the range ends before it begins", ""},
		{"a fifo", "fifo", "", 500, "not a regular file", ""},
		{"missing", "none", "", 500, "No such file or directory (os error 2)", ""},
		{"nowhere", "dangling", "", 500, "No such file", ""},
	} {
		status, header, body := d.ask(t, "GET", files+c.path, "", "Range", c.part)
		if status != c.status || !strings.Contains(body, c.want) || status/100 == 2 && body != c.want || header.Get("Content-Range") != c.content {
			t.Errorf("%s: %d %q %q", c.what, status, body, header.Get("Content-Range"))
		}
	}
	// Files of /proc have content and no size.
	version := sh(t, f, vm, "cat /proc/version")
	for part, want := range map[string]string{"": version, "bytes=0-4": version[:5], "bytes=3-": version[3:]} {
		if status, _, body := d.ask(t, "GET", "/api/v1/machines/vm/files/proc/version", "", "Range", part); status/100 != 2 || body != want {
			t.Errorf("/proc/version, %s: %d %q", part, status, body)
		}
	}
	_, header, body := d.ask(t, "GET", "/api/v1/machines/vm/files/d", "")
	var list struct {
		Entries []struct {
			Name, Kind string
			Size       int
		}
	}
	if err := json.Unmarshal([]byte(body), &list); err != nil || len(list.Entries) != 6 || header.Get("Content-Type") != "application/json" {
		t.Errorf("%v: %s", err, body)
	}
	// Replaced through a link, with its mode and owner.
	if err := f.Upload(t.Context(), vm, "/d/link", strings.NewReader("new"), 3); err != nil {
		t.Fatal(err)
	}
	if got := sh(t, f, vm, "cat /d/file; stat -c ' %a %u %g' /d/file; [ -L /d/link ] && echo link; ls -a /d | grep -c smol || true"); got != "new 4751 5 6\nlink\n0\n" {
		t.Errorf("after an upload: %q", got)
	}
	// A body that breaks off leaves what was there.
	err := f.Upload(t.Context(), vm, "/d/file", io.MultiReader(strings.NewReader("half"), broken{}), 1000)
	if err == nil {
		t.Error("half a file was taken")
	}
	if got := sh(t, f, vm, "cat /d/file; ls -a /d | grep -c smol || true"); got != "new0\n" {
		t.Errorf("after half an upload: %q", got)
	}
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, fmt.Errorf("broken") }

// A published port reaches the guest, without a network card; a taken one is refused.
func TestPorts(t *testing.T) {
	d := start(t)
	f := d.client(t)
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	spec := fleet.Spec{Name: "vm", Image: "builtin:busybox", MemoryMB: 512, CPUs: 1, Ports: []fleet.Port{{Guest: 80, Host: port}}}
	if _, err := f.Create(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	_, err = f.Start(t.Context(), "vm", fleet.StartOptions{})
	if fleet.CodeOf(err) != fleet.CodePortInUse {
		t.Errorf("a port that is taken: %v", err)
	}
	l.Close()
	if _, err := f.Start(t.Context(), "vm", fleet.StartOptions{}); err != nil {
		t.Fatal(err)
	}
	sh(t, f, "vm", "mkdir /www; head -c 300000 /dev/zero >/www/big; httpd -p 127.0.0.1:80 -h /www; ls /sys/class/net | grep -v lo; true")
	loopbacks := []string{"127.0.0.1", "127.0.0.1", "[::1]"}
	if l, err := net.Listen("tcp6", "[::1]:0"); err != nil { // this computer has none
		loopbacks = loopbacks[:2]
	} else {
		l.Close()
	}
	for _, loopback := range loopbacks {
		res, err := http.Get(fmt.Sprintf("http://%s:%d/big", loopback, port))
		if err != nil {
			t.Fatal(err)
		}
		n, err := io.Copy(io.Discard, res.Body)
		res.Body.Close()
		if err != nil || n != 300000 {
			t.Errorf("%d bytes, %v", n, err)
		}
	}
}

// What the engine cannot do it refuses by name.
func TestRefusals(t *testing.T) {
	d := start(t)
	f := d.client(t)
	for body, want := range map[string]string{
		`{"name":"x","mounts":[]}`:                        "unknown field `mounts`",
		`{"name":"x","memoryMb":64}`:                      "memoryMb must be",
		`{"name":"x","cpus":0}`:                           "cpus must be",
		`{"name":"x","cpus":300}`:                         "cannot unmarshal",
		`{"name":"x","image":"a b"}`:                      "invalid image reference",
		`{"name":"x","image":"builtin:other"}`:            "builtin:busybox",
		`{"name":"x","cmd":["x"]}`:                        "need an image",
		`{"name":"x/y"}`:                                  "invalid machine name",
		`{"name":"x","ports":[{"host":0,"guest":1}]}`:     "port 0",
		`{"name":"x","allowedCidrs":["10.0.0.0/99"]}`:     "invalid CIDR",
		`{"name":"x","allowedHosts":["http://a.test"]}`:   "not the name of a host",
		`{"name":"x","env":[{"name":"","value":"hush"}]}`: "invalid environment",
	} {
		status, _, text := d.ask(t, "POST", "/api/v1/machines", body)
		if status/100 != 4 || !strings.Contains(text, want) || strings.Contains(text, "hush") {
			t.Errorf("%s: %d %s", body, status, text)
		}
	}
	if _, err := f.Create(t.Context(), fleet.Spec{Name: "none", Image: "127.0.0.1:1/none:1"}); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Start(t.Context(), "none", fleet.StartOptions{}); err == nil || !strings.Contains(err.Error(), "failed to pull") {
		t.Errorf("an image that there is not: %v", err)
	}
	if s := state(t, f, "none"); s != fleet.Created {
		t.Errorf("after a failed start it is %s", s)
	}
	for _, c := range []struct {
		method, path string
		status       int
	}{{"GET", "/nothing", 404}, {"PATCH", "/api/v1/machines", 405}, {"POST", "/api/v1/machines/none/fork", 404}} {
		if status, _, body := d.ask(t, c.method, c.path, ""); status != c.status || body != "" {
			t.Errorf("%s %s: %d %q", c.method, c.path, status, body)
		}
	}
}

// Input and output of some size pass whole.
func TestBulk(t *testing.T) {
	f := start(t).client(t)
	vm := booted(t, f, fleet.Spec{Name: "vm"})
	data := bytes.Repeat([]byte("0123456789abcdef"), 1<<20)
	begun := time.Now()
	if err := f.Upload(t.Context(), vm, "/root/bulk", bytes.NewReader(data), int64(len(data))); err != nil {
		t.Fatal(err)
	}
	up := time.Since(begun)
	var got bytes.Buffer
	begun = time.Now()
	if _, err := f.Download(t.Context(), vm, "/root/bulk", &got, 0); err != nil || !bytes.Equal(got.Bytes(), data) {
		t.Errorf("%d bytes, %v", got.Len(), err)
	}
	t.Logf("16 MiB: up %.1f MiB/s, down %.1f MiB/s", 16/up.Seconds(), 16/time.Since(begun).Seconds())
}
