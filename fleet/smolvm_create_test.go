package fleet

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

// The body of a create names what the wish names and nothing else: an absent
// list and an empty one are different wishes (C11), and newer releases refuse
// fields that they do not know.
func TestCreateBody(t *testing.T) {
	for _, c := range []struct {
		what string
		spec Spec
		want string
	}{
		{"least", Spec{Name: "vm"}, `{"name":"vm","network":false}`},
		{"blocked", Spec{Name: "vm", Network: Network{AllowHosts: []string{}, AllowCIDRs: []string{}}}, `{"name":"vm","network":false}`},
		{"open", Spec{Name: "vm", Network: Network{Open: true}}, `{"name":"vm","network":true}`},
		{"hosts", Spec{Name: "vm", Network: Network{AllowHosts: []string{"a.example"}}}, `{"name":"vm","network":false,"allowedHosts":["a.example"]}`},
		{"list beats open", Spec{Name: "vm", Network: Network{Open: true, AllowCIDRs: []string{"192.0.2.0/24"}}}, `{"name":"vm","network":false,"allowedCidrs":["192.0.2.0/24"]}`},
		{"all", Spec{
			Name: "vm", Image: "alpine", CPUs: 2, MemoryMB: 512, StorageGB: 3, OverlayGB: 4,
			Ports: []Port{{Guest: 80}, {Guest: 443, Host: 8443}}, Mounts: []Mount{{"/src", "/dst", true}, {"/a", "/b", false}},
			Cmd: []string{"sleep", "9"}, Env: map[string]string{"B": "2", "A": ""},
		}, `{"name":"vm","image":"alpine","cpus":2,"memoryMb":512,"storageGb":3,"overlayGb":4,"network":false,` +
			`"ports":[{"host":80,"guest":80},{"host":8443,"guest":443}],` +
			`"mounts":[{"source":"/src","target":"/dst","readonly":true},{"source":"/a","target":"/b","readonly":false}],` +
			`"cmd":["sleep","9"],"env":[{"name":"A","value":""},{"name":"B","value":"2"}]}`},
	} {
		t.Run(c.what, func(t *testing.T) {
			s := serve(t, says(400, "text/plain", "as you say"))
			_, _ = s.Create(t.Context(), c.spec)
			if got := s.requests(); len(got) != 1 || got[0] != "POST /api/v1/machines "+c.want {
				t.Errorf("sent %s\nwant %s", got, c.want)
			}
		})
	}
}

func TestCreateRefuses(t *testing.T) {
	s := serve(t, says(200, "application/json", vm))
	for _, spec := range []Spec{
		{Name: "vm", Ports: []Port{{Guest: 0}}},
		{Name: "vm", Ports: []Port{{Guest: 65536}}},
		{Name: "vm", Ports: []Port{{Guest: 1, Host: -1}}},
		{Name: "vm", Env: map[string]string{"A B": "x"}},
		{Name: "vm", Env: map[string]string{"A": "x\x00"}},
		{Name: "UP"},
	} {
		_, err := s.Create(t.Context(), spec)
		wantErr(t, err, CodeInvalid, false)
	}
	_, err := s.Create(t.Context(), Spec{Name: "vm", Env: map[string]string{"A": "secret\x00"}})
	if strings.Contains(err.Error(), "secret") {
		t.Errorf("the value of a variable is in %v", err)
	}
	if got := s.requests(); len(got) != 0 {
		t.Errorf("sent %q", got)
	}
}

// A13, A19: what the server did not take over is not claimed. The machine exists,
// so the caller has to look for it and delete it.
func TestCreateDropped(t *testing.T) {
	const plain = `"name":"vm","state":"created","cpus":1,"memoryMb":512,"createdAt":1760000000`
	lists := Network{AllowHosts: []string{"A.example."}, AllowCIDRs: []string{"192.0.2.1", "10.9.8.7/8"}}
	for _, c := range []struct {
		what    string
		spec    Spec
		answer  string
		dropped string // empty: fine
	}{
		{"blocked", Spec{}, `"network":false`, ""},
		{"blocked by empty lists", Spec{}, `"network":true,"allowedCidrs":[]`, ""},
		{"opened", Spec{}, `"network":true`, "network:false (it says open)"},
		{"unasked list", Spec{}, `"network":true,"allowedHosts":["x.example"]`, "network:false"},
		{"open", Spec{Network: Network{Open: true}}, `"network":true`, ""},
		{"not opened", Spec{Network: Network{Open: true}}, `"network":false`, "network:true"},
		{"lists", Spec{Network: lists}, `"network":true,"allowedHosts":["a.example"],"allowedCidrs":["192.0.2.1/32","10.0.0.0/8"]`, ""},
		{"lists dropped", Spec{Network: lists}, `"network":true`, "allowedHosts A.example.; allowedCidrs 192.0.2.1,10.9.8.7/8"},
		{"one host dropped", Spec{Network: lists}, `"network":true,"allowedHosts":[],"allowedCidrs":["192.0.2.1","10.0.0.0/8"]`, "allowedHosts A.example."},
		{"port", Spec{Ports: []Port{{80, 8080}}}, `"ports":[{"host":8080,"guest":80}]`, ""},
		{"port dropped", Spec{Ports: []Port{{80, 8080}}}, `"ports":[{"host":8081,"guest":80}]`, "port 8080:80"},
		{"mount", Spec{Mounts: []Mount{{"/s", "/t", true}}}, `"mounts":[{"tag":"smolvm0","source":"/private/s","target":"/t","readonly":true}]`, ""},
		{"mount writable", Spec{Mounts: []Mount{{"/s", "/t", true}}}, `"mounts":[{"source":"/s","target":"/t","readonly":false}]`, "mount /t (readonly true)"},
		{"mount dropped", Spec{Mounts: []Mount{{"/s", "/t", false}}}, `"mounts":[]`, "mount /t"},
	} {
		t.Run(c.what, func(t *testing.T) {
			s := serve(t, says(200, "application/json", "{"+plain+","+c.answer+"}"))
			c.spec.Name = "vm"
			m, err := s.Create(t.Context(), c.spec)
			if c.dropped == "" {
				if err != nil || m.Name != "vm" {
					t.Errorf("%+v, %v", m, err)
				}
				return
			}
			wantErr(t, err, CodeUnsupported, true, c.dropped)
		})
	}
	s := serve(t, says(200, "application/json", strings.Replace(vm, `"vm"`, `"vm-1"`, 1)))
	_, err := s.Create(t.Context(), Spec{Name: "vm"})
	wantErr(t, err, CodeUnsupported, true, "vm-1")
	_, err = s.Get(t.Context(), "vm")
	wantErr(t, err, CodeInternal, false, "vm-1")
}

// What a machine's answer means, whatever a release leaves out or adds.
func TestMachineInfo(t *testing.T) {
	for _, c := range []struct {
		info string
		want Machine
	}{
		{`{"name":"m"}`, Machine{Name: "m", State: Unknown, Network: "blocked"}},
		{`{"name":"m","state":"running","network":true,"pid":4}`, Machine{Name: "m", State: Running, Word: "running", Network: "open", PID: 4}},
		{`{"name":"m","state":"paused"}`, Machine{Name: "m", State: Suspended, Word: "paused", Network: "blocked"}},
		{`{"name":"m","state":"frozen"}`, Machine{Name: "m", State: Suspended, Word: "frozen", Network: "blocked"}},
		{`{"name":"m","state":"melted","new":{"a":[1]}}`, Machine{Name: "m", State: Unknown, Word: "melted", Network: "blocked"}},
		{`{"name":"m","state":"unknown"}`, Machine{Name: "m", State: Unknown, Word: "unknown", Network: "blocked"}},
		{`{"name":"m","state":"stopped","image":"alpine:3"}`, Machine{Name: "m", State: Stopped, Word: "stopped", Network: "blocked", Image: "alpine:3"}},
		{`{"name":"m","state":"stopped","image":{"a":1}}`, Machine{Name: "m", State: Stopped, Word: "stopped", Network: "blocked"}},
		{`{"name":"m","state":"stopped","image":null,"pid":null,"allowedHosts":null}`, Machine{Name: "m", State: Stopped, Word: "stopped", Network: "blocked"}},
		{`{"name":"m","state":"failed","network":true,"allowedHosts":["a"],"allowedCidrs":["b","c"]}`,
			Machine{Name: "m", State: Failed, Word: "failed", Network: "allow(a,b,c)", AllowHosts: []string{"a"}, AllowCIDRs: []string{"b", "c"}}},
	} {
		var info machineInfo
		if err := json.Unmarshal([]byte(c.info), &info); err != nil {
			t.Errorf("%s: %v", c.info, err)
			continue
		}
		c.want.ID = c.want.Name
		got, _ := json.Marshal(info.machine())
		if want, _ := json.Marshal(c.want); string(got) != string(want) {
			t.Errorf("%s\n got %s\nwant %s", c.info, got, want)
		}
	}
}

func TestListHidesHelpers(t *testing.T) {
	s := serve(t, says(200, "application/json", `{"machines":[{"name":"z"},{"name":"image-seed-1"},{"name":"vm-cli","state":"running"},{"name":"a"}]}`))
	list, err := s.List(t.Context())
	if err != nil || len(list) != 3 || list[0].Name != "a" || list[1].Name != "vm-cli" || list[2].Name != "z" {
		t.Errorf("%+v, %v", list, err)
	}
	empty := serve(t, says(200, "application/json", `{}`))
	if list, err := empty.List(t.Context()); err != nil || list == nil || len(list) != 0 {
		t.Errorf("%+v, %v", list, err)
	}
}

// C4: a name can be taken although no machine has it.
func TestCreateTakenNext(t *testing.T) {
	s := serve(t, inOrder(refused(409, "machine 'vm' is being created", "CONFLICT")))
	_, err := s.Create(t.Context(), Spec{Name: "vm"})
	var e *Error
	if !errors.As(err, &e) || e.Code != CodeConflict || !strings.Contains(e.Next, "up to an hour") {
		t.Errorf("%v, next: %+v", err, e)
	}
}
