//go:build linux

package job_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smol-mcp/fleet/engine/agent"
	"smol-mcp/fleet/engine/guest/job"
)

// boot is the boot's id of the tests' hosts.
const boot = "a-boot"

// newHost is a system with these files whose programs are started by launch.
func newHost(t *testing.T, dir string, launch func(agent.Exec, [3]int, int) (int, <-chan syscall.WaitStatus, error)) *job.Host {
	t.Helper()
	id := filepath.Join(dir, "boot_id")
	if err := os.WriteFile(id, []byte(boot+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return &job.Host{Launch: launch, BootID: id}
}

// spawn starts a program of this computer, as a guest does.
func spawn(e agent.Exec, files [3]int, _ int) (int, <-chan syscall.WaitStatus, error) {
	attr := &syscall.ProcAttr{Dir: e.Dir, Env: e.Env, Sys: &syscall.SysProcAttr{Setsid: true}}
	for _, fd := range files {
		attr.Files = append(attr.Files, uintptr(fd))
	}
	pid, err := syscall.ForkExec(e.Argv[0], e.Argv, attr)
	if err != nil {
		return 0, nil, &job.LaunchError{Code: 126, Err: err}
	}
	ended := make(chan syscall.WaitStatus, 1)
	go func() { // ends with the program
		var ws syscall.WaitStatus
		_, _ = syscall.Wait4(pid, &ws, 0, nil)
		ended <- ws
	}()
	return pid, ended, nil
}

func request(dir, script string, j agent.Job) job.Request {
	j.ID, j.Limit = "abcdef123456", 1000
	return job.Request{
		Exec: agent.Exec{Argv: []string{"/bin/sh", "-c", script}, Env: []string{"PATH=" + os.Getenv("PATH"), "TMPDIR=" + dir}, Dir: dir},
		Job:  j,
		As:   func(do func() error) error { return do() },
	}
}

// answer runs a job and returns what it answers.
func answer(t *testing.T, h *job.Host, req job.Request) string {
	t.Helper()
	var stdout, stderr bytes.Buffer
	if err := h.Run(req, strings.NewReader(""), &stdout, &stderr); err != nil {
		t.Fatal(err)
	}
	return stdout.String()
}

// The rest of a pipe has an end, also when others write on and on.
func TestRest(t *testing.T) {
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		t.Fatal(err)
	}
	pipe, theirs := os.NewFile(uintptr(ends[0]), "pipe"), os.NewFile(uintptr(ends[1]), "theirs")
	defer pipe.Close()
	defer theirs.Close()
	write := func(text string) {
		if _, err := theirs.WriteString(text); err != nil {
			t.Fatal(err)
		}
	}
	write("first")
	var got []byte
	over := job.Rest(pipe, make([]byte, 4096), func(p []byte) {
		if got = append(got, p...); len(got) < 4<<20 {
			write(strings.Repeat("x", 4096))
		}
	})
	if over || !bytes.HasPrefix(got, []byte("first")) || len(got) >= 4<<20 {
		t.Errorf("over is %v after %d bytes", over, len(got))
	}
	theirs.Close()
	if !job.Rest(pipe, make([]byte, 4096), func(p []byte) { got = append(got, p...) }) {
		t.Error("it is not over when they have closed their end")
	}
}

// When its time is over a process is told so once, and what does not listen is killed: also what
// dropped its environment and outlived the command in its group.
func TestExpire(t *testing.T) {
	dir := t.TempDir()
	h := newHost(t, dir, spawn)
	script := `trap 'echo told; exit 3' TERM
env -i /bin/sh -c 'trap "" TERM; echo $$ >deaf; while :; do sleep 0.1; done' >/dev/null 2>&1 &
env -i /bin/sh -c 'trap "echo more >>times" TERM; echo >ready; while :; do sleep 0.1; done' >/dev/null 2>&1 &
/bin/sh -c 'trap "echo again >>marked" TERM; echo >ready2; while :; do sleep 0.1; done' >/dev/null 2>&1 &
while :; do sleep 0.1; done`
	said := answer(t, h, request(dir, script, agent.Job{WaitMS: 60_000, TimeoutMS: 3000}))
	if !strings.Contains(said, "\nexit 3 ") || !strings.Contains(said, " timeout ") || !strings.Contains(said, "told\n") {
		t.Errorf("it said %q", said)
	}
	text, err := os.ReadFile(dir + "/deaf")
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Kill(pid, syscall.SIGKILL) }()
	for end := time.Now().Add(30 * time.Second); alive(pid); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("what is deaf lives on")
		}
	}
	for _, file := range []string{"times", "marked"} {
		if told, err := os.ReadFile(filepath.Join(dir, file)); bytes.Count(told, []byte("\n")) != 1 {
			t.Errorf("%s: %q, %v", file, told, err)
		}
	}
}

// alive reports whether a process is there that is not dead.
func alive(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err == nil && !bytes.Contains(stat, []byte(") Z "))
}
