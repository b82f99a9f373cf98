package tools_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"smol-mcp/fleet"
	"smol-mcp/fleet/fleettest"
)

// failing is a fleet where the first requests of a kind have no answer: those whose
// script has a word in it.
type failing struct {
	fleet.Fleet
	word  string
	left  *atomic.Int32
	asked *atomic.Int32 // requests of the kind so far
}

func (f failing) Exec(ctx context.Context, name string, cmd fleet.Command) (fleet.Result, error) {
	if strings.Contains(strings.Join(cmd.Argv, " "), f.word) {
		f.asked.Add(1)
		if f.left.Add(-1) >= 0 {
			return fleet.Result{}, &fleet.Error{Code: fleet.CodeUnreachable, Op: "exec in " + name, Why: "connection reset", MaybeDone: true}
		}
	}
	return f.Fleet.Exec(ctx, name, cmd)
}

// fails makes the next n requests fail of a session that follows; they are those with a
// function of look.sh.
func (r *rig) fails() failing {
	f := failing{r.fleet, "smol_part()", new(atomic.Int32), new(atomic.Int32)}
	r.options.Fleets = []fleet.Fleet{f}
	r.session, r.client = r.connect(rigOptions{})
	return f
}

// A look at a command that fails in passing is repeated as long as the call is to wait, and
// without a wait the error says that the command was sent.
func TestPassingFailureOfALook(t *testing.T) {
	r := newRig(t, rigOptions{})
	f := r.fails()
	name := r.machine(nil)
	f.left.Store(1)
	ran := r.call("run-command", map[string]any{"name": name, "command": "echo out; sleep 2; exit 5", "waitSecs": 60})
	if ran["exitCode"] != 5.0 || ran["stdout"] != "out\n" || ran["running"] != false || f.asked.Load() < 2 {
		t.Errorf("one failure, after %d looks: %v", f.asked.Load(), ran)
	}
	f.left.Store(2)
	read := r.read(name, ran, map[string]any{"waitSecs": 60})
	if read["exitCode"] != 5.0 || read["stdout"] != "out\n" || f.left.Load() >= 0 {
		t.Errorf("read-command that waits, after two: %v", read)
	}
	f.left.Store(1)
	if text := r.refused("read-command", map[string]any{"name": name, "commandId": ran["commandId"]}); !strings.HasPrefix(text, "UNREACHABLE") || strings.Contains(text, "may have been done") {
		t.Errorf("read-command that does not wait: %s", text)
	}
	f.left.Store(1000)
	text := r.refused("run-command", map[string]any{"name": name, "command": "touch /root/ran; sleep 3", "waitSecs": 2})
	for _, want := range []string{"UNREACHABLE", "The command was sent as ", "how it stands is not known", "It may have been done all the same", "read-command before you run it again"} {
		if !strings.Contains(text, want) {
			t.Errorf("no look succeeds: %q is not in %q", want, text)
		}
	}
	f.left.Store(0)
	_, id, _ := strings.Cut(text, "sent as ")
	if read := r.read(name, map[string]any{"commandId": id[:12]}, map[string]any{"waitSecs": 60}); read["exitCode"] != 0.0 {
		t.Errorf("the command of the error: %v", read)
	}
}

// Where the guest tells no clock, as those of these tests, a command took what the call saw:
// not the second for which it kept its request.
func TestDurationWithoutAClock(t *testing.T) {
	r := newRig(t, rigOptions{})
	name := r.machine(nil)
	for _, c := range []struct {
		command     string
		wait        int
		least, most float64 // milliseconds
		running     bool
	}{
		{"sleep 0.3", 60, 300, 20_000, false},
		{"sleep 3; head -c 100000 /dev/zero", 60, 3000, 40_000, false},
		{"sleep 1000", 2, 2000, 30_000, true},
	} {
		ran := r.call("run-command", map[string]any{"name": name, "command": c.command, "waitSecs": c.wait})
		if took := ran["durationMs"].(float64); ran["running"] != c.running || took < c.least || took > c.most {
			t.Errorf("%s: %v ms, running %v", c.command, took, ran["running"])
		}
	}
}

// Whose machine is deleted under it, a command is told to be gone, wherever the call is.
func TestDeletedUnderACommand(t *testing.T) {
	r := newRig(t, rigOptions{})
	for _, when := range []string{"touch /root/on; sleep 1000", "sleep 1.5; touch /root/on; sleep 1000"} { // attached, and after that
		name := r.machine(nil)
		told := make(chan *mcp.CallToolResult, 1)
		go func() {
			res, err := r.client.CallTool(t.Context(), &mcp.CallToolParams{Name: "run-command", Arguments: map[string]any{"name": name, "command": when}})
			if err != nil {
				t.Error(err)
			}
			told <- res
		}()
		eventually(t, "it runs", func() bool { return r.run(name, "ls /root")["stdout"] == "on\n" })
		r.call("delete-machine", map[string]any{"name": name})
		res := <-told
		if res == nil {
			continue
		}
		text := words(res)
		for _, want := range []string{"NOT_FOUND", "The command was sent as ", "the machine is gone, and the command with it"} {
			if !res.IsError || !strings.Contains(text, want) {
				t.Errorf("%s: %q is not in %q", when, want, text)
			}
		}
	}
}

// What is asked of a command that nobody knows names it, says what may be, and what shows more.
func TestUnknownCommand(t *testing.T) {
	r := newRig(t, rigOptions{})
	name := r.machine(nil)
	for _, tool := range []string{"read-command", "stop-command"} {
		text := r.refused(tool, map[string]any{"name": name, "commandId": "abcdefghijkl"})
		for _, want := range []string{"NOT_FOUND: ", "command abcdefghijkl", "machine " + name, "another machine's", "older than a day", "a restart of the machine", "Get-machine lists the commands"} {
			if !strings.Contains(strings.ToLower(text), strings.ToLower(want)) {
				t.Errorf("%s: %q is not in %q", tool, want, text)
			}
		}
	}
	if text := r.refused("read-command", map[string]any{"name": name + "x", "commandId": "abcdefghijkl"}); !strings.HasPrefix(text, "NOT_FOUND") || !strings.Contains(text, "did you mean "+name) {
		t.Errorf("of an unknown machine: %q", text)
	}
}

// A refusal names a variable as the user did, not as it comes into the guest.
func TestRefusedVariable(t *testing.T) {
	c := overWire(t, rigOptions{})
	name := c.machine(nil)
	for _, variable := range []string{"KEY", "SMOL_E_KEY"} {
		arguments := map[string]any{"name": name, "command": "env", "env": map[string]any{variable: fleettest.CloudToken, "K": "v"}}
		text := c.refused("run-command", arguments)
		if !strings.HasPrefix(text, "INVALID") || !strings.Contains(text, "environment variable "+variable+" holds the key") || strings.Contains(text, fleettest.CloudToken) {
			t.Errorf("%s with the account's key: %q", variable, text)
		}
	}
	for variable, value := range map[string]string{"A-B": "v", "2X": "v", "UID": "1", "": "v", "A B": "v", "NUL": "a\x00b"} {
		text := c.refused("run-command", map[string]any{"name": name, "command": "env", "env": map[string]any{variable: value}})
		if !strings.HasPrefix(text, "INVALID: environment variable "+fleet.Quote(variable)) {
			t.Errorf("%q: %q", variable, text)
		}
	}
}

// More input than the definition allows is refused before anything is sent.
func TestTooMuchInput(t *testing.T) {
	r := newRig(t, rigOptions{})
	name := r.machine(nil)
	text := r.refused("run-command", map[string]any{"name": name, "command": "cat", "stdin": strings.Repeat("x", 10<<20+1)})
	if !strings.HasPrefix(text, "INVALID") || !strings.Contains(text, "write-file") {
		t.Errorf("refused with %.200q", text)
	}
}
