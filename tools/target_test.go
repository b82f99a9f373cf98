package tools_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"smol-mcp/fleet"
	"smol-mcp/fleet/fleettest"
)

// chooser is a rig with two fleets, whose client answers the question after the target.
type chooser struct {
	*rig
	asked   atomic.Int32 // questions
	changes atomic.Int32 // notices that the tools have changed
}

// chooses returns a session whose user answers so; nil: the client cannot ask.
func chooses(t *testing.T, protocol string, answer func(ctx context.Context) (*mcp.ElicitResult, error)) *chooser {
	t.Helper()
	c := &chooser{}
	o := &mcp.ClientOptions{ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) { c.changes.Add(1) }}
	if answer != nil {
		o.ElicitationHandler = func(ctx context.Context, req *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			c.asked.Add(1)
			return answer(ctx)
		}
	}
	c.rig = newRig(t, rigOptions{mode: "both", protocol: protocol, client: o, memory: pretend})
	return c
}

// pretend is a fleet whose machines imitate what is needed to become ready.
var pretend = fleettest.MemoryOptions{Exec: func(_ context.Context, _ string, cmd fleet.Command) (fleet.Result, error) {
	if slices.Equal(cmd.Argv, []string{"true"}) {
		return fleet.Result{}, nil
	}
	return fleet.Result{}, &fleet.Error{Code: fleet.CodeInternal, Op: "exec", Why: "failed to spawn 'sh': No such file or directory"}
}}

func accept(word string) func(context.Context) (*mcp.ElicitResult, error) {
	return func(context.Context) (*mcp.ElicitResult, error) {
		return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"target": word}}, nil
	}
}

func action(word string) func(context.Context) (*mcp.ElicitResult, error) {
	return func(context.Context) (*mcp.ElicitResult, error) { return &mcp.ElicitResult{Action: word}, nil }
}

// shows reports how the tools show their target: absent, optional or required.
func (c *chooser) shows() string {
	c.t.Helper()
	list, err := c.client.ListTools(c.t.Context(), nil)
	if err != nil {
		c.t.Fatal(err)
	}
	var seen []string
	for _, tool := range list.Tools {
		if tool.Name == "list-machines" {
			continue // it is about both unless it names one
		}
		s := parsed(c.t, tool.InputSchema)
		switch target := s.Properties["target"]; {
		case target == nil:
			seen = append(seen, "absent")
		case len(target.Enum) != 2 || target.Default != nil:
			seen = append(seen, tool.Name+": "+string(indented(c.t, target)))
		case slices.Contains(s.Required, "target"):
			seen = append(seen, "required")
		default:
			seen = append(seen, "optional")
		}
	}
	slices.Sort(seen)
	return strings.Join(slices.Compact(seen), ", ")
}

// made are the numbers of machines that are local and in the cloud.
func (c *chooser) made() [2]int { return [2]int{len(c.memory.Machines()), len(c.cloud.Machines())} }

var image = map[string]any{"image": "alpine:3.20"}

func with(arguments map[string]any, more ...string) map[string]any {
	all := map[string]any{}
	for k, v := range arguments {
		all[k] = v
	}
	for i := 0; i < len(more); i += 2 {
		all[more[i]] = more[i+1]
	}
	return all
}

// A client that cannot ask has to name the target in each call.
func TestTargetWithoutElicitation(t *testing.T) {
	for _, protocol := range []string{"2024-11-05", "2025-06-18", "2025-11-25", "2026-07-28"} {
		c := chooses(t, protocol, nil)
		if got := c.shows(); got != "required" {
			t.Errorf("%s: target is %s", protocol, got)
		}
		if text := c.refused("create-machine", image); !strings.HasPrefix(text, "INVALID: ") || !strings.Contains(text, "local or cloud") || !strings.Contains(text, "cannot ask") {
			t.Errorf("%s: refused with %q", protocol, text)
		}
		c.call("create-machine", with(image, "target", "cloud"))
		if text := c.refused("create-machine", with(image, "target", "moon")); !strings.Contains(text, "local and cloud") {
			t.Errorf("%s: refused with %q", protocol, text)
		}
		if got := c.made(); got != [2]int{0, 1} {
			t.Errorf("%s: machines %v", protocol, got)
		}
	}
}

// The answer narrows the session: lists, calls, resources and completions.
func TestAnswerNarrows(t *testing.T) {
	for i, word := range []string{"local", "cloud"} {
		other := []string{"cloud", "local"}[i]
		c := chooses(t, "2025-11-25", accept(word))
		if got := c.shows(); got != "optional" {
			t.Errorf("before: target is %s", got)
		}
		if c.call("list-machines", nil); c.asked.Load() > 0 {
			t.Error("asked where a call is about all fleets")
		}
		machine := c.call("create-machine", image)["machine"].(map[string]any)
		if machine["target"] != word {
			t.Errorf("made in %v, not in %s", machine["target"], word)
		}
		eventually(t, "the client hears of it", func() bool { return c.changes.Load() == 1 })
		if got := c.shows(); got != "absent" {
			t.Errorf("after: target is %s", got)
		}
		c.call("create-machine", with(image, "target", word))
		text := c.refused("create-machine", with(image, "target", other))
		if !strings.Contains(text, "the user chose "+word) {
			t.Errorf("refused with %q", text)
		}
		want := [2]int{}
		want[i] = 2
		if got := c.made(); got != want {
			t.Errorf("machines: %v", got)
		}
		name := machine["name"].(string)
		if _, err := c.client.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "smol://machine/" + word + "/" + name + "/logs"}); err != nil {
			t.Errorf("the log: %v", err)
		}
		for _, uri := range []string{"smol://machine/" + other + "/" + name + "/logs", "smol://machine/" + other + "/" + name + "/file/etc/passwd"} {
			if _, err := c.client.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: uri}); err == nil || !strings.Contains(err.Error(), "the user chose") {
				t.Errorf("%s: %v", uri, err)
			}
		}
		if err := c.client.Subscribe(t.Context(), &mcp.SubscribeParams{URI: "smol://machine/" + other + "/" + name + "/logs"}); err == nil {
			t.Error("a log of the other fleet was followed")
		}
		if got := c.completes("target", ""); !slices.Equal(got, []string{word}) {
			t.Errorf("completions: %v", got)
		}
		if c.asked.Load() != 1 || c.changes.Load() != 1 {
			t.Errorf("%d questions, %d notices", c.asked.Load(), c.changes.Load())
		}
		has := slices.ContainsFunc(c.tools(), func(tool *mcp.Tool) bool { return tool.Name == "pull-image" })
		if has != (word == "local") {
			t.Errorf("pull-image is listed for %s: %v", word, has)
		}
	}
}

func (c *chooser) tools() []*mcp.Tool {
	c.t.Helper()
	list, err := c.client.ListTools(c.t.Context(), nil)
	if err != nil {
		c.t.Fatal(err)
	}
	return list.Tools
}

func (c *chooser) completes(argument, target string) []string {
	c.t.Helper()
	params := &mcp.CompleteParams{Ref: &mcp.CompleteReference{Type: "ref/resource", URI: "smol://machine/{target}/{name}/logs"},
		Argument: mcp.CompleteParamsArgument{Name: argument}}
	if target != "" {
		params.Context = &mcp.CompleteContext{Arguments: map[string]string{"target": target}}
	}
	res, err := c.client.Complete(c.t.Context(), params)
	if err != nil {
		c.t.Fatal(err)
	}
	return res.Completion.Values
}

// The logs of the fleet that was not chosen are not followed any longer.
func TestAnswerEndsFollowing(t *testing.T) {
	c := chooses(t, "2025-11-25", accept("cloud"))
	name := c.call("create-machine", with(image, "target", "local"))["machine"].(map[string]any)["name"].(string)
	if err := c.client.Subscribe(t.Context(), &mcp.SubscribeParams{URI: "smol://machine/local/" + name + "/logs"}); err != nil {
		t.Fatal(err)
	}
	c.call("create-machine", image)
	eventually(t, "nobody looks any more", func() bool {
		before := c.memory.Count("Logs")
		time.Sleep(50 * time.Millisecond) // five looks' time
		return c.memory.Count("Logs") == before
	})
}

// No answer leaves the choice to each call, says so, and is not asked for again.
func TestNoAnswer(t *testing.T) {
	for name, test := range map[string]struct {
		answer func(context.Context) (*mcp.ElicitResult, error)
		why    string
	}{
		"decline": {action("decline"), "did not choose"},
		"cancel":  {action("cancel"), "did not choose"},
		"both":    {accept("both"), "wants to use both"},
		"nowhere": {accept("moon"), "could not ask"},
		"failure": {func(context.Context) (*mcp.ElicitResult, error) { return nil, errors.New("no window") }, "no window"},
	} {
		t.Run(name, func(t *testing.T) {
			c := chooses(t, "2025-11-25", test.answer)
			if got := c.shows(); got != "optional" {
				t.Errorf("before: target is %s", got)
			}
			for range 2 {
				if text := c.refused("create-machine", image); !strings.Contains(text, test.why) || !strings.Contains(text, "target is required") {
					t.Errorf("refused with %q", text)
				}
			}
			eventually(t, "the client hears of it", func() bool { return c.changes.Load() == 1 })
			if got := c.shows(); got != "required" {
				t.Errorf("after: target is %s", got)
			}
			c.call("create-machine", with(image, "target", "local"))
			c.call("create-machine", with(image, "target", "cloud"))
			if c.asked.Load() != 1 || c.made() != [2]int{1, 1} {
				t.Errorf("%d questions, machines %v", c.asked.Load(), c.made())
			}
		})
	}
}

// The question has an end, which calls that name a target do not wait for.
func TestUnansweredQuestion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := chooses(t, "2025-11-25", func(ctx context.Context) (*mcp.ElicitResult, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		})
		begin := time.Now()
		var group sync.WaitGroup
		group.Go(func() {
			if text := c.refused("create-machine", image); !strings.Contains(text, "did not answer within 30 s") {
				t.Errorf("refused with %q", text)
			}
		})
		synctest.Wait()
		c.call("create-machine", with(image, "target", "cloud"))
		if waited := time.Since(begin); waited > time.Second {
			t.Errorf("a call that named its target waited %v", waited)
		}
		group.Wait()
		if waited := time.Since(begin); waited != 30*time.Second {
			t.Errorf("it waited %v", waited)
		}
		c.refused("create-machine", image)
		if waited := time.Since(begin); waited != 30*time.Second || c.asked.Load() != 1 {
			t.Errorf("it waited again: %v, %d questions", waited, c.asked.Load())
		}
	})
}

// Calls at once ask once, and all get the answer, also when the one that asked is given up.
func TestCallsAtOnceAskOnce(t *testing.T) {
	answered := make(chan struct{})
	c := chooses(t, "2025-11-25", func(context.Context) (*mcp.ElicitResult, error) {
		<-answered
		return accept("cloud")(context.Background())
	})
	impatient, giveUp := context.WithCancel(t.Context())
	var group sync.WaitGroup
	group.Go(func() {
		_, _ = c.client.CallTool(impatient, &mcp.CallToolParams{Name: "create-machine", Arguments: image})
	})
	eventually(t, "the user is asked", func() bool { return c.asked.Load() == 1 })
	giveUp()
	group.Wait()
	for range 3 {
		group.Go(func() { c.call("create-machine", image) })
	}
	close(answered)
	group.Wait()
	if got := c.made(); got != [2]int{0, 3} || c.asked.Load() != 1 {
		t.Errorf("machines %v, %d questions", got, c.asked.Load())
	}
}

// The end of the session ends the wait for an answer.
func TestSessionEndEndsQuestion(t *testing.T) {
	c := chooses(t, "2025-11-25", func(ctx context.Context) (*mcp.ElicitResult, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = c.client.CallTool(t.Context(), &mcp.CallToolParams{Name: "create-machine", Arguments: image})
	}()
	eventually(t, "the user is asked", func() bool { return c.asked.Load() == 1 })
	begin := time.Now()
	if err := c.session.Close(context.Background()); err != nil {
		t.Error(err)
	}
	<-done
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("the end took %v", took)
	}
}

// A revision without sessions has lists that do not vary; the question is a result, and
// its answer is for that call.
func TestTargetInTheModernEra(t *testing.T) {
	word := "cloud"
	c := chooses(t, "2026-07-28", func(ctx context.Context) (*mcp.ElicitResult, error) { return accept(word)(ctx) })
	if got := c.shows(); got != "required" {
		t.Errorf("before: target is %s", got)
	}
	c.call("create-machine", image)
	word = "local"
	c.call("create-machine", image)
	if got := c.made(); got != [2]int{1, 1} || c.asked.Load() != 2 {
		t.Errorf("machines %v, %d questions", got, c.asked.Load())
	}
	word = "both"
	if text := c.refused("create-machine", image); !strings.Contains(text, "wants to use both") {
		t.Errorf("refused with %q", text)
	}
	c.call("create-machine", with(image, "target", "cloud"))
	if got := c.shows(); got != "required" || c.asked.Load() != 3 || c.changes.Load() != 0 {
		t.Errorf("after: target is %s, %d questions, %d notices", got, c.asked.Load(), c.changes.Load())
	}
}

// What is asked, as a client without help of its own sees it.
func TestQuestionAsResult(t *testing.T) {
	r := newRig(t, rigOptions{mode: "both", protocol: "2026-07-28", memory: pretend, client: &mcp.ClientOptions{
		ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			return nil, errors.New("not by itself")
		},
		MultiRoundTrip: &mcp.MultiRoundTripOptions{Disabled: true},
	}})
	res, err := r.client.CallTool(t.Context(), &mcp.CallToolParams{Name: "create-machine", Arguments: image})
	if err != nil || !res.NeedsInput() || len(res.InputRequests) != 1 {
		t.Fatalf("%+v %v", res, err)
	}
	form, _ := res.InputRequests["target"].(*mcp.ElicitParams)
	if form == nil || form.Mode != "form" || !strings.Contains(string(indented(t, form.RequestedSchema)), `"both"`) {
		t.Errorf("asked %+v", form)
	}
	res, err = r.client.CallTool(t.Context(), &mcp.CallToolParams{Name: "create-machine", Arguments: image,
		InputResponses: mcp.InputResponseMap{"target": &mcp.ElicitResult{Action: "accept", Content: map[string]any{"target": "cloud"}}}})
	if err != nil || res.IsError || len(r.cloud.Machines()) != 1 {
		t.Errorf("%s %v", words(res), err)
	}
}
