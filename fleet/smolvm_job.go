package fleet

import (
	"context"
	"errors"
	"net/http"
	"time"
)

// JobRunner is a [Fleet] whose guests may begin jobs by themselves: commands whose output is
// kept in files of the guest, and that go on after their request. Which engine can is
// known only when it runs, so a fleet that has the method may still answer Unsupported.
type JobRunner interface {
	// RunJob begins a job and answers as the script that does it elsewhere: with what
	// package fleet/engine/guest/job prints. It starts a stopped machine, and is sent once. Unsupported, where
	// nothing was begun, costs no request once that is known of the engine.
	RunJob(ctx context.Context, name string, j Job) (Result, error)
}

// Job is a command that goes on after its request. The Timeout of the Command is the job's,
// its Env is the command's beside that of the machine.
type Job struct {
	Command
	ID    string        // of its files
	Wait  time.Duration // the answer comes at its end, or after this
	Limit int           // bytes of each stream in the answer
	Asked time.Time     // kept for those who look, as is Shown
	Shown string        // one line
	Input string        // the file to read, which is removed, or - for Stdin
	Done  []string      // jobs whose files are not needed any more
}

// jobRequest is the body of a job.
type jobRequest struct {
	execRequest
	ID     string   `json:"id"`
	WaitMS int64    `json:"waitMs"`
	Limit  int      `json:"limit"`
	Epoch  int64    `json:"epoch"`
	Shown  string   `json:"shown"`
	Input  string   `json:"input,omitempty"`
	Done   []string `json:"done,omitempty"`
}

// RunJob begins a job where the engine offers it.
func (s *Smolvm) RunJob(ctx context.Context, name string, j Job) (Result, error) {
	r := request{op: "run a command in machine " + name, method: http.MethodPost, effect: true, guest: true, limit: maxExecAnswer}
	if err := CheckAnyName(name); err != nil {
		return Result{}, err
	}
	body, err := execBody(j.Command)
	if err != nil {
		return Result{}, r.fail(CodeInvalid, false, err)
	}
	if err := plainText("what is shown of the command", j.Shown+j.Input); err != nil {
		return Result{}, r.fail(CodeInvalid, false, err)
	}
	switch can, err := s.abilities(ctx); {
	case err != nil:
		return Result{}, err
	case !can.jobs:
		return Result{}, r.fail(CodeUnsupported, false, errors.New("the engine has no jobs"))
	}
	r.json = jobRequest{
		execRequest: body, ID: j.ID, WaitMS: j.Wait.Milliseconds(), Limit: j.Limit, Epoch: j.Asked.Unix(), Shown: j.Shown, Input: j.Input, Done: j.Done,
	}
	r.path, r.killAfter = machinePath(name, "/jobs"), j.Wait
	return s.runs(ctx, r, name, j.Command)
}
