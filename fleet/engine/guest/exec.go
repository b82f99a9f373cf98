//go:build linux

package guest

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/yamux"

	"smol-mcp/fleet/engine/agent"
	"smol-mcp/fleet/engine/guest/job"
)

// grace is how long the output of a program is waited for after its end: what it
// started may hold the pipes open for ever, or be about to write the rest.
const grace = 200 * time.Millisecond

// launch starts e with the files as its standard streams, in a session of its
// own, and in a control group unless that is job.NoGroup.
func (g *guest) launch(e agent.Exec, files [3]int, group int) (pid int, ended <-chan syscall.WaitStatus, err error) {
	if len(e.Argv) == 0 {
		return 0, nil, &job.LaunchError{Code: 126, Err: errors.New("no command")}
	}
	who, err := lookUser(e.User)
	if err != nil {
		return 0, nil, &job.LaunchError{Code: 126, Err: err}
	}
	env := append([]string{"HOME=" + who.home}, e.Env...) // the last one of a name counts
	dir := e.Dir
	if dir == "" {
		dir = "/"
	}
	if fi, err := os.Stat(dir); err != nil || !fi.IsDir() {
		return 0, nil, &job.LaunchError{Code: 126, Err: fmt.Errorf("working directory %s: no such directory", dir)}
	}
	path, err := lookPath(e.Argv[0], env, dir)
	if err != nil {
		return 0, nil, &job.LaunchError{Code: 127, Err: err}
	}
	attr := &syscall.ProcAttr{Dir: dir, Env: lastOfEach(env), Sys: &syscall.SysProcAttr{
		Setsid: true, Credential: who.cred, UseCgroupFD: group != job.NoGroup, CgroupFD: group,
	}}
	for _, fd := range files {
		attr.Files = append(attr.Files, uintptr(fd))
	}
	pid, ended, err = g.procs.start(path, e.Argv, attr)
	if errors.Is(err, syscall.ENOEXEC) { // a script without a first line that says what runs it, as execvp has it
		pid, ended, err = g.procs.start("/bin/sh", append([]string{"sh", path}, e.Argv[1:]...), attr)
	}
	if err != nil {
		return 0, nil, &job.LaunchError{Code: 126, Err: fmt.Errorf("%s: %w", e.Argv[0], err)}
	}
	return pid, ended, nil
}

// lastOfEach keeps the last value of each variable.
func lastOfEach(env []string) []string {
	at := map[string]int{}
	var out []string
	for _, kv := range env {
		name, _, _ := strings.Cut(kv, "=")
		if i, ok := at[name]; ok {
			out[i] = kv
			continue
		}
		at[name] = len(out)
		out = append(out, kv)
	}
	return out
}

// lookPath finds a program as a shell does.
func lookPath(name string, env []string, dir string) (string, error) {
	if strings.Contains(name, "/") {
		path := name
		if !filepath.IsAbs(path) {
			path = filepath.Join(dir, path)
		}
		if _, err := os.Stat(path); err != nil {
			return "", fmt.Errorf("executable file %s not found", name)
		}
		return name, nil
	}
	for i := len(env) - 1; i >= 0; i-- {
		list, ok := strings.CutPrefix(env[i], "PATH=")
		if !ok {
			continue
		}
		for _, d := range filepath.SplitList(list) {
			path := filepath.Join(d, name)
			if fi, err := os.Stat(path); err == nil && fi.Mode().IsRegular() && fi.Mode()&0o111 != 0 {
				return path, nil
			}
		}
		break
	}
	return "", fmt.Errorf("executable file %s not found in PATH", name)
}

// exec runs a program and sends its output. The program lives until its own end
// or timeout, also when the engine hangs up.
func (g *guest) exec(st *yamux.Stream, out *agent.Frames, e agent.Exec) {
	exit, err := g.run(st, out, e)
	_ = out.JSON(agent.Exited, withReason(exit, err))
}

// withReason is exit with why the program did not run at all.
func withReason(exit agent.Exit, err error) agent.Exit {
	var failed *job.LaunchError
	if errors.As(err, &failed) {
		exit.Code, exit.Error = failed.Code, failed.Error()
	} else if err != nil {
		exit.Code, exit.Error = 126, err.Error()
	}
	return exit
}

func (g *guest) run(st *yamux.Stream, out *agent.Frames, e agent.Exec) (agent.Exit, error) {
	if e.Background {
		return g.background(e)
	}
	p, err := newPipes()
	if err != nil {
		return agent.Exit{}, err
	}
	defer p.close()
	pid, ended, err := g.launch(e, p.theirs, job.NoGroup)
	p.closeTheirs()
	if err != nil {
		return agent.Exit{}, err
	}
	var late atomic.Bool
	if e.TimeoutMS > 0 {
		timer := time.AfterFunc(time.Duration(e.TimeoutMS)*time.Millisecond, func() {
			late.Store(true)
			_ = syscall.Kill(-pid, syscall.SIGKILL)
		})
		defer timer.Stop()
	}
	go feed(st, p.ours[0])
	var reading sync.WaitGroup
	for i, kind := range []byte{agent.Stdout, agent.Stderr} {
		reading.Go(func() { drain(p.ours[1+i], out.Stream(kind)) })
	}
	ws := <-ended
	deadline := time.Now().Add(grace)
	_ = p.ours[1].SetReadDeadline(deadline)
	_ = p.ours[2].SetReadDeadline(deadline)
	reading.Wait()
	exit := agent.Exit{Code: ws.ExitStatus(), TimedOut: late.Load() && ws.Signaled()}
	if ws.Signaled() {
		exit.Code = 128 + int(ws.Signal())
	}
	return exit, nil
}

// pipes are the standard streams of a program: our ends, and its ends, which block as
// programs expect.
type pipes struct {
	ours   [3]*os.File
	theirs [3]int
}

func newPipes() (*pipes, error) {
	p := &pipes{theirs: [3]int{-1, -1, -1}}
	for i := range 3 {
		var ends [2]int
		if err := syscall.Pipe2(ends[:], syscall.O_CLOEXEC); err != nil {
			p.close()
			return nil, err
		}
		ours := ends[0]
		if p.theirs[i] = ends[1]; i == 0 {
			p.theirs[i], ours = ends[0], ends[1]
		}
		_ = syscall.SetNonblock(ours, true) // so that reads can have deadlines
		p.ours[i] = os.NewFile(uintptr(ours), "pipe")
	}
	return p, nil
}

func (p *pipes) closeTheirs() {
	for i, fd := range p.theirs {
		if fd >= 0 {
			_ = syscall.Close(fd)
			p.theirs[i] = -1
		}
	}
}

func (p *pipes) close() {
	p.closeTheirs()
	for _, f := range p.ours {
		if f != nil {
			f.Close()
		}
	}
}

// feed gives a program its input. It ends when the engine is through or has hung
// up, or when the program does not take it any more.
func feed(st *yamux.Stream, stdin *os.File) {
	defer stdin.Close()
	var buf []byte
	for {
		kind, data, err := agent.Next(st, buf)
		if err != nil || kind != agent.Stdin {
			return
		}
		buf = data
		if _, err := stdin.Write(data); err != nil {
			break
		}
	}
	_, _ = io.Copy(io.Discard, st) // so that the engine is not kept waiting
}

// drain sends what a pipe gives until its end, or until its read deadline: then
// what is in it still. When the engine has hung up the bytes are lost, but the
// program must not block.
func drain(r *os.File, w io.Writer) {
	buf := make([]byte, 32<<10)
	send := func(p []byte) {
		if w == nil || len(p) == 0 {
			return
		}
		if _, err := w.Write(p); err != nil {
			w = nil
		}
	}
	for {
		n, err := r.Read(buf)
		send(buf[:n])
		if errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		if err != nil {
			return
		}
	}
	job.Rest(r, buf, send)
}

// background starts a program without streams and answers with its id.
func (g *guest) background(e agent.Exec) (agent.Exit, error) {
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		return agent.Exit{}, err
	}
	defer null.Close()
	pid, _, err := g.launch(e, [3]int{int(null.Fd()), int(null.Fd()), int(null.Fd())}, job.NoGroup)
	return agent.Exit{PID: pid}, err
}

// workload starts the machine's own program. Its output goes to the console, and
// so does the reason when it cannot be started: the machine is usable without.
func (g *guest) workload(e agent.Exec) {
	null, err := os.OpenFile("/dev/null", os.O_RDONLY, 0)
	if err != nil {
		say("workload: %v", err)
		return
	}
	defer null.Close()
	console, err := os.OpenFile("/dev/console", os.O_WRONLY|syscall.O_NOCTTY, 0)
	if err != nil {
		say("workload: %v", err)
		return
	}
	defer console.Close()
	if _, _, err := g.launch(e, [3]int{int(null.Fd()), int(console.Fd()), int(console.Fd())}, job.NoGroup); err != nil {
		say("workload: %v", err)
	}
}
