//go:build unix

package engine

import (
	"context"
	"net/http"
	"strings"

	"smol-mcp/fleet/engine/agent"
)

// jobRequest is the body of a job, which smolvm does not have: a command whose output is kept in
// files of the guest and that outlives its request. See package guest/job.
type jobRequest struct {
	Command     []string   `json:"command"`
	Env         []envField `json:"env"` // of the command only
	Workdir     string     `json:"workdir"`
	Stdin       *string    `json:"stdin"`
	TimeoutSecs uint32     `json:"timeoutSecs"`
	ID          string     `json:"id"`
	WaitMS      uint32     `json:"waitMs"`
	Limit       uint32     `json:"limit"`
	Epoch       int64      `json:"epoch"`
	Shown       string     `json:"shown"`
	Input       string     `json:"input"`
	Done        []string   `json:"done"`
}

// job checks a request.
func (j *jobRequest) job() (agent.Exec, agent.Job, error) {
	e := execRequest{Command: j.Command}
	p, err := e.program()
	if err != nil {
		return p, agent.Job{}, err
	}
	env, err := environment(j.Env)
	out := agent.Job{
		ID: j.ID, Env: env, Dir: j.Workdir, WaitMS: int64(j.WaitMS), TimeoutMS: int64(j.TimeoutSecs) * 1000,
		Limit: int(min(j.Limit, maxOutput/2)), Epoch: j.Epoch, Shown: j.Shown, Input: j.Input, Done: j.Done,
	}
	switch {
	case err != nil:
		return p, out, err
	case !validJob(j.ID):
		return p, out, badRequest("id: 6 to 32 letters in lower case and digits")
	case j.TimeoutSecs == 0:
		return p, out, badRequest("a job has timeoutSecs")
	case strings.ContainsRune(j.Workdir+j.Input+j.Shown, 0) || strings.ContainsAny(j.Shown, "\r\n"):
		return p, out, badRequest("a NUL, or shown has several lines")
	}
	return p, out, nil
}

// validJob reports whether an id may be part of the names of files.
func validJob(id string) bool {
	return len(id) >= 6 && len(id) <= 32 && strings.Trim(id, "abcdefghijklmnopqrstuvwxyz0123456789") == ""
}

// startJob starts a job, and answers as an exec of one that waits for its end so long.
func (s *server) startJob(w http.ResponseWriter, r *call) error {
	var j jobRequest
	if err := decode(r.Request, &j, "JobRequest"); err != nil {
		return err
	}
	p, job, err := j.job()
	if err != nil {
		return err
	}
	body, err := detached(s, r, func(ctx context.Context) (map[string]any, error) {
		return s.run(ctx, r.vars["name"], true, p, &job, j.Stdin)
	})
	if err != nil {
		return failed("job", err)
	}
	return answer(w, body)
}
