package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sort"
	"strings"
	"time"
	"unicode/utf8"
)

// maxExecAnswer bounds the answer of an exec in bytes. smolvm keeps at most
// 11 MiB of each stream and answers with the base64 of both beside lossy text.
// Twice the base64 of two full streams holds all but text of mostly control
// characters, which JSON spells in six bytes each.
const maxExecAnswer = 2 * (2 * 11 << 20) * 4 / 3

// execRequest is the body of an exec. From 1.9.2 it refuses other fields.
type execRequest struct {
	Command     []string `json:"command"`
	Env         []envVar `json:"env,omitempty"`
	Workdir     string   `json:"workdir,omitempty"`
	TimeoutSecs int64    `json:"timeoutSecs"` // absent would mean no end
	Stdin       *string  `json:"stdin,omitempty"`
	Start       *bool    `json:"start,omitempty"` // of our own engine
}

// Exec runs a command. The engine's own limit of 300 s on any answer counts
// too: a longer command goes on in the guest after the error.
func (s *Smolvm) Exec(ctx context.Context, name string, cmd Command) (Result, error) {
	r := request{op: "run a command in machine " + name, method: http.MethodPost, effect: true, guest: true, limit: maxExecAnswer}
	if err := CheckAnyName(name); err != nil {
		return Result{}, err
	}
	body, err := execBody(cmd)
	if err != nil {
		return Result{}, r.fail(CodeInvalid, false, err)
	}
	if cmd.NoStart {
		switch can, err := s.abilities(ctx); {
		case err != nil:
			return Result{}, err
		case can.noStart:
			body.Start = new(bool)
		}
	}
	r.json, r.path = body, machinePath(name, "/exec")
	r.killAfter = time.Duration(body.TimeoutSecs) * time.Second
	return s.runs(ctx, r, name, cmd)
}

// runs sends the request for a command, which is answered within killAfter.
func (s *Smolvm) runs(ctx context.Context, r request, name string, cmd Command) (Result, error) {
	r.wait = r.killAfter + execSlack
	leave, err := s.guests.enter(ctx, r.op, name, r.wait, cmd.Brief)
	if err != nil {
		return Result{}, err
	}
	defer leave()
	if cmd.Sent != nil {
		cmd.Sent()
	}
	a, err := s.wire.open(ctx, r)
	if err != nil {
		return Result{}, err
	}
	defer a.Close()
	data, err := a.read()
	if err != nil {
		return Result{}, err
	}
	res, err := execResult(data)
	if err != nil {
		return Result{}, r.fail(CodeInternal, true, err)
	}
	return res, nil
}

func execBody(cmd Command) (execRequest, error) {
	env, err := envList(cmd.Env)
	body := execRequest{Command: cmd.Argv, Env: env, Workdir: cmd.Workdir}
	switch {
	case err != nil:
		return body, err
	case len(cmd.Argv) == 0 || cmd.Argv[0] == "":
		return body, errors.New("the command is empty")
	case cmd.Timeout <= 0:
		return body, errors.New("the command has no timeout")
	case cmd.Workdir != "" && !strings.HasPrefix(cmd.Workdir, "/"):
		return body, fmt.Errorf("the working directory %s is not absolute", Quote(cmd.Workdir))
	case len(cmd.Stdin) > MaxStdin:
		return body, fmt.Errorf("stdin of %d bytes is more than %d: upload it as a file", len(cmd.Stdin), MaxStdin)
	case !utf8.ValidString(cmd.Stdin):
		return body, errors.New("stdin is not UTF-8: upload it as a file")
	}
	for _, text := range append([]string{cmd.Workdir}, cmd.Argv...) {
		if err := plainText("an argument", text); err != nil {
			return body, err
		}
	}
	if cmd.Stdin != "" {
		body.Stdin = &cmd.Stdin
	}
	body.TimeoutSecs = int64((cmd.Timeout + time.Second - 1) / time.Second)
	return body, nil
}

// plainText refuses what cannot reach a program of the guest unchanged.
func plainText(what, text string) error {
	if !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
		return fmt.Errorf("%s is not UTF-8 without NUL", what)
	}
	return nil
}

// envName reports whether name is a letter or '_', then letters, digits and '_'.
func envName(name string) bool {
	for i := range len(name) {
		c := name[i]
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c == '_'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return name != ""
}

// envList renders an environment in order of name. Values stay out of its errors.
func envList(env map[string]string) ([]envVar, error) {
	out := make([]envVar, 0, len(env))
	for name, value := range env {
		if !envName(name) {
			return nil, fmt.Errorf("environment variable %s: a name is a letter or '_', then letters, digits and '_'", Quote(name))
		}
		if err := plainText("the value of environment variable "+name, value); err != nil {
			return nil, err
		}
		out = append(out, envVar{name, value})
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Name < out[j].Name })
	return out, nil
}

// execResult reads an answer. The text fields have lost every byte that is not
// UTF-8, so they count only where the exact ones are missing.
func execResult(data []byte) (Result, error) {
	var exact struct {
		ExitCode *int   `json:"exitCode"`
		Stdout   []byte `json:"stdoutB64"`
		Stderr   []byte `json:"stderrB64"`
	}
	if err := json.Unmarshal(data, &exact); err != nil {
		return Result{}, fmt.Errorf("the answer is not the JSON we know: %w", err)
	}
	if exact.ExitCode == nil {
		return Result{}, errors.New("the answer has no exit code")
	}
	res := Result{ExitCode: *exact.ExitCode, Stdout: exact.Stdout, Stderr: exact.Stderr}
	if exact.Stdout == nil || exact.Stderr == nil {
		var text struct{ Stdout, Stderr string }
		if err := json.Unmarshal(data, &text); err != nil {
			return Result{}, fmt.Errorf("the answer is not the JSON we know: %w", err)
		}
		if exact.Stdout == nil {
			res.Stdout = []byte(text.Stdout)
		}
		if exact.Stderr == nil {
			res.Stderr = []byte(text.Stderr)
		}
	}
	return res, nil
}

// Pull fetches an image into a machine.
func (s *Smolvm) Pull(ctx context.Context, name, image string) (Image, error) {
	r := request{op: "pull image " + Bound(image, 128) + " into machine " + name, method: http.MethodPost, wait: pullWait, effect: true, guest: true}
	if err := CheckAnyName(name); err != nil {
		return Image{}, err
	}
	if image == "" || plainText("the image", image) != nil {
		return Image{}, r.fail(CodeInvalid, false, errors.New("an image reference is text and not empty"))
	}
	leave, err := s.guests.enter(ctx, r.op, name, r.wait, false)
	if err != nil {
		return Image{}, err
	}
	defer leave()
	var out struct {
		Image *struct {
			Reference    string `json:"reference"`
			Digest       string `json:"digest"`
			Size         int64  `json:"size"`
			Architecture string `json:"architecture"`
			OS           string `json:"os"`
			LayerCount   int    `json:"layerCount"`
		} `json:"image"`
	}
	r.json, r.path = map[string]string{"image": image}, machinePath(name, "/images/pull")
	if err := s.wire.do(ctx, r, &out); err != nil {
		return Image{}, err
	}
	if out.Image == nil {
		return Image{}, r.fail(CodeInternal, true, errors.New("the answer names no image"))
	}
	return Image(*out.Image), nil
}
