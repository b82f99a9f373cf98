package fleettest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"smol-mcp/fleet"
)

func sh(script string) fleet.Command {
	return fleet.Command{Argv: []string{"sh", "-c", script}, Timeout: 20 * time.Second}
}

func TestGuestRun(t *testing.T) {
	bare, image := NewGuest(t, GuestOptions{}), NewGuest(t, GuestOptions{Image: true})
	for _, c := range []struct {
		name   string
		cmd    fleet.Command
		code   int
		stdout string
	}{
		{"exit", sh("exit 7"), 7, ""},
		{"signal", sh("kill -TERM $$"), 143, ""},
		{"bytes", sh(`printf '\000\377x'`), 0, "\x00\xffx"},
		{"stdin", fleet.Command{Argv: []string{"cat"}, Stdin: "hello"}, 0, "hello"},
		{"unread stdin", fleet.Command{Argv: []string{"true"}, Stdin: strings.Repeat("x", 1<<20)}, 0, ""},
		{"env", fleet.Command{Argv: []string{"sh", "-c", `echo "$A|$HOME"`}, Env: map[string]string{"A": "b c"}}, 0, "b c|/root\n"},
		{"workdir", fleet.Command{Argv: []string{"pwd"}, Workdir: "/workspace"}, 0, "/workspace\n"},
		{"null", sh("cat /dev/null; echo x > /dev/null"), 0, ""},
		{"missing in a shell", sh("nope 2>/dev/null"), 127, ""},
		{"session", sh("setsid sh -c 'echo far'"), 0, "far\n"},
		{"no way out", sh("cd /; cd ..; test ! -e /work && echo in"), 0, "in\n"},
	} {
		for _, g := range []*Guest{bare, image} {
			res, err := g.Run(c.cmd)
			if err != nil || res.ExitCode != c.code || string(res.Stdout) != c.stdout {
				t.Errorf("%s: code %d stdout %q stderr %q err %v", c.name, res.ExitCode, res.Stdout, res.Stderr, err)
			}
		}
	}
}

func TestGuestMissingProgram(t *testing.T) {
	bare, image := NewGuest(t, GuestOptions{}), NewGuest(t, GuestOptions{Image: true})
	for _, cmd := range []fleet.Command{{Argv: []string{"nope"}}, {Argv: []string{"/bin/nope"}}, {Argv: []string{"true"}, Workdir: "/nope"}} {
		_, err := bare.Run(cmd)
		if want := "failed to spawn command: No such file or directory (os error 2)"; err == nil || err.Error() != want {
			t.Errorf("bare %q: %v", cmd.Argv, err)
		}
		res, err := image.Run(cmd)
		if err != nil || res.ExitCode == 0 || !strings.HasPrefix(string(res.Stderr), "crun: ") {
			t.Errorf("image %q: %d %q %v", cmd.Argv, res.ExitCode, res.Stderr, err)
		}
	}
}

func TestGuestTimeout(t *testing.T) {
	g := NewGuest(t, GuestOptions{Image: true})
	for _, script := range []string{
		"echo part; sleep 60",
		"echo part; sleep 60 & wait",
		"echo part; (trap '' TERM HUP INT; sleep 60) & sleep 61",
		"echo part; setsid sleep 60 &", // holds the pipe, in a session of its own
	} {
		cmd := sh(script)
		cmd.Timeout = 200 * time.Millisecond
		began := time.Now()
		res, err := g.Run(cmd)
		if err != nil || res.ExitCode != 124 || string(res.Stdout) != "part\n" || string(res.Stderr) != "\ncommand timed out after 200ms" {
			t.Errorf("%s: %d %q %q %v", script, res.ExitCode, res.Stdout, res.Stderr, err)
		}
		if d := time.Since(began); d > 5*time.Second {
			t.Errorf("%s: took %v", script, d)
		}
	}
	if n := len(g.pids()); n != 1 { // the daemon lives
		t.Errorf("%d processes left, want the one daemon", n)
	}
}

func TestGuestOutputCap(t *testing.T) {
	bare, image := NewGuest(t, GuestOptions{}), NewGuest(t, GuestOptions{Image: true})
	cmd := fleet.Command{Argv: []string{"cat", "/dev/zero"}, Timeout: time.Minute}
	if os.Geteuid() != 0 {
		cmd = fleet.Command{Argv: []string{"yes"}, Timeout: time.Minute}
	}
	if _, err := bare.Run(cmd); !errors.Is(err, ErrOutput) {
		t.Errorf("bare: %v", err)
	}
	res, err := image.Run(cmd)
	if err != nil || res.ExitCode != 141 || len(res.Stdout) != MaxOutput {
		t.Errorf("image: %d, %d bytes, %v", res.ExitCode, len(res.Stdout), err)
	}
}

func TestGuestStopKeepsTheDisk(t *testing.T) {
	g := NewGuest(t, GuestOptions{})
	if _, err := g.Run(sh("echo t > /tmp/t; echo d > /root/d; setsid sleep 60 >/dev/null 2>&1 &")); err != nil {
		t.Fatal(err)
	}
	// Another instance, as after a restart of the server, finds what the first one left.
	again, err := OpenGuest(g.Dir(), GuestOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(again.pids()) != 1 {
		t.Errorf("processes %v, want the sleep", again.pids())
	}
	if err := again.Stop(); err != nil {
		t.Fatal(err)
	}
	res, err := again.Run(sh("ls /tmp; cat /root/d"))
	if err != nil || string(res.Stdout) != "d\n" || len(again.pids()) != 0 {
		t.Errorf("after stop %q %v, processes %v", res.Stdout, err, again.pids())
	}
}

func TestGuestExecLetsGo(t *testing.T) {
	g := NewGuest(t, GuestOptions{})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := g.Exec(ctx, sh("sleep 60")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	if len(g.pids()) == 0 {
		t.Error("the command died with its caller")
	}
}

func TestGuestNoShell(t *testing.T) {
	g := NewGuest(t, GuestOptions{Image: true, NoShell: true})
	for _, name := range []string{"sh", "true", "busybox"} {
		if res, err := g.Run(fleet.Command{Argv: []string{name}}); err != nil || res.ExitCode == 0 {
			t.Errorf("%s: %d %v", name, res.ExitCode, err)
		}
	}
	if res, err := g.Run(fleet.Command{Argv: []string{"echo", "hi"}}); err != nil || string(res.Stdout) != "hi\n" {
		t.Errorf("echo: %q %v", res.Stdout, err)
	}
}

func TestGuestFiles(t *testing.T) {
	g := NewGuest(t, GuestOptions{})
	blob := bytes.Repeat([]byte{0, 0xff, 'a'}, 1<<18)
	if n, err := g.WriteFile("/a/b/c.bin", bytes.NewReader(blob)); err != nil || n != int64(len(blob)) {
		t.Fatal(n, err)
	}
	if b, err := g.ReadFile("/a/b/c.bin"); err != nil || !bytes.Equal(b, blob) {
		t.Error(len(b), err)
	}
	if _, err := g.Run(sh("mkdir /x; ln -s /a/b /x/abs; ln -s ../../../../a/b/c.bin /x/up; ln -s /x/loop /x/loop; ln -s c.bin /a/b/link; chmod 755 /a/b/c.bin; mkfifo /x/pipe")); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{"/x/abs/c.bin", "/x/up", "/x/../../x/up", "/a/b/link"} {
		if b, err := g.ReadFile(p); err != nil || len(b) != len(blob) {
			t.Errorf("%s: %d %v", p, len(b), err)
		}
	}
	if _, err := g.WriteFile("/a/b/link", strings.NewReader("new")); err != nil {
		t.Fatal(err)
	}
	if res, _ := g.Run(sh("test ! -L /a/b/link && stat -c '%a %s' /a/b/link /a/b/c.bin")); string(res.Stdout) != fmt.Sprintf("644 3\n755 %d\n", len(blob)) {
		t.Errorf("replaced link: %q", res.Stdout)
	}
	if _, err := g.ReadFile("/nope"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing: %v", err)
	}
	for _, p := range []string{"/x", "/x/pipe"} {
		if _, err := g.ReadFile(p); !errors.Is(err, ErrNotRegular) {
			t.Errorf("%s: %v", p, err)
		}
	}
	if _, err := g.ReadFile("/x/loop"); err == nil {
		t.Error("a loop of links was read")
	}
	if _, err := g.WriteFile("/x", strings.NewReader("")); err == nil {
		t.Error("a directory was replaced")
	}
}

// An uploaded program can be run at once, however many are being started meanwhile.
func TestGuestRunsWhatWasJustWritten(t *testing.T) {
	g := NewGuest(t, GuestOptions{})
	stop := make(chan struct{})
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				exec.Command("/bin/true").Run()
			}
		}
	}()
	for i := range 50 {
		p := fmt.Sprintf("/root/prog%d", i)
		if _, err := g.WriteFile(p, strings.NewReader("#!/bin/sh\necho ran\n")); err != nil {
			t.Fatal(err)
		}
		if res, err := g.Run(sh("chmod 755 " + p + " && " + p)); err != nil || string(res.Stdout) != "ran\n" {
			t.Fatalf("%q %q %v", res.Stdout, res.Stderr, err)
		}
	}
	close(stop)
	<-stopped
}

func TestGuestsShareOneBusybox(t *testing.T) {
	shared := t.TempDir() + "/busybox"
	var ino []os.FileInfo
	for range 2 {
		g := NewGuest(t, GuestOptions{Busybox: shared})
		fi, err := os.Stat(g.Dir() + "/bin/busybox")
		if err != nil {
			t.Fatal(err)
		}
		ino = append(ino, fi)
	}
	if !os.SameFile(ino[0], ino[1]) {
		t.Error("two copies")
	}
}
