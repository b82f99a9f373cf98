package fleettest

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"time"

	"smol-mcp/fleet"
)

// cloudText is how many bytes of a stream the service gives as text.
const cloudText = 1 << 20

// enterGuest returns a machine's guest, after starting the machine where it must
// be. leave ends the use.
func (s *cloudServer) enterGuest(r *cloudCall) (m *cloudMachine, leave func(), re *reply) {
	m, re = s.claim(r)
	if re != nil {
		return nil, nil, re
	}
	defer m.life.Unlock()
	if s.stateOf(m) == "paused" {
		return nil, nil, s.refuse(409, "machine is paused")
	}
	if re := s.boot(m); re != nil {
		return nil, nil, re
	}
	s.untilUp(m)
	s.mu.Lock()
	defer s.mu.Unlock()
	if m.state != "started" {
		return nil, nil, s.refuse(409, "machine is %s: %s", m.state, m.fault)
	}
	m.execs++
	return m, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		m.execs--
		m.active = s.now()
	}, nil
}

func (s *cloudServer) exec(r *cloudCall) reply {
	var e struct {
		Command json.RawMessage   `json:"command"`
		Cwd     string            `json:"cwd"`
		Env     map[string]string `json:"env"`
		Stdin   string            `json:"stdin"`
		Timeout *uint64           `json:"timeoutSeconds"`
	}
	if re := s.decode(r, &e); re != nil {
		return *re
	}
	cmd := fleet.Command{Workdir: e.Cwd, Stdin: e.Stdin, Timeout: 10 * time.Minute, Env: map[string]string{}}
	var line string
	if json.Unmarshal(e.Command, &line) == nil {
		cmd.Argv = []string{"sh", "-lc", line}
	} else if json.Unmarshal(e.Command, &cmd.Argv) != nil || len(cmd.Argv) == 0 {
		return *s.refuse(422, "Failed to deserialize the JSON body into the target type: missing field `command`")
	}
	if e.Timeout != nil {
		cmd.Timeout = time.Duration(*e.Timeout) * time.Second
	}
	m, leave, re := s.enterGuest(r)
	if re != nil {
		return *re
	}
	defer leave()
	for _, env := range []map[string]string{m.wish.Env, e.Env} {
		for k, v := range env {
			cmd.Env[k] = v
		}
	}
	begun := time.Now()
	res, err := m.guest.Run(cmd)
	if err != nil {
		return *s.refuse(502, "node: %v", err)
	}
	if res.ExitCode == 1 && bytes.HasPrefix(res.Stderr, []byte("crun: executable file")) {
		res.ExitCode = 255
	}
	return s.execReply(r, m.id, res, time.Since(begun))
}

// execReply renders a result: exact, as text that may be cut off, or both.
func (s *cloudServer) execReply(r *cloudCall, id string, res fleet.Result, took time.Duration) reply {
	output := r.URL.Query().Get("output")
	if s.opts.Old {
		output = "text"
	}
	out := map[string]any{"exitCode": res.ExitCode, "durationMs": took.Milliseconds(), "machineId": id}
	for _, stream := range []struct {
		name string
		data []byte
	}{{"stdout", res.Stdout}, {"stderr", res.Stderr}} {
		text := ""
		if output != "b64" {
			text = strings.ToValidUTF8(string(stream.data[:min(len(stream.data), cloudText)]), "\ufffd")
		}
		out[stream.name], out[stream.name+"Truncated"] = text, len(stream.data) > cloudText
		if output == "b64" || output == "both" {
			out[stream.name+"B64"] = base64.StdEncoding.EncodeToString(stream.data)
		}
	}
	return jsonReply(out)
}

// upload writes a file into a directory that is there.
func (s *cloudServer) upload(r *cloudCall) reply {
	m, leave, re := s.enterGuest(r)
	if re != nil {
		return *re
	}
	defer leave()
	p := path.Clean("/" + r.vars["path"])
	if fi, err := m.guest.Stat(path.Dir(p)); err != nil || !fi.IsDir() {
		return *s.refuse(500, "write failed: %s: No such file or directory", path.Dir(p))
	}
	if _, err := m.guest.WriteFile(p, bytes.NewReader(r.body)); err != nil {
		return *s.refuse(400, "write failed: %v", osWords(err))
	}
	return reply{status: http.StatusNoContent}
}

func (s *cloudServer) download(r *cloudCall) reply {
	m, leave, re := s.enterGuest(r)
	if re != nil {
		return *re
	}
	defer leave()
	b, err := m.guest.ReadFile("/" + r.vars["path"])
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return *s.refuse(404, "file not found: %s", r.vars["path"])
	case err != nil:
		return *s.refuse(400, "cannot read %s: %v", r.vars["path"], osWords(err))
	}
	return reply{http.StatusOK, "application/octet-stream", b}
}
