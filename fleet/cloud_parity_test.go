package fleet

import (
	"os"
	"reflect"
	"slices"
	"testing"
)

// The routes of the published document are all known, and what we call beside it is
// what we know that it leaves out.
func TestCloudParity(t *testing.T) {
	doc, err := os.ReadFile("testdata/cloud-paths.json")
	if err != nil {
		t.Fatal(err)
	}
	p, err := CheckCloudParity(doc)
	if err != nil || len(p.Missing) > 0 || len(p.Unknown) > 0 {
		t.Errorf("missing %v, unknown %v, %v", p.Missing, p.Unknown, err)
	}
	var silent []string
	for _, r := range p.Undocumented {
		silent = append(silent, r.String())
	}
	m := "/v1/machines/{}"
	if want := []string{"POST " + m + "/branches", "GET " + m + "/files/{}", "PUT " + m + "/files/{}", "POST " + m + "/fork",
		"POST " + m + "/pause", "POST " + m + "/resume", "GET " + m + "/usage"}; !slices.Equal(silent, want) {
		t.Errorf("undocumented %q", silent)
	}
	if len(p.Used) != 11 || len(p.Used)+len(p.Skipped) != 60 {
		t.Errorf("%d used, %d skipped of 60", len(p.Used), len(p.Skipped))
	}
	for _, r := range p.Skipped {
		if r.Why == "" {
			t.Errorf("%s is skipped without a reason", r)
		}
	}
	// A route that is documented some day is simply used, and one that goes is missing.
	p, err = CheckCloudParity([]byte(`{"paths":{"/v1/machines/{id}/fork":{"post":{}},"/v1/machines/{id}/warp":{"post":{}}}}`))
	if err != nil || len(p.Used) != 1 || len(p.Unknown) != 1 || len(p.Missing) != 11 || len(p.Undocumented) != 6 {
		t.Errorf("%+v, %v", p, err)
	}
}

// Every row of the table is used by a method that exists, or says why not; and no
// route stands in it twice.
func TestCloudParityTable(t *testing.T) {
	seen := make(map[string]bool)
	client := reflect.TypeFor[*Cloud]()
	for _, k := range cloudRoutes {
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
