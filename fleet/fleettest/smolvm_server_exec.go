package fleettest

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"path"
	"runtime"
	"slices"
	"strings"
	"time"

	"smol-mcp/fleet"
)

// execRequest is the body of POST /machines/{id}/exec.
type execRequest struct {
	Command     []string       `json:"command"`
	Env         []envVar       `json:"env"`
	Workdir     *string        `json:"workdir"`
	TimeoutSecs *uint64        `json:"timeoutSecs"`
	Stdin       *string        `json:"stdin"`
	Background  bool           `json:"background"`
	Secrets     map[string]any `json:"secrets"`
}

// ready returns a machine's guest with an agent connection taken, after
// starting the machine where it must be.
func (s *smolvmServer) ready(name string) (*smolvmMachine, *Guest, func(), *reply) {
	m, re := s.claim(name)
	if re != nil {
		return nil, nil, nil, re
	}
	re = s.run(m, false)
	guest := m.guest
	m.life.Unlock()
	if re != nil {
		return nil, nil, nil, re
	}
	return m, guest, m.slot(), nil
}

func (s *smolvmServer) exec(r *call) reply {
	var e execRequest
	if re := r.decode(&e, fieldNames("ExecRequest", r.version)); re != nil {
		return *re
	}
	switch {
	case len(e.Command) == 0:
		return *badRequest("command cannot be empty")
	case len(e.Secrets) > 0:
		return *badRequest("secrets are not accepted over HTTP")
	}
	cmd := fleet.Command{Argv: e.Command, Env: map[string]string{}, Workdir: valueOr(e.Workdir, ""), Stdin: valueOr(e.Stdin, "")}
	for _, v := range e.Env {
		if !envName.MatchString(v.Name) {
			return *badRequest("invalid environment variable name")
		}
		cmd.Env[v.Name] = v.Value
	}
	if e.TimeoutSecs != nil {
		cmd.Timeout = max(time.Duration(*e.TimeoutSecs)*time.Second, 1) // 0 kills at once
	}
	m, guest, release, re := s.ready(r.vars["id"])
	if re != nil {
		return *re
	}
	defer release()
	rec := s.record(m)
	cmd = rec.merged(cmd)
	if e.Background {
		pid, err := guest.Spawn(cmd)
		if err != nil {
			return failed("exec: %v", err)
		}
		return execReply(fleet.Result{Stdout: fmt.Appendf(nil, "pid=%d\n", pid)})
	}
	res, err := guest.Run(cmd)
	switch {
	case err != nil:
		return failed("exec: %v", err)
	case len(res.Stdout)+len(res.Stderr) > 20<<20:
		return failed("exec: command output too large")
	}
	return execReply(res)
}

func execReply(res fleet.Result) reply {
	return jsonReply(map[string]any{
		"exitCode":  res.ExitCode,
		"stdout":    strings.ToValidUTF8(string(res.Stdout), "\ufffd"),
		"stderr":    strings.ToValidUTF8(string(res.Stderr), "\ufffd"),
		"stdoutB64": base64.StdEncoding.EncodeToString(res.Stdout),
		"stderrB64": base64.StdEncoding.EncodeToString(res.Stderr),
	})
}

// filePath returns the guest path of a files request.
func filePath(r *call) (string, *reply) {
	p := r.vars["path"]
	for _, elem := range strings.Split(p, "/") {
		if elem == "." || elem == ".." {
			return "", badRequest("invalid path '%s'", p)
		}
	}
	return path.Clean("/" + p), nil
}

func (s *smolvmServer) upload(r *call) reply {
	p, re := filePath(r)
	if re != nil {
		return *re
	}
	b, re := r.read(fileLimit)
	if re != nil {
		return *re
	}
	_, guest, release, re := s.ready(r.vars["id"])
	if re != nil {
		return *re
	}
	defer release()
	n, err := guest.WriteFile(p, bytes.NewReader(b))
	if err != nil {
		return failed("write file: %s: %v", p, osWords(err))
	}
	return jsonReply(map[string]any{"path": p, "size": n})
}

func (s *smolvmServer) download(r *call) reply {
	p, re := filePath(r)
	if re != nil {
		return *re
	}
	_, guest, release, re := s.ready(r.vars["id"])
	if re != nil {
		return *re
	}
	defer release()
	b, err := guest.ReadFile(p)
	if errors.Is(err, ErrNotRegular) && atLeast(r.version, "1.18.0") {
		if entries, lerr := guest.List(p); lerr == nil {
			return listing(entries)
		}
	}
	if err != nil {
		return failed("read file: %s: %v", p, osWords(err))
	}
	return reply{http.StatusOK, "application/octet-stream", b}
}

func listing(entries []fs.DirEntry) reply {
	list := []map[string]any{}
	for _, e := range entries {
		kind, size := "file", int64(0)
		switch {
		case e.IsDir():
			kind = "directory"
		case e.Type()&fs.ModeSymlink != 0:
			kind = "symlink"
		}
		if fi, err := e.Info(); err == nil && kind == "file" {
			size = fi.Size()
		}
		list = append(list, map[string]any{"name": e.Name(), "kind": kind, "size": size})
	}
	return jsonReply(map[string]any{"entries": list})
}

func (s *smolvmServer) images(r *call) reply {
	m, re := s.find(r.vars["id"])
	if re != nil {
		return *re
	}
	rec := s.record(m)
	list := []map[string]any{}
	if rec.State == "running" {
		if rec.Create.registryImage() {
			list = append(list, imageInfo(rec.Create.Image))
		}
		for _, name := range rec.Images {
			list = append(list, imageInfo(name))
		}
	}
	return jsonReply(map[string]any{"images": list})
}

func imageInfo(name string) map[string]any {
	sum := sha256.Sum256([]byte(name))
	return map[string]any{
		"reference": name, "digest": "sha256:" + hex.EncodeToString(sum[:]), "size": 3_000_000 + int(sum[0])*1000,
		"architecture": runtime.GOARCH, "os": "linux", "layerCount": 1 + int(sum[1])%5,
	}
}

func (s *smolvmServer) pull(r *call) reply {
	var b struct {
		Image string `json:"image"`
	}
	if re := r.decode(&b, nil); re != nil {
		return *re
	}
	if b.Image == "" || strings.ContainsAny(b.Image, " ;|&$`<>") {
		return *badRequest("invalid image reference")
	}
	m, _, release, re := s.ready(r.vars["id"])
	if re != nil {
		return *re
	}
	defer release()
	rec := s.record(m)
	switch {
	case strings.HasPrefix(b.Image, "fail-pull/"):
		return failed("pull image: failed to pull %s: denied: requested access to the resource is denied", b.Image)
	case !rec.Create.networked() && !atLeast(r.version, "1.23.0"):
		return failed("pull image: failed to pull %s: network is unreachable", b.Image)
	}
	re = s.save(m, func(rec *machineRecord) {
		if b.Image != rec.Create.Image && !slices.Contains(rec.Images, b.Image) {
			rec.Images = append(slices.Clone(rec.Images), b.Image)
		}
	})
	if re != nil {
		return *re
	}
	return jsonReply(map[string]any{"image": imageInfo(b.Image)})
}
