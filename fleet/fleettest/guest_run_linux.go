package fleettest

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"sort"
	"strings"
	"syscall"
	"time"

	"smol-mcp/fleet"
)

// Run runs a command in the guest and waits for its end and for the end of
// its output. After cmd.Timeout its session is killed and the exit code is
// 124; zero is no limit. What cannot be run is an error of a bare guest, and
// a result of one with an image, both in smolvm's words.
func (g *Guest) Run(cmd fleet.Command) (fleet.Result, error) {
	p, err := g.start(cmd)
	if err == nil {
		return g.finish(p, cmd.Timeout)
	}
	if !g.opts.Image {
		return fleet.Result{}, err
	}
	return fleet.Result{ExitCode: 1, Stderr: []byte(crunText(cmd, err))}, nil
}

// Spawn starts a command that nobody waits for, its output thrown away, and
// returns its process id.
func (g *Guest) Spawn(cmd fleet.Command) (int, error) {
	p, err := g.start(cmd)
	if err != nil {
		return 0, err
	}
	go g.finish(p, 0) // ends with the command; Close kills it
	return p.cmd.Process.Pid, nil
}

// process is a command that runs.
type process struct {
	cmd      *exec.Cmd
	out, err *stream
}

// errWorkdir is a working directory that is none.
var errWorkdir = errors.New("failed to spawn command: No such file or directory (os error 2)")

func (g *Guest) start(cmd fleet.Command) (*process, error) {
	if len(cmd.Argv) == 0 {
		return nil, errors.New("command cannot be empty")
	}
	if cmd.Workdir != "" {
		if fi, err := g.Stat(cmd.Workdir); err != nil || !fi.IsDir() {
			return nil, errWorkdir
		}
	}
	env := mergeEnv(cmd.Env)
	prog, err := g.lookPath(cmd.Argv[0], env)
	if err != nil {
		return nil, spawnError(err)
	}
	g.emptyNull()
	g.fork.RLock()
	defer g.fork.RUnlock()
	for try := 0; ; try++ {
		p, err := launch(g.command(cmd, prog, env), cmd.Stdin)
		// A program that was uploaded a moment ago may be open in a child that has
		// not reached its own exec yet.
		if !errors.Is(err, syscall.ETXTBSY) || try == 20 {
			return p, err
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func (g *Guest) command(cmd fleet.Command, prog string, env []string) *exec.Cmd {
	c := &exec.Cmd{Path: prog, Args: cmd.Argv, Env: env, Dir: "/", SysProcAttr: &syscall.SysProcAttr{Chroot: g.dir, Setsid: true}}
	if cmd.Workdir != "" {
		c.Dir = cmd.Workdir
	}
	if os.Geteuid() != 0 { // root in a user namespace may chroot
		c.SysProcAttr.Cloneflags = syscall.CLONE_NEWUSER
		c.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}}
		c.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}}
	}
	return c
}

// launch starts c with pipes of our own: those of os/exec have no bound.
func launch(c *exec.Cmd, stdin string) (*process, error) {
	var files []*os.File
	for range 3 {
		r, w, err := os.Pipe()
		if err != nil {
			closeAll(files)
			return nil, err
		}
		files = append(files, r, w)
	}
	c.Stdin, c.Stdout, c.Stderr = files[0], files[3], files[5]
	feed, out, errs := files[1], files[2], files[4]
	err := c.Start()
	if err != nil {
		closeAll(files)
		return nil, spawnError(err)
	}
	closeAll([]*os.File{files[0], files[3], files[5]})
	go func() { // ends when the child reads or closes its stdin, at the latest when it dies
		io.WriteString(feed, stdin)
		feed.Close()
	}()
	return &process{c, readStream(out), readStream(errs)}, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// finish waits for a command and the end of its output.
func (g *Guest) finish(p *process, timeout time.Duration) (fleet.Result, error) {
	exited := make(chan error, 1)
	ended := make(chan struct{})
	go func() {
		exited <- p.cmd.Wait()
		close(ended)
	}()
	var late <-chan time.Time
	if timeout > 0 {
		timer := time.NewTimer(timeout)
		defer timer.Stop()
		late = timer.C
	}
	timedOut := false
	for _, end := range []<-chan struct{}{ended, p.out.eof, p.err.eof} {
		select {
		case <-end:
		case <-late:
			timedOut, late = true, nil
			g.killSession(p.cmd.Process.Pid)
			p.out.giveUp()
			p.err.giveUp()
			<-end
		}
	}
	return g.result(p, <-exited, timedOut, timeout)
}

func (g *Guest) result(p *process, exit error, timedOut bool, timeout time.Duration) (fleet.Result, error) {
	res := fleet.Result{Stdout: p.out.bytes(), Stderr: p.err.bytes()}
	if timedOut {
		res.ExitCode = 124
		if g.opts.Image {
			res.Stderr = fmt.Appendf(res.Stderr, "\ncommand timed out after %dms", timeout.Milliseconds())
		}
		return res, nil
	}
	if !g.opts.Image && (p.out.over || p.err.over) {
		return fleet.Result{}, ErrOutput
	}
	var e *exec.ExitError
	switch {
	case exit == nil:
		return res, nil
	case !errors.As(exit, &e):
		return fleet.Result{}, exit
	}
	res.ExitCode = e.ExitCode()
	if ws, ok := e.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		res.ExitCode = 128 + int(ws.Signal())
	}
	return res, nil
}

// spawnError says that err kept a command from starting.
func spawnError(err error) error {
	if errors.Is(err, syscall.EPERM) && os.Geteuid() != 0 {
		return fmt.Errorf("failed to spawn command: %w: an ordinary user needs unprivileged user namespaces", err)
	}
	return fmt.Errorf("failed to spawn command: %w", osWords(err))
}

// crunText is what the container runtime prints for a command that it cannot start.
func crunText(cmd fleet.Command, err error) string {
	switch {
	case errors.Is(err, errWorkdir):
		return fmt.Sprintf("crun: chdir to `%s`: No such file or directory\n", cmd.Workdir)
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Sprintf("crun: executable file `%s` not found in $PATH: No such file or directory\n", cmd.Argv[0])
	}
	return "crun: " + err.Error() + "\n"
}

// mergeEnv adds what every guest has in its environment.
func mergeEnv(env map[string]string) []string {
	all := map[string]string{"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}
	for k, v := range env {
		all[k] = v
	}
	list := make([]string, 0, len(all))
	for k, v := range all {
		list = append(list, k+"="+v)
	}
	sort.Strings(list)
	return list
}

// lookPath finds a program as execvp would inside the guest.
func (g *Guest) lookPath(name string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	for _, kv := range env {
		list, ok := strings.CutPrefix(kv, "PATH=")
		if !ok {
			continue
		}
		for _, d := range strings.Split(list, ":") {
			p := path.Join("/", d, name)
			if fi, err := g.Stat(p); err == nil && fi.Mode().IsRegular() && fi.Mode()&0o111 != 0 {
				return p, nil
			}
		}
	}
	return "", syscall.ENOENT
}
