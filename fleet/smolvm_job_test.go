package fleet

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

// withJobs is an engine that serves the route, and answers it so.
func withJobs(t *testing.T, route string, job http.HandlerFunc) *script {
	return serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/health":
			says(200, "application/json", `{"status":"ok","version":"1.0.0","engine":"qemu","uptime_seconds":5}`)(w, r)
		case openapiPath:
			says(200, "application/json", `{"paths":{"/api/v1/machines/{name}/`+route+`":{"post":{}}}}`)(w, r)
		default:
			job(w, r)
		}
	})
}

var aJob = Job{
	Command: Command{Argv: []string{"a", "b"}, Env: map[string]string{"A": "1"}, Workdir: "/w", Timeout: time.Hour}, ID: "abcdef", Wait: time.Second,
	Limit: 10, Asked: time.Unix(7, 0), Shown: "a b", Input: "/in", Done: []string{"old"},
}

// A job is one request once the engine is known, and none where it has no jobs.
func TestRunJob(t *testing.T) {
	const answer = `{"exitCode":0,"stdout":"","stderr":"","stdoutB64":"b3V0","stderrB64":"ZXJy"}`
	s := withJobs(t, "jobs", says(200, "application/json", answer))
	sent := 0
	for range 2 {
		j := aJob
		j.Sent = func() { sent++ }
		res, err := s.RunJob(t.Context(), "vm", j)
		if err != nil || string(res.Stdout) != "out" || string(res.Stderr) != "err" {
			t.Errorf("%+v, %v", res, err)
		}
	}
	want := `POST /api/v1/machines/vm/jobs {"command":["a","b"],"env":[{"name":"A","value":"1"}],"workdir":"/w","timeoutSecs":3600,"id":"abcdef","waitMs":1000,` +
		`"limit":10,"epoch":7,"shown":"a b","input":"/in","done":["old"]}`
	if got := s.requests(); len(got) != 4 || got[3] != want || sent != 2 {
		t.Errorf("sent %q\nwant %s", got, want)
	}
	without := withJobs(t, "exec", says(500, "", ""))
	for range 2 {
		_, err := Retry(without.Smolvm).(JobRunner).RunJob(t.Context(), "vm", aJob)
		wantErr(t, err, CodeUnsupported, false, "no jobs")
	}
	if got := without.requests(); len(got) != 2 {
		t.Errorf("an engine without was asked %q", got)
	}
	_, err := Retry(struct{ Fleet }{}).(JobRunner).RunJob(t.Context(), "vm", aJob)
	wantErr(t, err, CodeUnsupported, false, "no jobs")
}

// What cannot have begun anything says so: another engine has taken the place of the known
// one, or the guest is of an earlier release.
func TestRunJobRefused(t *testing.T) {
	for what, c := range map[string]struct {
		answer http.HandlerFunc
		code   Code
		maybe  bool
	}{
		"another engine": {says(404, "", ""), CodeUnsupported, false},
		"an old guest":   {says(501, "application/json", `{"error":"the guest has no jobs","code":"NOT_IMPLEMENTED"}`), CodeUnsupported, false},
		"no machine":     {says(404, "application/json", `{"error":"machine 'vm' not found","code":"NOT_FOUND"}`), CodeNotFound, false},
		"a failure":      {says(500, "application/json", `{"error":"agent operation failed","code":"INTERNAL_ERROR"}`), CodeInternal, true},
	} {
		_, err := withJobs(t, "jobs", c.answer).RunJob(t.Context(), "vm", aJob)
		if CodeOf(err) != c.code || MaybeDone(err) != c.maybe {
			t.Errorf("%s: %v", what, err)
		}
	}
	for what, change := range map[string]func(*Job){
		"bytes in what is shown": func(j *Job) { j.Shown = "\xff" },
		"no command":             func(j *Job) { j.Argv = nil }, "a name": func(j *Job) { j.Env = map[string]string{"a-b": ""} },
	} {
		s, j := withJobs(t, "jobs", says(500, "", "")), aJob
		change(&j)
		if _, err := s.RunJob(t.Context(), "vm", j); CodeOf(err) != CodeInvalid || len(s.requests()) > 0 {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := withJobs(t, "jobs", nil).RunJob(t.Context(), "no/name", aJob); err == nil || strings.Contains(err.Error(), "jobs") {
		t.Errorf("a bad name: %v", err)
	}
}
