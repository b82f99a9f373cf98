package tools_test

import (
	"encoding/json"
	"maps"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"smol-mcp/tools"
)

// Another principal's machine, kept or not, is not to be told from one that does not exist,
// by no tool and resource, whatever else is wrong with a call.
func TestHiddenIsMissing(t *testing.T) {
	for what, o := range map[string]rigOptions{"in memory": {}, "smolvm": {smolvm: true}, "cloud": {mode: "cloud", wire: true}} {
		t.Run(what, func(t *testing.T) {
			r := newRig(t, o)
			a, b := r.as(principal("token:a")), r.as(principal("token:b"))
			ids := map[string]string{}
			for _, name := range []string{"kept-a", "mcp-ha"} {
				made := a.call("create-machine", map[string]any{"image": "alpine:3.20", "name": name, "branchable": true, "start": what == "in memory", "network": "open"})
				ids[name] = made["machine"].(map[string]any)["id"].(string)
			}
			target := b.session.Target()
			b.alike(target, "kept-a", "kept-m")
			b.alike(target, "mcp-ha", "mcp-hm")
			b.call("create-machine", map[string]any{"image": "alpine:3.20", "name": "kept-x", "start": false, "network": "open"})
			b.alike(target, "kept-a", "kept-m")
			b.alike(target, "mcp-ha", "mcp-hm")
			for name, id := range ids {
				if id != name {
					b.alike(target, id, "mach-"+strings.Repeat("0", 32))
					if out := a.call("get-machine", map[string]any{"name": id}); out["name"] != name {
						t.Errorf("by its id its owner finds %v", out)
					}
				}
				if out := a.call("get-machine", map[string]any{"name": name}); out["owner"] == "another session" || out["expiresAt"] != nil && target == "local" {
					t.Errorf("after all that its owner finds %v", out)
				}
			}
			if out := a.call("delete-machine", map[string]any{"name": "mcp-ha"}); out["alreadyGone"] != false {
				t.Errorf("its owner deletes: %v", out)
			}
		})
	}
}

// alike holds that the rig's session hears the same of two names.
func (r *rig) alike(target, hidden, missing string) {
	r.t.Helper()
	odd := map[string][]map[string]any{
		"run-command":    {{"timeoutSecs": 80000}, {"background": true}, {"workdir": "no/path"}, {"env": map[string]any{"A=B": "x"}}, {"stdin": "x"}},
		"branch-machine": {{"childName": hidden}, {"childName": missing}, {"childNames": []string{"twice", "twice"}}, {"childName": "Upper"}},
		"read-file":      {{"path": "relative"}, {"offset": 5}},
		"write-file":     {{"encoding": "base64", "content": "?"}, {"append": true}},
		"read-command":   {{"waitSecs": 1}, {"commandId": "?"}},
		"stop-command":   {{"signal": "KILL"}},
		"stop-machine":   {{"keepMemory": true}},
		"start-machine":  {{"wait": false}},
		"pull-image":     {{"image": "./file.tar"}},
		"machine-logs":   {{"cursor": "x.y"}},
	}
	others := reaches(missing)
	for tool, arguments := range reaches(hidden) {
		for _, more := range append(odd[tool], nil) {
			one, other := maps.Clone(arguments), maps.Clone(others[tool])
			maps.Copy(one, more)
			maps.Copy(other, more)
			r.same(tool, hidden, missing, words(r.try(tool, one)), words(r.try(tool, other)))
		}
	}
	for _, rest := range []string{"file/etc/passwd", "logs", "command/abcdefghijkl/stdout"} {
		var said [2]string
		for i, name := range []string{hidden, missing} {
			_, err := r.client.ReadResource(r.t.Context(), &mcp.ReadResourceParams{URI: "smol://machine/" + target + "/" + name + "/" + rest})
			if err == nil {
				r.t.Fatalf("%s of %s is read", rest, name)
			}
			said[i] = err.Error()
		}
		r.same(rest, hidden, missing, said[0], said[1])
	}
}

func (r *rig) same(what, hidden, missing, one, other string) {
	r.t.Helper()
	for _, name := range []string{hidden, missing} { // a name of a child that the call gives stands in both
		one, other = strings.ReplaceAll(one, name, "NAME"), strings.ReplaceAll(other, name, "NAME")
	}
	if one != other {
		r.t.Errorf("%s\n of a hidden one: %s\nof a missing one: %s", what, one, other)
	}
}

// A refused deletion of another principal's machine leaves its record and its owner as they are.
func TestHiddenRecordIsLeft(t *testing.T) {
	r := newRig(t, rigOptions{})
	a, b := r.as(principal("token:a")), r.as(func(o *tools.Options) { o.Principal = "token:b" })
	name := a.machine(nil)
	recs := func() string {
		all, err := r.store.Records(t.Context())
		if err != nil || len(all) != 1 {
			t.Fatal(all, err)
		}
		text, err := json.Marshal(all)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	before := recs()
	b.call("delete-machine", map[string]any{"name": name})
	b.refused("branch-machine", map[string]any{"name": name})
	if now := recs(); now != before {
		t.Errorf("the records were\n%s\nand are\n%s", before, now)
	}
	if out := a.run(name, "echo there"); out["stdout"] != "there\n" {
		t.Error(out)
	}
}
