package tools_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"smol-mcp/fleet"
	"smol-mcp/fleet/fleettest"
)

// inMode is a session over a fleet here and one in the cloud, or only one of them.
func inMode(t *testing.T, mode string) *chooser {
	t.Helper()
	c := &chooser{}
	c.rig = newRig(t, rigOptions{mode: mode, memory: pretend})
	return c
}

// TestGoldenTargets freezes what the target adds to each definition where two fleets
// are served; the rest is as it is with one.
func TestGoldenTargets(t *testing.T) {
	type added struct {
		Target   *jsonschema.Schema `json:"target"`
		Required []string           `json:"required"`
	}
	alone := map[string]*mcp.Tool{}
	for _, tool := range definitions(t) {
		alone[tool.Name] = tool
	}
	both := inMode(t, "both").tools()
	if len(both) != len(alone) {
		t.Errorf("%d tools, %d with one fleet", len(both), len(alone))
	}
	golden := map[string]added{}
	for _, tool := range both {
		s := parsed(t, tool.InputSchema)
		golden[tool.Name] = added{s.Properties["target"], slices.Clone(s.Required)}
		delete(s.Properties, "target")
		s.Required = slices.DeleteFunc(s.Required, func(name string) bool { return name == "target" })
		tool.InputSchema = s
		one := alone[tool.Name]
		one.InputSchema = parsed(t, one.InputSchema)
		if got, want := indented(t, tool), indented(t, one); !equalJSON(t, got, want) {
			t.Errorf("%s differs in more than its target:\n%s\n%s", tool.Name, got, want)
		}
	}
	file := filepath.Join(goldenDir, "both", "targets.json")
	got := indented(t, golden)
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(file); err != nil || !bytes.Equal(got, want) {
		t.Errorf("targets differ from their golden file (%v); if the change is meant, run: go test ./tools -run Golden -update", err)
	}
}

func equalJSON(t *testing.T, a, b []byte) bool {
	t.Helper()
	var x, y any
	if err := errors.Join(json.Unmarshal(a, &x), json.Unmarshal(b, &y)); err != nil {
		t.Fatal(err)
	}
	p, err := json.Marshal(x)
	q, err2 := json.Marshal(y)
	return err == nil && err2 == nil && bytes.Equal(p, q)
}

// Two fleets cost a little more of the context.
func TestTargetsFitTheContext(t *testing.T) {
	raw, err := json.Marshal(inMode(t, "both").tools())
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("tools/list with two fleets: %d bytes", len(raw))
	if len(raw) > 26_000 {
		t.Errorf("tools/list takes %d bytes, over 26 kB", len(raw))
	}
}

// With one fleet there is no target; a contradicting one is refused, not dropped.
func TestOneFleetHasNoTarget(t *testing.T) {
	for _, mode := range []string{"", "cloud"} {
		c := inMode(t, mode)
		own, other := "local", "cloud"
		if mode == "cloud" {
			own, other = other, own
		}
		if got := c.shows(); got != "absent" {
			t.Errorf("%s: target is %s", own, got)
		}
		if machine := c.call("create-machine", image)["machine"].(map[string]any); machine["target"] != own {
			t.Errorf("made in %v, not in %s", machine["target"], own)
		}
		c.call("create-machine", with(image, "target", own))
		for tool, arguments := range map[string]map[string]any{"create-machine": image, "list-machines": nil} {
			if text := c.refused(tool, with(arguments, "target", other)); !strings.Contains(text, "serves only the "+own+" target") {
				t.Errorf("%s: refused with %q", tool, text)
			}
		}
		if _, err := c.client.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "smol://machine/" + other + "/x/logs"}); err == nil || !strings.Contains(err.Error(), "serves only") {
			t.Errorf("a log of %s: %v", other, err)
		}
		has := slices.ContainsFunc(c.tools(), func(tool *mcp.Tool) bool { return tool.Name == "pull-image" })
		if has != (own == "local") {
			t.Errorf("%s: pull-image is listed: %v", own, has)
		}
		if c.client.InitializeResult().Capabilities.Tools.ListChanged {
			t.Errorf("%s: the list of tools is said to change", own)
		}
	}
	if c := chooses(t, "2025-11-25", nil); !c.client.InitializeResult().Capabilities.Tools.ListChanged {
		t.Error("both: the list of tools is not said to change")
	}
}

// Instructions say where machines are, and fit, in each mode.
func TestInstructionsOfModes(t *testing.T) {
	for mode, must := range map[string][]string{
		"":      {"on this computer"},
		"cloud": {"smol cloud", "cost money", "60 min"},
		"both":  {"target local", "target cloud", "Name the target", "cost money", "smol://targets"},
	} {
		text := inMode(t, mode).client.InitializeResult().Instructions
		if len(text) > 2048 || strings.ContainsAny(text, "{}") {
			t.Errorf("%s: %d characters: %s", mode, len(text), text)
		}
		for _, word := range must {
			if !strings.Contains(text, word) {
				t.Errorf("%s: instructions do not speak of %q", mode, word)
			}
		}
		if mode == "" && strings.Contains(text, "cloud") {
			t.Errorf("local: instructions speak of the cloud: %s", text)
		}
	}
}

// list-machines shows all fleets, or the one that is named; what one cannot say stands
// beside what the other does.
func TestListOfTwoFleets(t *testing.T) {
	c := inMode(t, "both")
	here := c.call("create-machine", with(image, "target", "local"))["machine"].(map[string]any)["name"]
	there := c.call("create-machine", with(image, "target", "cloud"))["machine"].(map[string]any)["name"]
	listed := func(arguments map[string]any) (names []any, problems string) {
		out := c.call("list-machines", arguments)
		for _, m := range out["machines"].([]any) {
			m := m.(map[string]any)
			names = append(names, m["target"].(string)+" "+m["name"].(string))
		}
		return names, string(indented(t, out["problems"]))
	}
	if names, _ := listed(nil); len(names) != 2 {
		t.Errorf("of both: %v", names)
	}
	if names, _ := listed(map[string]any{"target": "cloud"}); len(names) != 1 || names[0] != "cloud "+there.(string) {
		t.Errorf("of the cloud: %v", names)
	}
	c.cloud.Fault(fleettest.Fault{Method: "List", Times: 2, Err: &fleet.Error{Code: fleet.CodeCloudUnauthorized, Op: "list machines", Why: "unknown API key"}})
	if names, problems := listed(nil); len(names) != 1 || names[0] != "local "+here.(string) || !strings.Contains(problems, "unknown API key") || !strings.Contains(problems, `"cloud"`) {
		t.Errorf("with a key that is not known: %v %s", names, problems)
	}
	if text := c.refused("list-machines", map[string]any{"target": "cloud"}); !strings.HasPrefix(text, "CLOUD_UNAUTHORIZED") {
		t.Errorf("refused with %q", text)
	}
	c.tenant.Store(tenant{err: &fleet.Error{Code: fleet.CodeCloudNotConfigured, Op: "use the cloud"}})
	if names, problems := listed(nil); len(names) != 1 || !strings.Contains(problems, "CLOUD_NOT_CONFIGURED") {
		t.Errorf("without a key: %v %s", names, problems)
	}
	c.memory.Fault(fleettest.Fault{Method: "List", Err: &fleet.Error{Code: fleet.CodeUnavailable, Op: "list machines", Why: "no engine"}})
	if text := c.refused("list-machines", nil); !strings.Contains(text, "no engine") && !strings.Contains(text, "CLOUD_NOT_CONFIGURED") {
		t.Errorf("refused with %q", text)
	}
}

// A fleet that does not answer holds nobody up for longer than its time.
func TestSlowFleet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := inMode(t, "both")
		c.cloud.Fault(fleettest.Fault{Method: "Info", Latency: time.Hour})
		c.cloud.Fault(fleettest.Fault{Method: "List", Latency: time.Hour})
		begin := time.Now()
		state := c.targets()
		if took := time.Since(begin); took != 5*time.Second {
			t.Errorf("it took %v", took)
		}
		if here := state["local"]; here["usable"] != true || here["engine"] != "memory" {
			t.Errorf("local: %v", here)
		}
		if there := state["cloud"]; there["usable"] != false || there["served"] != true || !strings.Contains(there["whyNot"].(string), "no answer within 5 s") {
			t.Errorf("cloud: %v", there)
		}
		c.call("create-machine", with(image, "target", "local"))
		out := c.call("list-machines", nil)
		if len(out["machines"].([]any)) != 1 || !strings.Contains(string(indented(t, out["problems"])), "no answer within 20 s") {
			t.Errorf("listed: %v", out)
		}
	})
}

// targets reads smol://targets: by target, and under "" the mode and the choice.
func (c *chooser) targets() map[string]map[string]any {
	c.t.Helper()
	res, err := c.client.ReadResource(c.t.Context(), targetsRequest())
	if err != nil {
		c.t.Fatal(err)
	}
	var all struct {
		Mode          string           `json:"mode"`
		SessionTarget any              `json:"sessionTarget"`
		Targets       []map[string]any `json:"targets"`
	}
	if err := json.Unmarshal([]byte(res.Contents[0].Text), &all); err != nil {
		c.t.Fatal(err)
	}
	state := map[string]map[string]any{"": {"mode": all.Mode, "choice": all.SessionTarget}}
	for _, one := range all.Targets {
		state[one["target"].(string)] = one
	}
	return state
}

// smol://targets tells the mode, the choice, and what each fleet can do.
func TestTargetsOfModes(t *testing.T) {
	for _, test := range []struct {
		mode   string
		answer string
		name   string
		choice any
		served map[string]bool
		usable map[string]bool
	}{
		{"", "", "local", "local", map[string]bool{"local": true}, map[string]bool{"local": true}},
		{"cloud", "", "cloud", "cloud", map[string]bool{"cloud": true}, map[string]bool{"cloud": true}},
		{"both", "both", "both", nil, map[string]bool{"local": true, "cloud": true}, map[string]bool{"local": true, "cloud": true}},
		{"both", "cloud", "both", "cloud", map[string]bool{"local": true, "cloud": true}, map[string]bool{"cloud": true}},
	} {
		c := &chooser{rig: newRig(t, rigOptions{mode: test.mode, protocol: "2025-11-25", memory: pretend, client: &mcp.ClientOptions{
			ElicitationHandler: func(ctx context.Context, _ *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
				return accept(test.answer)(ctx)
			},
		}})}
		if test.answer != "" {
			c.try("create-machine", image)
		}
		state := c.targets()
		if state[""]["mode"] != test.name || state[""]["choice"] != test.choice {
			t.Errorf("%s: %v", test.name, state[""])
		}
		for _, word := range []string{"local", "cloud"} {
			one := state[word]
			if one["served"] != test.served[word] || one["usable"] != test.usable[word] || (one["whyNot"] == nil) != test.usable[word] {
				t.Errorf("%s, answer %q: %v", test.name, test.answer, one)
			}
			if cannot, ok := one["cannot"].([]any); !ok || word == "cloud" && test.served[word] && !slices.Contains(cannot, any("mount host directories")) {
				t.Errorf("%s: cannot %v", test.name, one["cannot"])
			}
		}
	}
}

// Completions and prompts know of both fleets until one is chosen or named.
func TestCompletionsOfTwoFleets(t *testing.T) {
	c := inMode(t, "both")
	here := c.call("create-machine", with(image, "target", "local"))["machine"].(map[string]any)["name"].(string)
	there := c.call("create-machine", with(image, "target", "cloud"))["machine"].(map[string]any)["name"].(string)
	want := []string{here, there}
	slices.Sort(want)
	if got := c.completes("name", ""); !slices.Equal(got, want) {
		t.Errorf("names of both: %v", got)
	}
	if got := c.completes("name", "cloud"); !slices.Equal(got, []string{there}) {
		t.Errorf("names of the cloud: %v", got)
	}
	if got := c.completes("name", "moon"); len(got) > 0 {
		t.Errorf("names of nowhere: %v", got)
	}
	if got := c.completes("target", ""); !slices.Equal(got, []string{"local", "cloud"}) {
		t.Errorf("targets: %v", got)
	}
	for name, argument := range map[string]string{"try-in-a-machine": "repository", "compare-branches": "task"} {
		res, err := c.client.GetPrompt(t.Context(), &mcp.GetPromptParams{Name: name, Arguments: map[string]string{argument: "this one"}})
		if err != nil || !strings.Contains(res.Messages[0].Content.(*mcp.TextContent).Text, "target local") || !strings.Contains(res.Messages[0].Content.(*mcp.TextContent).Text, "this one") {
			t.Errorf("prompt %s: %v %v", name, res, err)
		}
	}
}

func targetsRequest() *mcp.ReadResourceParams { return &mcp.ReadResourceParams{URI: "smol://targets"} }

// An engine that takes long to start, as the first one of a boot, is waited for, alone and
// beside another fleet.
func TestSlowFirstStart(t *testing.T) {
	for _, mode := range []string{"both", ""} {
		synctest.Test(t, func(t *testing.T) {
			c := &chooser{rig: newRig(t, rigOptions{mode: mode})}
			c.memory.Fault(fleettest.Fault{Method: "Info", Latency: 12 * time.Second})
			if here := c.targets()["local"]; here["usable"] != true {
				t.Errorf("mode %q: local: %v", mode, here)
			}
		})
	}
}
