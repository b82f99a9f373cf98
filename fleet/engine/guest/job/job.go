//go:build linux

// Package job runs commands as jobs, for those who give [Host.Run] a request. The output of
// a job goes to files, and it outlives its request.
//
// Its files and answers are those of the script guest/run.sh of package tools, which does
// the same where an engine offers no jobs: what looks at a job later need not know which of the
// two began it. In a job's file a "-" in the place of the script's process says that it was this
// package, which lives as long as the guest: so a job without an end is running. A group that begins with
// "=" says that the process is not there yet.
package job

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"smol-mcp/fleet/engine/agent"
)

// Host is the system that jobs run on.
type Host struct {
	// Launch starts a program in a session of its own, and sends its status to
	// ended, once. Its error is a [*LaunchError].
	Launch func(e agent.Exec, files [3]*os.File) (pid int, ended <-chan syscall.WaitStatus, err error)

	// As does something with the file permissions of the job's user.
	As func(do func() error) error

	// BootID is the file that names the boot.
	BootID string
}

// LaunchError is a program that could not be started, with the exit code that a
// shell would give.
type LaunchError struct {
	Code int
	Err  error
}

func (e *LaunchError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *LaunchError) Unwrap() error { return e.Err }

// patience is how long after its time a job is killed that what was to end it has left.
const patience = 20 * time.Second

// run is one job.
type run struct {
	*Host
	files
	exec   agent.Exec
	job    agent.Job
	begun  string // uptimes, as the kernel writes them
	ended  string
	code   int
	flag   string
	closed chan struct{} // its end is written down
}

// Run begins a job, answers when it has ended or after its wait, and leaves it. e.Env is
// the machine's, with HOME. The error is of the answer's writers.
func (h *Host) Run(e agent.Exec, j agent.Job, stdin io.Reader, stdout, stderr io.Writer) error {
	r := &run{Host: h, exec: e, job: j, flag: "-", closed: make(chan struct{})}
	var in *os.File
	word := "nofiles"
	_ = h.As(func() error {
		r.place(h.BootID, e.Env)
		in, word = r.open(stdin)
		return nil
	})
	if _, err := fmt.Fprintf(stdout, "smol1 %d %s %s\n", r.up, r.boot, r.dir); err != nil || word != "" {
		_, wrote := fmt.Fprintln(stdout, word)
		return cmp.Or(err, wrote)
	}
	r.start(in)
	wait := time.NewTimer(time.Duration(j.WaitMS) * time.Millisecond)
	defer wait.Stop()
	select {
	case <-r.closed:
		return r.As(func() error { return r.tell(stdout, stderr) })
	case <-wait.C:
		_, err := io.WriteString(stdout, "running\n"+end)
		return err
	}
}

// start starts the command, and takes care of it until its end.
func (r *run) start(in *os.File) {
	defer in.Close()
	defer r.stdout.Close()
	if len(r.job.Done) > 0 {
		go func() { _ = r.As(func() error { r.clean(r.job.Done); return nil }) }()
	}
	e := r.exec
	e.Dir = cmp.Or(r.job.Dir, e.Dir)
	e.Env = append(append(e.Env[:len(e.Env):len(e.Env)], "SMOL_MCP_COMMAND="+r.job.ID), r.job.Env...)
	pid, ended, err := r.Launch(e, [3]*os.File{in, r.stdout, r.stderr})
	if err != nil {
		failed := &LaunchError{Code: 126}
		errors.As(err, &failed)
		fmt.Fprintln(r.stderr, err)
		r.stderr.Close()
		r.finish(failed.Code)
		return
	}
	r.stderr.Close()
	r.leads(pid)
	late := time.AfterFunc(time.Duration(r.job.TimeoutMS)*time.Millisecond, func() { r.expire(pid) })
	go func() {
		status := <-ended
		late.Stop()
		code := status.ExitStatus()
		if status.Signaled() {
			code = 128 + int(status.Signal())
		}
		r.finish(code)
	}()
}

// expire ends a job whose time is over, with the program that it came with.
func (r *run) expire(pid int) {
	e := r.exec
	e.Argv, e.Dir = r.job.AtTimeout, "/"
	if null, err := os.OpenFile("/dev/null", os.O_RDWR, 0); err == nil {
		_, _, _ = r.Launch(e, [3]*os.File{null, null, null})
		null.Close()
	}
	select {
	case <-r.closed:
	case <-time.After(patience):
		_ = syscall.Kill(-pid, syscall.SIGKILL)
	}
}

// end closes each stream of an answer, so that what was cut off on the way is noticed.
const end, cut = "smol1 end\n", "smol1 cut\n"

// tell answers for a job that has ended.
func (r *run) tell(stdout, stderr io.Writer) error {
	said := "-"
	if size(r.path("stderr")) > 0 {
		said = "err"
		if err := r.head("stderr", stderr); err != nil {
			return err
		}
	}
	if _, err := fmt.Fprintf(stdout, "exit %d %s %s %s %s %s\n", r.code, r.begun, r.ended, r.flag, r.why(), said); err != nil {
		return err
	}
	return r.head("stdout", stdout)
}

// head sends the beginning of a stream and what closes it.
func (r *run) head(stream string, w io.Writer) error {
	last := end
	f, err := openRegular(r.path(stream))
	switch {
	case err == nil:
		defer f.Close()
		if _, err := io.Copy(w, io.LimitReader(f, int64(r.job.Limit))); err != nil {
			last = cut
		}
	case !errors.Is(err, os.ErrNotExist):
		last = cut
	}
	_, err = io.WriteString(w, last)
	return err
}
