//go:build linux

// Package job runs commands as jobs, for those who give [Host.Run] a request. The output of
// a job goes to files, and it outlives its request.
//
// Its files and answers are those of the script guest/run.sh of package tools, which does
// the same where an engine offers no jobs: what looks at a job later need not know which of the
// two began it. In a job's record a "-" in the place of the script's process says that it was this
// package, which lives as long as the guest: so a job without an end is running. A group that begins with
// "=" says that the process is not there yet.
//
// Guests may be emulated, where a system call costs up to a millisecond. So what does not
// change is asked for once, and files are used without package os.
package job

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"smol-mcp/fleet/engine/agent"
)

// Host is the system that jobs run on.
type Host struct {
	// Launch starts a program in a session of its own with the files as its standard
	// streams, in a control group unless that is [NoGroup], and sends its status to ended, once.
	// Its error is a [*LaunchError].
	Launch func(e agent.Exec, files [3]int, group int) (pid int, ended <-chan syscall.WaitStatus, err error)

	// Groups is the directory of control groups (cgroup v2), empty where there are none.
	Groups string

	// BootID is the file that names the boot.
	BootID string

	mu     sync.Mutex
	places map[string]place // by user, TMPDIR and HOME
	groups groups
}

// Request is a job to run.
type Request struct {
	Exec agent.Exec // Env is the machine's, with HOME
	Job  agent.Job

	// As does something with the file permissions of the job's user.
	As func(do func() error) error
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

// run is one job.
type run struct {
	*Host
	Request
	place
	record int // its file
	in     int
	out    [2]*stream // stdout, stderr
	group  group
	begun  string // uptimes
	ended  string
	code   int
	flag   string
	closed chan struct{} // its end is written down
}

// Run begins a job, answers when it has ended or after its wait, and leaves it. The error
// is of the answer's writers.
func (h *Host) Run(req Request, stdin io.Reader, stdout, stderr io.Writer) error {
	r := &run{Host: h, Request: req, group: h.takeGroup(), flag: "-", closed: make(chan struct{})}
	word := "nofiles"
	_ = r.As(func() error { word = r.open(stdin); return nil })
	_, lost := fmt.Fprintf(stdout, "smol1 %d %s %s\n", r.up, r.boot, r.dir)
	if word != "" {
		h.returnGroup(r.group)
		_, err := fmt.Fprintln(stdout, word)
		return cmp.Or(lost, err)
	}
	r.start() // also when nobody listens any more: it is on record
	wait := time.NewTimer(time.Duration(r.Job.WaitMS) * time.Millisecond)
	defer wait.Stop()
	select {
	case <-r.closed:
		return r.As(func() error { return r.tell(stdout, stderr) })
	case <-wait.C:
		for _, out := range r.out {
			out.forget()
		}
		_, err := io.WriteString(stdout, "running\n"+end)
		return err
	}
}

// start starts the command, and takes care of it until its end.
func (r *run) start() {
	if len(r.Job.Done) > 0 {
		go func() { _ = r.As(func() error { clean(r.dir, r.Job.Done); return nil }) }()
	}
	e := r.Exec
	e.Dir = cmp.Or(r.Job.Dir, e.Dir)
	e.Env = append(append(e.Env[:len(e.Env):len(e.Env)], "SMOL_MCP_COMMAND="+r.Job.ID), r.Job.Env...)
	pid, ended, err := r.Launch(e, [3]int{r.in, r.out[0].theirs, r.out[1].theirs}, r.group.fd)
	if err != nil {
		fmt.Fprintln(r.out[1], err)
	}
	for _, fd := range []int{r.in, r.out[0].theirs, r.out[1].theirs, r.group.fd} {
		_ = unix.Close(fd)
	}
	if err != nil {
		failed := &LaunchError{Code: 126}
		errors.As(err, &failed)
		r.finish(failed.Code)
		r.dropGroup(r.group.name)
		return
	}
	r.leads(pid)
	late := time.AfterFunc(time.Duration(r.Job.TimeoutMS)*time.Millisecond, func() { r.expire(pid) })
	go func() {
		status := <-ended
		late.Stop()
		code := status.ExitStatus()
		if status.Signaled() {
			code = 128 + int(status.Signal())
		}
		r.finish(code)
		time.Sleep(glance) // the answer goes first
		r.dropGroup(r.group.name)
	}()
}

// end closes each stream of an answer, so that what was cut off on the way is noticed.
const end = "smol1 end\n"

// tell answers for a job that has ended.
func (r *run) tell(stdout, stderr io.Writer) error {
	mark, said := "-", r.out[1].said()
	if len(said) > 0 {
		mark = "err"
		if _, err := stderr.Write(slices.Concat(said, []byte(end))); err != nil {
			return err
		}
	}
	if _, err := fmt.Fprintf(stdout, "exit %d %s %s %s %s %s\n", r.code, r.begun, r.ended, r.flag, r.why(), mark); err != nil {
		return err
	}
	_, err := stdout.Write(slices.Concat(r.out[0].said(), []byte(end)))
	return err
}
