package fleet

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"
)

// Whatever a part of a machine is, the rest of it is read.
func TestCloudMachineLenient(t *testing.T) {
	full := `{"id":"mach-1","name":"vm","state":"started","source":{"type":"image","reference":"alpine:3.20"},"resources":{"cpus":2,"memoryMb":512},
		"network":{"mode":"allowCidrs","cidrs":["192.0.2.0/24"],"hosts":[]},"env":{"SMOL_MCP_OWNER":"me"},"createdAt":"2026-01-02T03:04:05.678Z","ttlSeconds":60,
		"ports":[{"port":80,"hostPort":31000}],"url":"https://x","ready":true,"forkable":true}`
	var m cloudMachine
	if err := json.Unmarshal([]byte(full), &m); err != nil {
		t.Fatal(err)
	}
	begin := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	want := Machine{ID: "mach-1", Name: "vm", State: Running, Word: "started", CPUs: 2, MemoryMB: 512, Network: "blocked", Image: "alpine:3.20",
		CreatedAt: begin, ExpiresAt: begin.Add(time.Minute), URL: "https://x", Ports: []Port{{Guest: 80}}, Owner: "me"}
	if got := m.machine(); !reflect.DeepEqual(got, want) || !*m.branchable {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	var part map[string]any
	if err := json.Unmarshal([]byte(full), &part); err != nil {
		t.Fatal(err)
	}
	for key := range part {
		for _, bad := range []any{nil, 7.5, -1, "text", true, []any{1, nil, "x"}, map[string]any{"cpus": "x", "mode": 1, "reference": nil}} {
			broken := map[string]any{}
			for k, v := range part {
				broken[k] = v
			}
			broken[key] = bad
			data, err := json.Marshal([]any{broken})
			if err != nil {
				t.Fatal(err)
			}
			rows, skipped, err := readRows(data)
			if text, isText := bad.(string); key == "id" && (!isText || text == "") {
				if err != nil || skipped != 0 || len(rows) != 1 || rows[0].id != "" || rows[0].name != "vm" {
					t.Errorf("id %v: %v, %d skipped, %v", bad, rows, skipped, err)
				}
				continue
			}
			if err != nil || len(rows) != 1 {
				t.Errorf("%s %v: %v, %v", key, bad, rows, err)
				continue
			}
			if got := rows[0].machine(); key != "name" && got.Name != "vm" || key != "state" && got.State != Running || key != "resources" && got.CPUs != 2 {
				t.Errorf("%s %v spoils %+v", key, bad, got)
			}
		}
	}
}

func TestCloudLists(t *testing.T) {
	for text, want := range map[string]struct {
		rows, skipped int
		ok            bool
	}{
		`[]`:              {0, 0, true},
		`{"machines":[]}`: {0, 0, true},
		`{"machines":[{"id":"a"},{"id":"b","state":"deleted"},null,[],"x"]}`: {1, 3, true},
		` [{"id":"a"}]`:           {1, 0, true},
		`{}`:                      {0, 0, false},
		`{"machines":null}`:       {0, 0, false},
		`"text"`:                  {0, 0, false},
		`{"error":"not for you"}`: {0, 0, false},
	} {
		rows, skipped, err := readRows([]byte(text))
		if len(rows) != want.rows || skipped != want.skipped || (err == nil) != want.ok {
			t.Errorf("%s: %d rows, %d skipped, %v", text, len(rows), skipped, err)
		}
	}
}

func TestCloudURLs(t *testing.T) {
	for address, ok := range map[string]bool{
		"https://api.smolmachines.com": true, "https://host:8443/base": true, "http://127.0.0.1:1": true, "http://localhost": true, "http://[::1]:9": true,
		"http://api.smolmachines.com": false, "http://127.0.0.1.example.com": false, "http://localhost.example.com": false, "http://10.0.0.1": false,
		"": false, "api.smolmachines.com": false, "ftp://x": false, "https://u:p@x": false, "https://x?y": false, "https://x?": false, "https://x#y": false, "unix:///x": false,
	} {
		if err := CheckCloudURL(address); (err == nil) != ok {
			t.Errorf("%q: %v", address, err)
		}
	}
	for address, want := range map[string]string{"https://API.Example.com:443/": "https://api.example.com", "http://localhost:80": "http://localhost", "https://x:8443/a/": "https://x:8443/a"} {
		if got := plainURL(address); got != want {
			t.Errorf("%q became %q, want %q", address, got, want)
		}
	}
}

func TestCloudCosts(t *testing.T) {
	for bill, want := range map[string]int64{
		`{"cost":{"baseMicros":5,"totalMicros":42}}`: 42, `{"id":"x","usage":{"cost":{"totalMicros":7}}}`: 7, ``: 0, `{}`: 0, `null`: 0, `{"totalMicros":null}`: 0, `{"totalMicros":1.5}`: 0, `{"a":"totalMicros"`: 0,
	} {
		if got, _ := costIn([]byte(bill)); got != want {
			t.Errorf("%s: %d, want %d", bill, got, want)
		}
	}
}
