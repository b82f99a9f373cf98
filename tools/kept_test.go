package tools_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"smol-mcp/store"
	"smol-mcp/tools"
)

// sees are the machines that list-machines shows.
func (r *rig) sees() []string {
	r.t.Helper()
	var names []string
	list := r.call("list-machines", nil)
	for _, m := range list["machines"].([]any) {
		names = append(names, m.(map[string]any)["name"].(string))
	}
	if len(list["problems"].([]any)) != 0 {
		r.t.Errorf("problems %v", list["problems"])
	}
	return names
}

// reaches are all ways to a machine by its name.
func reaches(name string) map[string]map[string]any {
	return map[string]map[string]any{
		"get-machine":    {"name": name},
		"start-machine":  {"name": name},
		"stop-machine":   {"name": name},
		"delete-machine": {"name": name},
		"branch-machine": {"name": name},
		"machine-logs":   {"name": name},
		"run-command":    {"name": name, "command": "true"},
		"read-command":   {"name": name, "commandId": "abcdefghijkl"},
		"stop-command":   {"name": name, "commandId": "abcdefghijkl"},
		"read-file":      {"name": name, "path": "/etc/passwd"},
		"write-file":     {"name": name, "path": "/tmp/x", "content": "x"},
		"pull-image":     {"name": name, "image": "alpine:3.20"},
	}
}

// What a principal made to be kept is there for it, also in later sessions and after the
// records are lost, for the user of this computer, and for no other principal by any way.
func TestKept(t *testing.T) {
	r := newRig(t, rigOptions{})
	a := r.as(principal("token:a"))
	a.machine(map[string]any{"name": "kept-a", "branchable": true})
	a.call("branch-machine", map[string]any{"name": "kept-a", "childName": "branch-a"})
	r.machine(map[string]any{"name": "of-user"})
	r.exists("of-others")
	if err := a.session.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	// Another process, after a boot.
	if err := r.session.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := r.store.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(r.dir, "run")); err != nil {
		t.Fatal(err)
	}
	r.options = r.process(rigOptions{dir: r.dir})
	r.session, r.client = r.connect(rigOptions{})
	a, b := r.as(principal("token:a")), r.as(principal("token:b"))

	for who, sees := range map[*rig][]string{
		a: {"branch-a", "kept-a", "of-others", "of-user"}, b: {"of-others", "of-user"}, r: {"branch-a", "kept-a", "of-others", "of-user"},
	} {
		if got := who.sees(); !slices.Equal(got, sees) {
			t.Errorf("%q sees %v", who.options.Principal, got)
		}
	}
	for _, name := range []string{"kept-a", "branch-a"} {
		b.cannotReach(name)
	}
	for _, what := range []struct {
		tool     string
		argument map[string]any
	}{
		{"create-machine", map[string]any{"image": "alpine:3.20", "name": "kept-a"}},
		{"branch-machine", map[string]any{"name": "of-user", "childName": "branch-a"}},
	} {
		if text := b.refused(what.tool, what.argument); !strings.HasPrefix(text, "CONFLICT: ") || !strings.Contains(text, "a machine of that name exists") || strings.Contains(text, "token:a") || strings.Contains(text, "running") {
			t.Errorf("%s of a taken name: %s", what.tool, text)
		}
	}
	if out := a.run("kept-a", "echo there"); out["stdout"] != "there\n" {
		t.Errorf("after all that its owner finds %v", out)
	}
	r.call("delete-machine", map[string]any{"name": "branch-a"})
	a.call("delete-machine", map[string]any{"name": "kept-a"})
	if all, err := r.options.Store.Kept(); err != nil || len(all) != 0 {
		t.Errorf("after the deletions: %+v %v", all, err)
	}
	b.machine(map[string]any{"name": "kept-a"})
	if got := a.sees(); !slices.Equal(got, []string{"of-others", "of-user"}) {
		t.Errorf("then a sees %v", got)
	}
}

// cannotReach holds that a machine is not there for the rig's session.
func (r *rig) cannotReach(name string) {
	r.t.Helper()
	for tool, arguments := range reaches(name) {
		if tool == "delete-machine" {
			if out := r.call(tool, arguments); out["alreadyGone"] != true {
				r.t.Errorf("%s of another's machine: %v", tool, out)
			}
			continue
		}
		if text := r.refused(tool, arguments); !strings.HasPrefix(text, "NOT_FOUND: ") || strings.Contains(text, "token:a") {
			r.t.Errorf("%s of another's machine: %s", tool, text)
		}
	}
	for _, rest := range []string{"file/etc/passwd", "logs", "command/abcdefghijkl/stdout"} {
		uri := "smol://machine/local/" + name + "/" + rest
		if _, err := r.client.ReadResource(r.t.Context(), &mcp.ReadResourceParams{URI: uri}); err == nil || !strings.Contains(err.Error(), "NOT_FOUND") {
			r.t.Errorf("%s: %v", uri, err)
		}
	}
	res, err := r.client.Complete(r.t.Context(), &mcp.CompleteParams{
		Ref:      &mcp.CompleteReference{Type: "ref/resource", URI: "smol://machine/{target}/{name}/logs"},
		Argument: mcp.CompleteParamsArgument{Name: "name", Value: name[:3]},
		Context:  &mcp.CompleteContext{Arguments: map[string]string{"target": "local"}},
	})
	if err != nil || slices.Contains(res.Completion.Values, name) {
		r.t.Errorf("completion: %v %v", res, err)
	}
	if text := r.refused("get-machine", map[string]any{"name": name + "a"}); strings.Contains(text, name+",") || strings.Contains(text, name+"?") {
		r.t.Errorf("a near name tells of another's machine: %s", text)
	}
}

// What another program deleted is nobody's after a while, and until then its name can be
// used by any.
func TestKeptGone(t *testing.T) {
	r := newRig(t, rigOptions{})
	a, b := r.as(principal("token:a")), r.as(principal("token:b"))
	for _, name := range []string{"one", "two", "three"} {
		a.machine(map[string]any{"name": name})
		if _, err := r.memory.Delete(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	b.machine(map[string]any{"name": "one"})
	r.machine(map[string]any{"name": "two"})
	if got := a.sees(); !slices.Equal(got, []string{"two"}) {
		t.Errorf("a sees %v", got)
	}
	if got := b.sees(); !slices.Equal(got, []string{"one", "two"}) {
		t.Errorf("b sees %v", got)
	}
	kept := func() (names []string) {
		all, err := r.store.Kept()
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range all {
			names = append(names, k.Name+" "+k.Principal)
		}
		return names
	}
	if got := kept(); !slices.Equal(got, []string{"three token:a", "one token:b"}) {
		t.Errorf("a missing machine may still appear: %v", got)
	}
	r.ago(time.Hour)
	if b.sees(); !slices.Equal(kept(), []string{"one token:b"}) {
		t.Errorf("an hour later: %v", kept())
	}
}

// ago makes all that is kept older.
func (r *rig) ago(d time.Duration) {
	r.t.Helper()
	files, err := filepath.Glob(filepath.Join(r.dir, "state/smol-mcp/hosts/*/kept/*"))
	if err != nil || len(files) == 0 {
		r.t.Fatal(files, err)
	}
	for _, file := range files {
		var k store.Kept
		data, err := os.ReadFile(file)
		if err == nil {
			err = json.Unmarshal(data, &k)
		}
		k.Created = k.Created.Add(-d)
		if err == nil {
			data, err = json.Marshal(k)
		}
		if err == nil {
			err = os.WriteFile(file, data, 0o600)
		}
		if err != nil {
			r.t.Fatal(err)
		}
	}
}

// Whose machines are that cannot be read, is shown to no principal; the user of this
// computer goes on.
func TestKeptUnreadable(t *testing.T) {
	r := newRig(t, rigOptions{})
	a := r.as(principal("token:a"))
	a.machine(map[string]any{"name": "kept"})
	b := r.as(principal("token:b"))
	b.machine(map[string]any{"name": "mcp-own"})
	dirs, err := filepath.Glob(filepath.Join(r.dir, "state/smol-mcp/hosts/*/kept"))
	if err == nil {
		err = os.Chmod(dirs[0], 0o777)
	}
	if err != nil {
		t.Fatal(err)
	}
	for tool, arguments := range map[string]map[string]any{"list-machines": nil, "get-machine": {"name": "kept"}, "run-command": {"name": "kept", "command": "true"}} {
		for _, who := range []*rig{a, b} {
			if text := who.refused(tool, arguments); !strings.Contains(text, "it is not known whose the machine is") || !strings.Contains(text, "chmod 700") {
				t.Errorf("%s: %s", tool, text)
			}
		}
	}
	if out := b.run("mcp-own", "echo mine"); out["stdout"] != "mine\n" {
		t.Errorf("its own: %v", out)
	}
	if got := r.sees(); !slices.Equal(got, []string{"kept", "mcp-own"}) {
		t.Errorf("the user sees %v", got)
	}
}

// Kept machines count against the limit of a token, as long as they are there.
func TestKeptMachinesCount(t *testing.T) {
	r := newRig(t, rigOptions{})
	two := func(o *tools.Options) {
		o.Principal, o.Permit = "token:two", func() tools.Permit { return tools.Permit{Machines: 2} }
	}
	first, second := r.as(two), r.as(two)
	r.as(principal("token:a")).machine(map[string]any{"name": "of-a"})
	first.machine(map[string]any{"name": "kept"})
	first.machine(nil)
	for _, name := range []string{"", "kept-2"} {
		if text := second.refused("create-machine", map[string]any{"image": "alpine:3.20", "name": name}); !strings.HasPrefix(text, "QUOTA: ") || !strings.Contains(text, "kept") || strings.Contains(text, "of-a") {
			t.Errorf("a third machine: %s", text)
		}
	}
	if all, err := r.store.Kept(); err != nil || len(all) != 2 {
		t.Errorf("what was refused is left: %+v %v", all, err)
	}
	if _, err := r.memory.Delete(t.Context(), "kept"); err != nil { // by another program
		t.Fatal(err)
	}
	second.machine(map[string]any{"name": "kept-2"})
	second.refused("create-machine", map[string]any{"image": "alpine:3.20"})
}

// In the cloud, which refuses a name that is taken by itself, a kept machine is its maker's
// from the refusal of another's create on as before it, and also when the fleet has lost sight of it.
func TestKeptInCloud(t *testing.T) {
	r := newRig(t, rigOptions{mode: "both"})
	a, b := r.as(principal("token:a")), r.as(principal("token:b"))
	there := func(arguments map[string]any) map[string]any {
		all := map[string]any{"target": "cloud"}
		maps.Copy(all, arguments)
		return all
	}
	a.machine(there(map[string]any{"name": "kept"}))
	b.machine(map[string]any{"name": "kept", "target": "local"}) // of this computer is another
	for tool, arguments := range reaches("kept") {
		switch tool {
		case "pull-image":
			continue // the cloud cannot
		case "delete-machine":
			if out := b.call(tool, there(arguments)); out["alreadyGone"] != true {
				t.Errorf("%s of another's machine: %v", tool, out)
			}
			continue
		}
		if text := b.refused(tool, there(arguments)); !strings.HasPrefix(text, "NOT_FOUND: ") {
			t.Errorf("%s of another's machine: %s", tool, text)
		}
	}
	if text := b.refused("create-machine", there(map[string]any{"image": "alpine:3.20", "name": "kept"})); !strings.HasPrefix(text, "CONFLICT: ") || strings.Contains(text, "running") {
		t.Errorf("a taken name: %s", text)
	}
	all, err := r.store.Kept()
	if err != nil || len(all) != 2 || all[0].Principal != "token:a" || all[0].Account != "t1" || all[1].Target != "local" {
		t.Errorf("kept: %+v %v", all, err)
	}
	r.ago(time.Hour)
	r.tenant.Store(tenant{account: "t2"}) // of which nothing is known
	b.call("list-machines", nil)
	r.tenant.Store(tenant{account: "t1"})
	if text := b.refused("get-machine", there(map[string]any{"name": "kept"})); !strings.HasPrefix(text, "NOT_FOUND: ") {
		t.Errorf("after another key was used: %s", text)
	}
	if a.call("delete-machine", there(map[string]any{"name": "kept"}))["alreadyGone"] != false {
		t.Error("a does not find it")
	}
	if got := b.sees(); !slices.Equal(got, []string{"kept"}) {
		t.Errorf("b sees %v", got)
	}
}

// A look at whose a machine is, which every request of a principal takes.
func BenchmarkKeptBy(b *testing.B) {
	r := newRig(b, rigOptions{})
	s := r.store.NewSessionOf("token:a", "http", "")
	for i := range 50 {
		rec, err := s.Intend(b.Context(), store.Wish{Target: "local", Name: fmt.Sprint("m", i), Kind: store.Persistent})
		if err == nil {
			err = s.Confirm(b.Context(), rec, "", time.Time{})
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		if _, found, err := r.store.KeptBy(store.Key{Target: "local", Name: "m7"}); err != nil || !found {
			b.Fatal(found, err)
		}
	}
}
