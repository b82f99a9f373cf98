//go:build unix

package engine_test

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"smol-mcp/fleet"
)

// A program in the guest ends the machine: it is stopped, with all that was written, and
// the next command starts it.
func TestEndedFromWithin(t *testing.T) {
	f := start(t).client(t)
	vm := booted(t, f, fleet.Spec{Name: "vm"})
	for i, end := range []string{"poweroff", "halt", "reboot", "kill -38 1", "kill -37 1", "kill -39 1", "sleep 1000 & kill 1; wait"} {
		for _, harmless := range []string{"HUP", "INT", "QUIT", "CONT"} {
			sh(t, f, vm, "kill -"+harmless+" 1")
		}
		line := fmt.Sprintf("echo %d >/etc/late; %s", i, end)
		res, err := f.Exec(t.Context(), vm, fleet.Command{Argv: []string{"/bin/sh", "-c", line}, Timeout: time.Minute})
		if err != nil && !fleet.MaybeDone(err) {
			t.Fatalf("%s: %v", end, err)
		}
		t.Logf("%s: exit code %d, %v", end, res.ExitCode, err)
		eventually(t, end+" stops it", func() bool { return state(t, f, vm) == fleet.Stopped })
		if got := sh(t, f, vm, "cat /etc/late"); got != fmt.Sprintln(i) {
			t.Errorf("after %s the file has %q", end, got)
		}
	}
	page, err := f.Logs(t.Context(), vm, fleet.LogQuery{Tail: 1000})
	if all := strings.Join(page.Lines, "\n"); err != nil || strings.Contains(all, "panic") || strings.Count(all, "asked to end") != 7 {
		t.Errorf("the console has %q, %v", page.Lines, err)
	}
}

// What was uploaded is there after the machine was killed at once, also in directories that
// the upload made.
func TestUploadOutlivesKill(t *testing.T) {
	d := start(t)
	f := d.client(t)
	vm := booted(t, f, fleet.Spec{Name: "vm"})
	large := strings.Repeat("0123456789abcdef", 1<<16)
	for round := range 3 {
		small := fmt.Sprintln("content", round)
		must(t, f.Upload(t.Context(), vm, "/srv/big/file", strings.NewReader(small+large), int64(len(small+large))))
		must(t, f.Upload(t.Context(), vm, "/dev/shm/in-memory", strings.NewReader(small), int64(len(small))))
		must(t, f.Upload(t.Context(), vm, "/etc/profile", strings.NewReader(small), int64(len(small))))
		must(t, f.Upload(t.Context(), vm, fmt.Sprintf("/srv/new%d/dir/file", round), strings.NewReader(small), int64(len(small))))
		must(t, syscall.Kill(d.record(t, vm).Process.PID, syscall.SIGKILL))
		eventually(t, "it is stopped", func() bool { return state(t, f, vm) == fleet.Stopped })
		line := fmt.Sprintf("cat /etc/profile /srv/new%d/dir/file; head -n 1 /srv/big/file; wc -c </srv/big/file; ls -A /srv/big /srv/new%d/dir", round, round)
		want := small + small + small + fmt.Sprintln(len(small+large)) + fmt.Sprintf("/srv/big:\nfile\n\n/srv/new%d/dir:\nfile\n", round)
		if got := sh(t, f, vm, line); got != want {
			t.Errorf("round %d: got %q, want %q", round, got, want)
		}
	}
}

// The builtin image has what servers are started with.
func TestNohup(t *testing.T) {
	f := start(t).client(t)
	vm := booted(t, f, fleet.Spec{Name: "vm"})
	for _, c := range []struct{ line, want string }{
		{`nohup sh -c 'kill -HUP $$; echo "alive: $1"' x 'a  b'`, "alive: a  b\n"},
		{`nohup -- echo -n x`, "x"},
		{"nohup; echo $?", "125\n"},
		{"nohup no-such-program 2>/dev/null; echo $?", "127\n"},
		{"nohup /etc/passwd 2>/dev/null; echo $?", "126\n"},
		{"nohup false; echo $?", "1\n"},
		{"cd /tmp; nohup httpd -f -p 8000 >log 2>&1 & sleep 0; for i in 1 2 3 4 5 6 7 8 9; do wget -qO- http://127.0.0.1:8000/etc/none 2>&1 | grep -o 404 && exit; sleep 1; done", "404\n"},
	} {
		if got := sh(t, f, vm, c.line); got != c.want {
			t.Errorf("%s: got %q, want %q", c.line, got, c.want)
		}
	}
}

// A start whose hypervisor is killed tells of what there is to tell.
func TestHypervisorKilledInStart(t *testing.T) {
	d := &daemon{opts: options(t)}
	d.opts.Cold = true
	d.run(t)
	t.Cleanup(func() {
		d.deleteAll(t)
		d.stop(t)
	})
	f := d.client(t)
	_, err := f.Create(t.Context(), fleet.Spec{Name: "vm", MemoryMB: 512, CPUs: 1})
	must(t, err)
	started := make(chan error, 1)
	go func() {
		_, err := f.Start(t.Context(), "vm", fleet.StartOptions{})
		started <- err
	}()
	eventually(t, "QEMU runs", func() bool {
		text, err := os.ReadFile(d.opts.Data + "/machines/vm/machine.json")
		return err == nil && strings.Contains(string(text), `"pid"`)
	})
	must(t, syscall.Kill(d.record(t, "vm").Process.PID, syscall.SIGKILL))
	select {
	case err = <-started:
	case <-time.After(time.Minute):
		t.Fatal("the start goes on without a hypervisor")
	}
	if err == nil || !strings.Contains(err.Error(), "QEMU ended") || strings.Contains(err.Error(), ": ;") || strings.HasSuffix(err.Error(), ": ") {
		t.Errorf("the start says %v", err)
	}
	t.Log(err)
}
