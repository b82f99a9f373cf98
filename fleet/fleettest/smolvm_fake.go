package fleettest

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// SmolvmFake is a fake smolvm within the test's process.
type SmolvmFake struct {
	t      testing.TB
	opts   SmolvmOptions
	socket string

	mu     sync.Mutex
	server *smolvmServer
	http   *http.Server
	served chan struct{} // closed when http no longer accepts
}

// StartSmolvm starts a fake smolvm for the time of the test. Without static
// busybox it can do all but start machines.
func StartSmolvm(t testing.TB, opts SmolvmOptions) *SmolvmFake {
	t.Helper()
	if opts.Data == "" {
		opts.Data = filepath.Join(t.TempDir(), "smolvm")
	}
	f := &SmolvmFake{t: t, opts: opts, socket: filepath.Join(shortDir(t), "s")}
	f.start()
	t.Cleanup(func() {
		if err := f.stop(true); err != nil {
			t.Error(err)
		}
	})
	return f
}

// shortDir is a temporary directory whose path leaves room for a socket's name.
func shortDir(t testing.TB) string {
	base := ""
	if len(os.TempDir()) > 40 {
		base = "/tmp"
	}
	dir, err := os.MkdirTemp(base, "svm")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func (f *SmolvmFake) start() {
	f.t.Helper()
	server, err := newSmolvmServer(f.opts)
	if err != nil {
		f.t.Fatal(err)
	}
	l, err := net.Listen("unix", f.socket)
	if err != nil {
		f.t.Fatal(err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.server, f.served = server, make(chan struct{})
	f.http = newHTTPServer(server)
	go func(h *http.Server, served chan struct{}) { // ends with stop
		defer close(served)
		h.Serve(l)
	}(f.http, f.served)
}

func newHTTPServer(h http.Handler) *http.Server {
	return &http.Server{Handler: h, ErrorLog: log.New(io.Discard, "", 0)}
}

// stop ends the server, and with kill its machines, then waits for all it was doing.
func (f *SmolvmFake) stop(kill bool) error {
	s := f.current()
	s.close()
	f.http.Close()
	<-f.served
	var err error
	if kill {
		err = s.killAll()
	}
	done := make(chan struct{})
	go func() {
		s.work.Wait()
		close(done)
	}()
	select {
	case <-done:
		return err
	case <-time.After(30 * time.Second):
		return errors.Join(err, errors.New("fake smolvm: a request does not end"))
	}
}

func (f *SmolvmFake) current() *smolvmServer {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.server
}

// Dial connects to the server.
func (f *SmolvmFake) Dial(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "unix", f.socket)
}

// URL is where the server answers, as unix:///path.
func (f *SmolvmFake) URL() string { return "unix://" + f.socket }

// Data is the directory of the server's machines and logs.
func (f *SmolvmFake) Data() string { return f.opts.Data }

// Restart ends the server like a crash and starts it again: connections break,
// commands that run are killed, machines stay.
func (f *SmolvmFake) Restart() {
	f.t.Helper()
	old := f.current()
	if err := f.stop(true); err != nil {
		f.t.Fatal(err)
	}
	f.start()
	s := f.current()
	s.faults.added, s.requests.list, s.version = old.faults.added, old.requests.list, old.version
}

// SetVersion makes the server play another release from now on.
func (f *SmolvmFake) SetVersion(version string) {
	s := f.current()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version = version
}

// Fault adds a fault. Its requests are counted from now on.
func (f *SmolvmFake) Fault(fault SmolvmFault) { f.current().faults.add(fault) }

// ClearFaults forgets the faults of Fault.
func (f *SmolvmFake) ClearFaults() { f.current().faults.clear() }

// Requests returns the requests so far, in order of arrival.
func (f *SmolvmFake) Requests() []SmolvmRequest { return f.current().requests.all() }

// Count returns how many requests of a method had a path that ends in end;
// empty ones match all.
func (f *SmolvmFake) Count(method, end string) int {
	n := 0
	for _, r := range f.Requests() {
		if (method == "" || r.Method == method) && strings.HasSuffix(r.Path, end) {
			n++
		}
	}
	return n
}

// Names returns the machines that exist.
func (f *SmolvmFake) Names() []string {
	s := f.current()
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for n := range s.machines {
		names = append(names, n)
	}
	return names
}

// Guest returns the guest of a machine that was started; nil when there is none.
func (f *SmolvmFake) Guest(name string) *Guest {
	s := f.current()
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := s.machines[name]; m != nil {
		return m.guest
	}
	return nil
}

// Console adds lines to the console log of a machine that was started.
func (f *SmolvmFake) Console(name string, lines ...string) {
	f.t.Helper()
	if err := f.current().console(name, lines...); err != nil {
		f.t.Fatal(err)
	}
}

// built is the executable, made once in a process.
var built = sync.OnceValues(func() (string, error) {
	exe, err := os.Executable()
	if err != nil {
		return "", err
	}
	// Beside the test's own executable, which go test removes with its directory.
	dir, err := os.MkdirTemp(filepath.Dir(exe), "smolvm")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "smolvm")
	out, err := exec.Command("go", "build", "-o", path, "smol-mcp/fleet/fleettest/smolvm").CombinedOutput()
	if err != nil {
		return "", errors.New("go build fake smolvm: " + err.Error() + "\n" + string(out))
	}
	return path, nil
})

// BuildSmolvm builds the fake smolvm as an executable, once in a process, and
// returns its path. It wants SMOLVM_DATA_DIR, which [SmolvmData] makes.
func BuildSmolvm(t testing.TB) string {
	t.Helper()
	path, err := built()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// SmolvmData returns a data directory for the executable. At the end of the
// test the processes of all machines in it are killed.
func SmolvmData(t testing.TB) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "smolvm-data")
	if err := os.MkdirAll(filepath.Join(dir, "machines"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		roots, _ := filepath.Glob(filepath.Join(dir, "machines", "*", "root"))
		for _, root := range roots {
			if g, err := OpenGuest(root, GuestOptions{}); err == nil {
				g.Kill()
			}
		}
	})
	return dir
}
