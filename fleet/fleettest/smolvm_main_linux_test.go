package fleettest

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// program is a running fake smolvm.
type program struct {
	*exec.Cmd
	stderr bytes.Buffer
	ready  string
}

// startProgram starts the executable and waits for its ready line.
func startProgram(t *testing.T, data, listen string, env ...string) *program {
	t.Helper()
	p := &program{Cmd: exec.Command(BuildSmolvm(t), "serve", "start", "--listen", listen)}
	p.Env = append([]string{"PATH=" + os.Getenv("PATH"), "SMOLVM_DATA_DIR=" + data, "SMOLVM_GUEST_ROLLOUT_HOST_PORT=" + freePort(t)}, env...)
	p.Stderr = &p.stderr
	out, err := p.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Process.Kill(); p.Wait() })
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if strings.HasPrefix(lines.Text(), "smolvm API server listening on ") {
			p.ready = lines.Text()
			return p
		}
	}
	p.Wait()
	return p
}

func freePort(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return fmt.Sprint(l.Addr().(*net.TCPAddr).Port)
}

func dialUnix(path string) func(context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", path)
	}
}

// Machines outlive the server that made them, even one that is killed.
func TestProgramKilledAndRestarted(t *testing.T) {
	data, socket := SmolvmData(t), filepath.Join(shortDir(t), "s")
	p := startProgram(t, data, "unix://"+socket)
	a := newAPI(t, dialUnix(socket))
	a.want(200, "", "POST", base, `{"name":"m"}`)
	a.sh("m", "setsid sh -c 'while :; do date >/tmp/beat; sleep 0.05; done' >/dev/null 2>&1 &")
	p.Process.Kill()
	p.Wait()
	p = startProgram(t, data, socket) // over the stale socket
	if p.ready != "smolvm API server listening on unix://"+socket {
		t.Errorf("ready line %q", p.ready)
	}
	a.sh("m", "rm /tmp/beat")
	for deadline := time.Now().Add(10 * time.Second); a.do("GET", base+"/m/files/tmp/beat", "").code != 200; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the daemon died with the server")
		}
	}
	p.Process.Signal(syscall.SIGTERM)
	if err := p.Wait(); err != nil || !strings.Contains(p.stderr.String(), "Shutting down server (VMs continue running)...") {
		t.Errorf("SIGTERM: %v, stderr %q", err, p.stderr.String())
	}
	if _, err := os.Lstat(socket); err == nil {
		t.Error("the socket stays")
	}
	if n := len(SmolvmStarts(data)); n != 2 {
		t.Errorf("starts.log has %d starts", n)
	}
}

func TestProgramSecondPort(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := fmt.Sprint(l.Addr().(*net.TCPAddr).Port)
	p := startProgram(t, SmolvmData(t), filepath.Join(shortDir(t), "s"), "SMOLVM_GUEST_ROLLOUT_HOST_PORT="+port)
	want := "Error: config operation failed: bind guest rollout ingress: 127.0.0.1:" + port + ": Address already in use (os error 98)\n"
	if p.ready != "" || p.ProcessState.ExitCode() != 1 || p.stderr.String() != want {
		t.Errorf("ready %q, code %d, stderr %q", p.ready, p.ProcessState.ExitCode(), p.stderr.String())
	}
}

func TestProgramKnobs(t *testing.T) {
	data := SmolvmData(t)
	socket := filepath.Join(shortDir(t), "s")
	for i := range 2 {
		if p := startProgram(t, data, socket, "SMOLVM_FAKE_FAIL_STARTS=2"); p.ready != "" {
			t.Errorf("start %d succeeds", i)
		}
	}
	p := startProgram(t, data, "127.0.0.1:"+freePort(t), "SMOLVM_FAKE_FAIL_STARTS=2", "SMOLVM_FAKE_IGNORE_TERM=1")
	if !strings.HasPrefix(p.ready, "smolvm API server listening on http://127.0.0.1:") {
		t.Errorf("ready %q, stderr %q", p.ready, p.stderr.String())
	}
	out, err := exec.Command(BuildSmolvm(t), "--version").Output()
	if err != nil || string(out) != "smolvm 1.14.5\n" {
		t.Errorf("%q %v", out, err)
	}
}
