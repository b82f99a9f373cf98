package fleet

import (
	"os"
	"reflect"
	"strings"
	"testing"
)

// The routes of a published document are all known, and all we call are there.
func TestParity(t *testing.T) {
	doc, err := os.ReadFile("testdata/smolvm-paths.json")
	if err != nil {
		t.Fatal(err)
	}
	p, err := CheckParity(doc)
	if err != nil || len(p.Missing) > 0 || len(p.Unknown) > 0 {
		t.Errorf("missing %v, unknown %v, %v", p.Missing, p.Unknown, err)
	}
	if len(p.Used) != 13 || len(p.Skipped) != 6 {
		t.Errorf("%d used %v\n%d skipped %v", len(p.Used), p.Used, len(p.Skipped), p.Skipped)
	}
	for _, r := range p.Skipped {
		if r.Why == "" {
			t.Errorf("%s is skipped without a reason", r)
		}
	}
}

func TestParityFinds(t *testing.T) {
	p, err := CheckParity([]byte(`{"info":{"version":"99"},"paths":{
		"/health":{"get":{},"parameters":[]},"/api/v1/machines":{"get":{},"patch":{}},
		"/api/v1/machines/{id}/warp":{"post":{}},"/api/v1/pools/{n}/size":{"put":{}},"/api/v1/machines/{x}/pause":{"post":{}}}}`))
	if err != nil {
		t.Fatal(err)
	}
	join := func(list []Route) string {
		var out []string
		for _, r := range list {
			out = append(out, r.String())
		}
		return strings.Join(out, ", ")
	}
	if got := join(p.Unknown); got != "PATCH /api/v1/machines, POST /api/v1/machines/{}/warp" {
		t.Errorf("unknown: %s", got)
	}
	if got := join(p.Skipped); got != "PUT /api/v1/pools/{}/size" {
		t.Errorf("skipped: %s", got)
	}
	if got := join(p.Used); got != "GET /api/v1/machines, POST /api/v1/machines/{}/pause, GET /health" {
		t.Errorf("used: %s", got)
	}
	if got := join(p.Missing); !strings.Contains(got, "POST /api/v1/machines/{}/exec") || strings.Contains(got, "branches") {
		t.Errorf("missing: %s", got)
	}
	for _, bad := range []string{"", "{}", "[]", `{"paths":{}}`} {
		if _, err := CheckParity([]byte(bad)); err == nil {
			t.Errorf("%q passed", bad)
		}
	}
}

// Every row of the table is used by a method that exists, or says why not; and
// no route stands in it twice.
func TestParityTable(t *testing.T) {
	seen := make(map[string]bool)
	client := reflect.TypeFor[*Smolvm]()
	for _, k := range knownRoutes {
		id := k.method + " " + k.path
		if seen[id] {
			t.Errorf("%s stands twice", id)
		}
		seen[id] = true
		_, exists := client.MethodByName(k.by)
		if k.by != "" && !exists || (k.by == "") == (k.why == "") {
			t.Errorf("%s is used by %q and skipped because %q", id, k.by, k.why)
		}
	}
}
