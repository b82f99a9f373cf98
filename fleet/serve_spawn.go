package fleet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// start starts an engine at home and waits until it is ready.
func (f *finder) start(ctx context.Context, home address) (*serving, error) {
	prog, err := f.program()
	if err != nil {
		return nil, err
	}
	if !home.local() {
		return nil, unavailable("start "+prog.name+" at "+home.String(), errors.New("nothing answers there, and it is not this computer's loopback"))
	}
	if err := home.fits(); err != nil {
		return nil, err
	}
	if home.network == "unix" {
		if err := clearStale(home.target); err != nil {
			return nil, unavailable("start "+prog.name, err)
		}
	}
	for try := 0; ; try++ {
		s, said, err := f.spawn(ctx, prog, home)
		switch {
		case err == nil:
			return s, nil
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case try == 0 && strings.Contains(said, "bind guest rollout ingress"):
			f.opts.Log.Warn("engine did not get its second port; once more with another", "err", err)
		default:
			return nil, err
		}
	}
}

// clearStale removes a socket that nobody listens on, and only a socket. An engine may have been
// started there by hand since it was last tried: without its socket it would be lost.
func clearStale(path string) error {
	fi, err := os.Lstat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return os.MkdirAll(filepath.Dir(path), 0o700)
	case err != nil:
		return err
	case fi.Mode().Type() != os.ModeSocket:
		return fmt.Errorf("%s is in the way: it is not a socket", path)
	}
	if conn, err := net.DialTimeout("unix", path, time.Second); err == nil {
		conn.Close()
		return fmt.Errorf("somebody has begun to listen at %s just now: call again", path)
	}
	return os.Remove(path)
}

// spawn starts the program once and waits until it is ready. After a failure
// nothing of it is left, and said is the end of what it printed.
func (f *finder) spawn(ctx context.Context, prog program, home address) (s *serving, said string, err error) {
	rec, from, err := f.launch(prog, home)
	if err != nil {
		return nil, "", err
	}
	s, err = f.settle(ctx, rec, home)
	if err == nil {
		f.opts.Log.Info("engine started", "program", prog.path, "pid", rec.PID, "url", rec.URL, "version", s.health.Version,
			"took", time.Since(rec.StartedAt).Round(time.Millisecond))
		return s, "", nil
	}
	status := f.reapChild()
	if stopErr := rec.stop(f.opts.Log); stopErr != nil {
		f.opts.Log.Warn("engine left over", "pid", rec.PID, "err", stopErr)
	}
	f.reapChild()
	said = tail(f.log(), from)
	return nil, said, f.startError(prog, err, status, said)
}

// launch starts the program and returns its record and where its output
// begins in the log.
func (f *finder) launch(prog program, home address) (rec *record, from int64, err error) {
	out, err := openLog(f.log())
	if err != nil {
		return nil, 0, unavailable("open the engine's log", err)
	}
	defer out.Close()
	if from, err = out.Seek(0, io.SeekEnd); err != nil {
		return nil, 0, unavailable("open the engine's log", err)
	}
	cmd, err := f.command(prog, home)
	if err != nil {
		return nil, 0, unavailable("start "+prog.name, err)
	}
	cmd.Stdout, cmd.Stderr = out, out
	closeOnExec()
	begun := time.Now()
	if err := cmd.Start(); err != nil {
		e := unavailable("start "+prog.name, err)
		e.Next = prog.hint
		return nil, 0, e
	}
	f.child = cmd.Process.Pid
	cmd.Process.Release()
	return &record{PID: f.child, Begun: processBegun(f.child), URL: home.String(), StartedAt: begun, dir: f.dir}, from, nil
}

// settle records an engine that was launched and waits until it is ready.
func (f *finder) settle(ctx context.Context, rec *record, home address) (*serving, error) {
	if err := rec.write(f.dir); err != nil { // before anything else, for a successor of ours
		return nil, err
	}
	h, err := f.awaitReady(ctx, home, f.opts.StartTimeout, rec.alive)
	if err != nil {
		return nil, err
	}
	s := &serving{at: home, health: h, started: true, pid: rec.PID}
	if err := f.accept(s); err != nil {
		return nil, err
	}
	rec.Ready = true
	return s, rec.write(f.dir)
}

// startError says why a start failed, with what the program printed.
func (f *finder) startError(prog program, err error, status, said string) error {
	var known *Error
	if errors.As(err, &known) {
		return known
	}
	why := err.Error()
	if status != "" {
		why += " (" + status + ")"
	}
	if said != "" {
		why += "; it printed: " + said
	}
	return &Error{
		Code: CodeUnavailable, Op: "start " + prog.path, Why: Bound(why, MaxWhy), Err: err,
		Next: "its output is in " + f.log(),
	}
}

// command is the program with nothing of ours but what it needs: its own
// session, so that a Ctrl-C or a hang-up of ours does not reach it, no open
// files, and a small environment.
func (f *finder) command(prog program, home address) (*exec.Cmd, error) {
	cmd := exec.Command(prog.path, append(prog.args, "--listen", home.listen())...)
	cmd.Dir = "/"
	if runtime.GOOS == "windows" {
		cmd.Dir = f.dir
	}
	cmd.Env = engineEnv(os.Environ())
	if prog.name == "smolvm" {
		// smolvm listens on a second port, always the same one unless told
		// otherwise, and a second smolvm on this computer would die of it.
		port, err := freePort()
		if err != nil {
			return nil, err
		}
		cmd.Env = append(cmd.Env, fmt.Sprintf("SMOLVM_GUEST_ROLLOUT_HOST_PORT=%d", port))
	}
	detach(cmd)
	return cmd, nil
}
