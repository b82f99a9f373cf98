package fleettest

import (
	"cmp"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"smol-mcp/fleet"
)

// Jobs answer as the script that begins them elsewhere, where the fleet has them at all.
func testJobs(t *testing.T, s *suite) {
	runner, ok := s.Fleet.(fleet.JobRunner)
	if !ok {
		t.Skip("the fleet has no jobs")
	}
	m := s.running(t, "jobs", fleet.StartOptions{})
	begin := s.beginJob(t, runner, m.Name)
	_, err := begin("job000000001", time.Minute, fleet.Job{Command: fleet.Command{Argv: []string{"true"}}})
	if fleet.CodeOf(err) == fleet.CodeUnsupported {
		t.Skip("the engine has no jobs")
	}
	const head = jobHead
	const times = `[0-9.]+ [0-9.]+`
	for i, c := range []struct {
		what           string
		job            fleet.Job
		stdout, stderr string // patterns
	}{
		{"an end", fleet.Job{Command: fleet.Command{Argv: []string{"/bin/sh", "-c", "echo out $A; echo err >&2; exit 3"}, Env: map[string]string{"A": "b c"}}},
			head + "exit 3 " + times + " - - err\nout b c\nsmol1 end\n$", "^err\nsmol1 end\n$"},
		{"no output", fleet.Job{Command: fleet.Command{Argv: []string{"true"}}}, head + "exit 0 " + times + " - - -\nsmol1 end\n$", "^$"},
		{"a signal", fleet.Job{Command: fleet.Command{Argv: []string{"/bin/sh", "-c", "kill -9 $$"}}}, head + "exit 137 ", "^$"},
		{"input", fleet.Job{Command: fleet.Command{Argv: []string{"cat"}, Stdin: "text"}, Input: "-"}, head + "exit 0 .*\ntextsmol1 end\n$", "^$"},
		{"input of no file", fleet.Job{Command: fleet.Command{Argv: []string{"cat"}}, Input: "/tmp/none"}, head + "nostdin\n$", "^$"},
		{"a directory", fleet.Job{Command: fleet.Command{Argv: []string{"pwd"}, Workdir: "/etc"}}, head + "exit 0 .*\n/etc\nsmol1 end\n$", "^$"},
		{"no directory", fleet.Job{Command: fleet.Command{Argv: []string{"pwd"}, Workdir: "/none"}}, head + "noworkdir\n$", "^$"},
		{"no program", fleet.Job{Command: fleet.Command{Argv: []string{"no-such-program"}}}, head + "exit 127 .* err\nsmol1 end\n$", "no-such-program.*\nsmol1 end\n$"},
		{"no permission", fleet.Job{Command: fleet.Command{Argv: []string{"/etc/passwd"}}}, head + "exit 126 .* err\nsmol1 end\n$", "/etc/passwd.*\nsmol1 end\n$"},
		{"more than fits", fleet.Job{Command: fleet.Command{Argv: []string{"/bin/sh", "-c", "head -c 5000 /dev/zero | tr '\\000' x"}}}, head + "exit 0 .*\nx{1000}smol1 end\n$", "^$"},
		{"a script without a first line", fleet.Job{Command: fleet.Command{Argv: []string{"/bin/sh", "-c", "printf 'echo plain $1' >/tmp/plain; chmod +x /tmp/plain; /tmp/plain words"}}}, head + "exit 0 .*\nplain words\n", "^$"},
		{"the same by itself", fleet.Job{Command: fleet.Command{Argv: []string{"/tmp/plain", "words"}}}, head + "exit 0 .*\nplain words\n", "^$"},
		{"a time-out", fleet.Job{Command: fleet.Command{Argv: []string{"sleep", "60"}, Timeout: time.Second}}, head + "exit 143 ", "^$"},
	} {
		res, err := begin(fmt.Sprintf("job1%08d", i+1), time.Minute, c.job)
		if err != nil || res.ExitCode != 0 || !regexp.MustCompile(c.stdout).Match(res.Stdout) || !regexp.MustCompile(c.stderr).Match(res.Stderr) {
			t.Errorf("%s: %q, %q, exit code %d, %v", c.what, res.Stdout, res.Stderr, res.ExitCode, err)
		}
	}
	s.jobFiles(t, m.Name, begin)
}

// A beginner begins a job and returns its answer.
type beginner func(id string, wait time.Duration, j fleet.Job) (fleet.Result, error)

func (s *suite) beginJob(t *testing.T, runner fleet.JobRunner, machine string) beginner {
	return func(id string, wait time.Duration, j fleet.Job) (fleet.Result, error) {
		j.ID, j.Wait, j.Limit, j.Asked, j.Shown = id, wait, 1000, time.Unix(1700000000, 0), "shown here"
		j.Timeout = cmp.Or(j.Timeout, time.Minute)
		return runner.RunJob(ctx(t), machine, j)
	}
}

// jobHead is how an answer begins.
const jobHead = `(?s)^smol1 [01] [-0-9a-f]+ /tmp/\.smol-mcp\n`

// jobFiles looks at what jobs leave behind.
func (s *suite) jobFiles(t *testing.T, machine string, begin beginner) {
	res, err := begin("job000000002", 100*time.Millisecond, fleet.Job{Command: fleet.Command{Argv: []string{"/bin/sh", "-c", "sleep 1; echo late"}}, Done: []string{"job100000001"}})
	if err != nil || !regexp.MustCompile(jobHead+"running\nsmol1 end\n$").Match(res.Stdout) {
		t.Errorf("one that takes longer: %q, %v", res.Stdout, err)
	}
	if got := s.sh(t, machine, "cd /tmp/.smol-mcp; until grep -q 'ok$' job000000002.job || [ $((n=n+1)) = 100 ]; do sleep 0.1; done; cat job000000002.job job000000002.stdout"); !regexp.MustCompile(
		`^0 [0-9.]+ - ok *\n- [0-9]+ +[-0-9a-f]+ [0-9.]+ 1700000000 60\nshown here\n(smol-job-[0-9]+\.)?\n *late\n$`).MatchString(got) {
		t.Errorf("its files at its end: %q", got)
	}
	if got := s.sh(t, machine, "ls /tmp/.smol-mcp | grep job100000001 || echo gone"); got != "gone\n" {
		t.Errorf("of a job that is not needed any more there is %q", got)
	}
	s.sh(t, machine, "true >/tmp/.smol-mcp/job000000003.stop")
	if res, err := begin("job000000003", time.Minute, fleet.Job{Command: fleet.Command{Argv: []string{"touch", "/tmp/begun"}}}); err != nil || !strings.HasSuffix(string(res.Stdout), "\nstopped\n") {
		t.Errorf("one that was stopped before: %q, %v", res.Stdout, err)
	}
	if got := s.sh(t, machine, "ls /tmp/begun /tmp/.smol-mcp/job000000003.job 2>/dev/null || echo no"); got != "no\n" {
		t.Errorf("one that was stopped before left %q", got)
	}
}
