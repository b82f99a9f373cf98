package tools_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"smol-mcp/fleet"
	"smol-mcp/fleet/fleettest"
)

// errorForm is "CODE: what failed. Why. Next step."
var errorForm = regexp.MustCompile(`^[A-Z_]+: .+\. .+\.$`)

func TestErrorForm(t *testing.T) {
	r := newRig(t, rigOptions{})
	name := r.machine(nil)
	for tool, arguments := range map[string]map[string]any{
		"get-machine":    {"name": "nowhere"},
		"start-machine":  {"name": "no/where"},
		"create-machine": {"image": "alpine:3.20", "name": name},
		"run-command":    {"name": name, "command": "true", "timeoutSecs": 0},
		"read-file":      {"name": name, "path": "/none"},
		"machine-logs":   {"name": name, "tail": 10001},
		"stop-machine":   {"name": "nowhere"},
		"pull-image":     {"name": name, "image": "/etc/passwd"},
	} {
		res := r.try(tool, arguments)
		if text := words(res); !res.IsError || !errorForm.MatchString(text) {
			t.Errorf("%s: %q", tool, text)
		} else if code, _, _ := strings.Cut(text, ":"); res.Meta["code"] != code {
			t.Errorf("%s: _meta says %v, the text %s", tool, res.Meta["code"], code)
		}
	}
}

// A refused argument is named, with what would be right.
func TestArgumentErrors(t *testing.T) {
	r := newRig(t, rigOptions{})
	for _, c := range []struct {
		tool      string
		arguments map[string]any
		want      []string
	}{
		{"create-machine", map[string]any{"image": "a", "cpus": 99}, []string{"cpus", "64"}},
		{"create-machine", map[string]any{"image": "a", "memory": 99}, []string{"memory", "memoryMb"}},
		{"create-machine", map[string]any{}, []string{"image"}},
		{"create-machine", map[string]any{"image": 3}, []string{"image", "string"}},
		{"create-machine", map[string]any{"image": "a", "ports": []map[string]any{{"guest": 70000}}}, []string{"ports", "guest", "65535"}},
		{"create-machine", map[string]any{"image": "a", "network": "on"}, []string{"network", "open", "blocked"}},
		{"create-machine", map[string]any{"image": "a", "name": "Upper"}, []string{"Upper", "a-z"}},
		{"create-machine", map[string]any{"image": "a", "name": "a--b"}, []string{"a--b", "--"}},
		{"run-command", map[string]any{"name": "a", "command": []string{}}, []string{"command"}},
		{"run-command", map[string]any{"name": "a"}, []string{"command"}},
		{"get-machine", map[string]any{"name": "../../health"}, []string{"name"}},
		{"get-machine", map[string]any{"name": "a", "target": "cloud"}, []string{"target", "local"}},
	} {
		text := r.refused(c.tool, c.arguments)
		if !strings.HasPrefix(text, "INVALID: ") {
			t.Errorf("%s %v: %q", c.tool, c.arguments, text)
		}
		for _, word := range c.want {
			if !strings.Contains(text, word) {
				t.Errorf("%s %v: %q does not speak of %q", c.tool, c.arguments, text, word)
			}
		}
	}
	r.call("list-machines", map[string]any{"target": "local"}) // superfluous, but right
	if n := r.memory.Count("Create") + r.memory.Count("Exec"); n > 0 {
		t.Errorf("%d calls were sent", n)
	}
}

// A command of the wrong form is told what it may be, in one line.
func TestCommandForm(t *testing.T) {
	r := newRig(t, rigOptions{})
	const want = "INVALID: arguments of run-command. command: it is a line of shell or a list of words, and not empty. correct the argument and call again."
	for _, command := range []any{[]string{}, "", 5, true, []any{"a", 5}, map[string]any{"a": "b"}} {
		if text := r.refused("run-command", map[string]any{"name": "a", "command": command}); text != want {
			t.Errorf("%v: %s", command, text)
		}
		if text := r.refused("run-once", map[string]any{"image": "a", "command": command}); text != strings.Replace(want, "run-command", "run-once", 1) {
			t.Errorf("run-once, %v: %s", command, text)
		}
	}
	for _, tool := range definitions(t) { // what is said is about commands
		walk(parsed(t, tool.InputSchema), tool.Name, func(path string, p *jsonschema.Schema) {
			if p.AnyOf != nil && !strings.HasSuffix(path, "command") {
				t.Errorf("%s is a union, too", path)
			}
		})
	}
}

func TestNotFoundNamesWhatIsNear(t *testing.T) {
	r := newRig(t, rigOptions{})
	if text := r.refused("get-machine", map[string]any{"name": "builder"}); !strings.Contains(text, "no machine at all") {
		t.Errorf("with none: %q", text)
	}
	r.machine(map[string]any{"name": "build-box"})
	r.machine(map[string]any{"name": "database"})
	for _, name := range []string{"build-bx", "build", "Build-Box"} {
		for _, tool := range []string{"get-machine", "stop-machine", "run-command", "read-file", "write-file"} {
			arguments := map[string]any{"name": name}
			switch tool {
			case "run-command":
				arguments["command"] = "true"
			case "read-file":
				arguments["path"] = "/x"
			case "write-file":
				arguments["path"], arguments["content"] = "/x", ""
			}
			if text := r.refused(tool, arguments); !strings.HasPrefix(text, "NOT_FOUND") || !strings.Contains(text, "build-box") || strings.Contains(text, "database") {
				t.Errorf("%s %s: %q", tool, name, text)
			}
		}
	}
}

// W46: the cause of a failed connection is told.
func TestCausesAreKept(t *testing.T) {
	r := newRig(t, rigOptions{})
	cause := fmt.Errorf("dial unix /run/x.sock: %w", syscall.ECONNREFUSED)
	r.memory.Fault(fleettest.Fault{Method: "List", Err: fleet.Errorf(fleet.CodeUnreachable, "list machines", "%w", cause)})
	if text := r.refused("list-machines", nil); !strings.Contains(text, "connection refused") || !strings.HasPrefix(text, "UNREACHABLE") {
		t.Errorf("refused with %q", text)
	}
	r.memory.ClearFaults()
	r.memory.Fault(fleettest.Fault{Method: "Download", Err: fleet.Errorf(fleet.CodeUnreachable, "read file", "%w", cause)})
	_, err := r.client.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "smol://machine/local/x/file/y"})
	if err == nil || !strings.Contains(err.Error(), "UNREACHABLE") || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("the resource: %v", err)
	}
}

func TestUnexpectedErrorsAreBounded(t *testing.T) {
	r := newRig(t, rigOptions{})
	r.memory.Fault(fleettest.Fault{Method: "List", Err: errors.New(strings.Repeat("é\x00", 100_000))})
	text := r.refused("list-machines", nil)
	if !strings.HasPrefix(text, "INTERNAL") || len(text) > 5000 || strings.ContainsRune(text, 0) || strings.ContainsRune(text, '\uFFFD') {
		t.Errorf("%d bytes: %.60q", len(text), text)
	}
}

// What the records know and the fleet does not list is told, not hidden.
func TestRecordedButMissing(t *testing.T) {
	r := newRig(t, rigOptions{})
	name := r.machine(nil)
	if _, err := r.memory.Delete(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	out := r.call("list-machines", nil)
	if p := out["problems"].([]any); len(p) != 1 || !strings.Contains(p[0].(map[string]any)["error"].(string), name) {
		t.Errorf("problems: %v", p)
	}
	if gone := r.call("delete-machine", map[string]any{"name": name}); gone["alreadyGone"] != true {
		t.Errorf("deleted: %v", gone)
	}
	if out := r.call("list-machines", nil); len(out["problems"].([]any)) != 0 {
		t.Errorf("problems: %v", out)
	}
}

func TestListOwners(t *testing.T) {
	r := newRig(t, rigOptions{})
	mine := r.machine(nil)
	_, first := r.session, r.client
	_, r.client = r.connect(rigOptions{})
	theirs := r.machine(nil)
	r.client = first
	if _, err := r.memory.Create(t.Context(), fleet.Spec{Name: "foreign"}); err != nil {
		t.Fatal(err)
	}
	owners := map[string]any{}
	for _, m := range r.call("list-machines", nil)["machines"].([]any) {
		owners[m.(map[string]any)["name"].(string)] = m.(map[string]any)["owner"]
	}
	if owners[mine] != "this-session" || owners[theirs] != "another-session" || owners["foreign"] != "none" {
		t.Errorf("owners: %v", owners)
	}
	if own := r.call("list-machines", map[string]any{"all": false})["machines"].([]any); len(own) != 1 {
		t.Errorf("own: %v", own)
	}
}

func TestLogs(t *testing.T) {
	r := newRig(t, rigOptions{})
	name := r.machine(nil)
	for i := range 300 {
		r.memory.Print(name, fmt.Sprintf("line %d", i))
	}
	first := r.call("machine-logs", map[string]any{"name": name})
	lines := first["lines"].([]any)
	if len(lines) != 100 || lines[99] != "line 299" {
		t.Errorf("%d lines, the last %v", len(lines), lines[len(lines)-1])
	}
	r.memory.Print(name, "line 300")
	if next := r.call("machine-logs", map[string]any{"name": name, "cursor": first["cursor"]}); len(next["lines"].([]any)) != 1 || next["truncated"] != false {
		t.Errorf("since then: %v", next)
	}
	r.memory.Print(name, strings.Repeat("x", 100_000))
	long := r.call("machine-logs", map[string]any{"name": name, "tail": 1})
	if line := long["lines"].([]any)[0].(string); len(line) > 65536 || !strings.Contains(line, "more bytes") || long["truncated"] != true {
		t.Errorf("a long line: %d bytes, %v", len(line), long["truncated"])
	}
}

func TestTargetsResource(t *testing.T) {
	r := newRig(t, rigOptions{})
	read := func() string {
		res, err := r.client.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "smol://targets"})
		if err != nil {
			t.Fatal(err)
		}
		return res.Contents[0].Text
	}
	if text := read(); !strings.Contains(text, `"engine":"memory"`) || !strings.Contains(text, `"usable":true`) {
		t.Errorf("targets: %s", text)
	}
	r.memory.Fault(fleettest.Fault{Method: "Info", Err: fleet.Errorf(fleet.CodeUnavailable, "start smolvm", "no smolvm on PATH")})
	if text := read(); !strings.Contains(text, "no smolvm on PATH") || !strings.Contains(text, `"usable":false`) {
		t.Errorf("targets: %s", text)
	}
}

func TestPromptAndCompletion(t *testing.T) {
	r := newRig(t, rigOptions{})
	name := r.machine(nil)
	prompt, err := r.client.GetPrompt(t.Context(), &mcp.GetPromptParams{Name: "try-in-a-machine", Arguments: map[string]string{"repository": "https://example.test/r.git"}})
	if err != nil || !strings.Contains(prompt.Messages[0].Content.(*mcp.TextContent).Text, "https://example.test/r.git") {
		t.Errorf("prompt: %v %v", prompt, err)
	}
	for argument, want := range map[string]string{"name": name, "target": "local"} {
		res, err := r.client.Complete(t.Context(), &mcp.CompleteParams{
			Ref:      &mcp.CompleteReference{Type: "ref/resource", URI: "smol://machine/{target}/{name}/file{+path}"},
			Argument: mcp.CompleteParamsArgument{Name: argument, Value: want[:2]},
		})
		if err != nil || len(res.Completion.Values) != 1 || res.Completion.Values[0] != want {
			t.Errorf("completion of %s: %v %v", argument, res, err)
		}
	}
}

// A client that opens a handshake with the revision that has none gets the newest with one.
func TestHandshakeVersion(t *testing.T) {
	r := newRig(t, rigOptions{protocol: "2025-11-25"})
	if v := r.client.InitializeResult().ProtocolVersion; v != "2025-11-25" {
		t.Errorf("negotiated %s", v)
	}
}

// A call after the end of the session is refused and starts nothing.
func TestClosedSession(t *testing.T) {
	r := newRig(t, rigOptions{})
	if err := r.session.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	if _, err := r.client.CallTool(t.Context(), &mcp.CallToolParams{Name: "list-machines"}); err == nil {
		t.Error("a call was served")
	}
	if len(r.memory.Calls()) > 0 {
		t.Errorf("calls: %v", r.memory.Calls())
	}
}
