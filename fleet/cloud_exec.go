package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"
)

// maxCloudAnswer bounds the answer of an exec in bytes: the service does not bound
// the exact streams, and what is larger belongs into a file of the guest.
const maxCloudAnswer = 64 << 20

// cloudExec is the body of an exec.
type cloudExec struct {
	Command []string          `json:"command"` // never a string, which a shell would read
	Cwd     string            `json:"cwd,omitempty"`
	Env     map[string]string `json:"env,omitempty"`
	Stdin   *string           `json:"stdin,omitempty"`
	Timeout int64             `json:"timeoutSeconds"`
}

// Exec runs a command. A machine that is stopped is started by it, and billed.
func (c *Cloud) Exec(ctx context.Context, name string, cmd Command) (res Result, err error) {
	r := request{op: "run a command in machine " + name}
	if err := CheckAnyName(name); err != nil {
		return Result{}, err
	}
	if cmd.Sent != nil {
		r.before = sync.OnceFunc(cmd.Sent)
	}
	if _, err := execBody(cmd); err != nil {
		return Result{}, r.fail(CodeInvalid, false, err)
	}
	if err := c.checkEnv(ctx, cmd.Env); err != nil {
		return Result{}, r.fail(CodeInvalid, false, err)
	}
	err = c.with(ctx, r.op, name, func(id string) (err error) {
		res, err = c.execOn(ctx, r, id, cmd)
		return err
	})
	return res, err
}

// execOn runs a command that was checked, in the machine of that id. r has op and
// before.
func (c *Cloud) execOn(ctx context.Context, r request, id string, cmd Command) (Result, error) {
	body := cloudExec{Command: cmd.Argv, Cwd: cmd.Workdir, Env: cmd.Env, Timeout: wholeSeconds(cmd.Timeout)}
	if cmd.Stdin != "" {
		body.Stdin = &cmd.Stdin
	}
	r.method, r.path, r.json = http.MethodPost, cloudPath(id, "/exec?output=b64"), body
	r.effect, r.limit = true, maxCloudAnswer
	r.killAfter = time.Duration(body.Timeout) * time.Second
	r.wait = r.killAfter + cloudExecSlack
	var res Result
	err := c.try(ctx, r, func(a *answer) (bool, error) {
		data, err := a.read()
		if err != nil {
			return true, err
		}
		if res, err = cloudResult(data); err != nil {
			return false, r.fail(CodeInternal, true, err)
		}
		return false, nil
	})
	if err == nil {
		c.names.change(id, func(k *knownMachine) { k.untouched, k.paused = false, false })
	}
	return res, err
}

// execAnswer is what the service says of a command that has ended.
type execAnswer struct {
	ExitCode *int   `json:"exitCode"`
	Stdout   string `json:"stdout"`
	Stderr   string `json:"stderr"`
	ExactOut []byte `json:"stdoutB64"`
	ExactErr []byte `json:"stderrB64"`
	CutOut   bool   `json:"stdoutTruncated"`
	CutErr   bool   `json:"stderrTruncated"`
}

// cloudResult reads an answer. The exact streams are whole; the text, which an older
// service gives instead, may be cut off, and says so.
func cloudResult(data []byte) (Result, error) {
	var said execAnswer
	if err := json.Unmarshal(data, &said); err != nil {
		return Result{}, fmt.Errorf("the answer is not the JSON we know: %w", err)
	}
	if said.ExitCode == nil {
		return Result{}, errors.New("the answer has no exit code")
	}
	res := Result{ExitCode: *said.ExitCode, Stdout: said.ExactOut, Stderr: said.ExactErr}
	if said.ExactOut == nil {
		res.Stdout, res.StdoutTruncated = []byte(said.Stdout), said.CutOut
	}
	if said.ExactErr == nil {
		res.Stderr, res.StderrTruncated = []byte(said.Stderr), said.CutErr
	}
	return res, nil
}
