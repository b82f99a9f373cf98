//go:build linux

package guest

import (
	"bufio"
	"io"
	"runtime"

	"github.com/hashicorp/yamux"
	"golang.org/x/sys/unix"

	"smol-mcp/fleet/engine/agent"
	"smol-mcp/fleet/engine/guest/job"
)

// runJob runs a program as a job. It is looked at with scripts later, so an image
// without a shell has none.
func (g *guest) runJob(st *yamux.Stream, out *agent.Frames, e agent.Exec, j agent.Job) {
	_ = out.JSON(agent.Exited, withReason(agent.Exit{}, g.beginJob(st, out, e, j)))
}

func (g *guest) beginJob(st *yamux.Stream, out *agent.Frames, e agent.Exec, j agent.Job) error {
	who, err := lookUser(e.User)
	if err != nil {
		return err
	}
	if _, err := lookPath("sh", e.Env, "/"); err != nil {
		return &job.LaunchError{Code: 127, Err: err}
	}
	e.Env = append([]string{"HOME=" + who.home}, e.Env...)
	// One frame for a short answer: each wakes the engine.
	stdout := bufio.NewWriterSize(out.Stream(agent.Stdout), 4<<10)
	defer stdout.Flush()
	return g.jobs.Run(job.Request{Exec: e, Job: j, As: who.as}, &input{st: st}, stdout, out.Stream(agent.Stderr))
}

// as does something with the permissions that the account has for files.
func (who account) as(do func() error) error {
	if who.cred.Uid == 0 {
		return do()
	}
	runtime.LockOSThread() // the identity is the thread's
	defer runtime.UnlockOSThread()
	if groups := who.cred.Groups; len(groups) > 0 {
		back, err := regroup(groups)
		if err != nil {
			return err
		}
		defer back()
	}
	if err := unix.Setfsgid(int(who.cred.Gid)); err != nil {
		return err
	}
	defer unix.Setfsgid(0)
	if err := unix.Setfsuid(int(who.cred.Uid)); err != nil {
		return err
	}
	defer unix.Setfsuid(0)
	return do()
}

// regroup gives the thread other supplementary groups until back is called.
func regroup(groups []uint32) (back func(), err error) {
	before, err := unix.Getgroups()
	if err != nil {
		return nil, err
	}
	var own []int
	for _, g := range groups {
		own = append(own, int(g))
	}
	// Of package unix it is the thread's alone; that of syscall is for all threads.
	if err := unix.Setgroups(own); err != nil {
		return nil, err
	}
	return func() { _ = unix.Setgroups(before) }, nil
}

// input is what the engine sends for a program to read.
type input struct {
	st   *yamux.Stream
	left []byte
	over bool
}

// Read implements [io.Reader].
func (in *input) Read(p []byte) (int, error) {
	for len(in.left) == 0 {
		if in.over {
			return 0, io.EOF
		}
		kind, data, err := agent.Next(in.st, nil)
		if err != nil {
			return 0, io.ErrUnexpectedEOF
		}
		in.left, in.over = data, kind != agent.Stdin
		if in.over {
			in.left = nil
		}
	}
	n := copy(p, in.left)
	in.left = in.left[n:]
	return n, nil
}
