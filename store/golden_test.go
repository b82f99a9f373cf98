package store_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"smol-mcp/store"
)

var update = flag.Bool("update", false, "write the state of this version to testdata")

// goldenHost is where the kept state was written.
func goldenHost() *store.Host {
	return &store.Host{BootID: "boot", MachineID: "machine", Name: "golden", Awake: func() time.Duration { return time.Hour }}
}

// T43: what each released version has written can be read for ever. A new
// version of the schema gets a new directory; the old ones stay as they are.
func TestOldState(t *testing.T) {
	const newest = "store-v1"
	if *update {
		writeGolden(t, filepath.Join("..", "testdata", newest))
	}
	dirs, err := filepath.Glob(filepath.Join("..", "testdata", "store-v*"))
	if err != nil || len(dirs) == 0 {
		t.Fatal(dirs, err)
	}
	for _, dir := range dirs {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			t.Run("records", func(t *testing.T) { readGolden(t, dir, true) })
			t.Run("ledger", func(t *testing.T) { readGolden(t, dir, false) })
		})
	}
}

func writeGolden(t *testing.T, dir string) {
	p := newPlaces(t)
	st := p.open(t, onHost(goldenHost()))
	s := st.NewSession("stdio", "golden")
	ready(t, s, wish("mcp-ready"))
	_, err := s.Intend(t.Context(), wish("mcp-creating"))
	check(t, err)
	ready(t, s, wish("mcp-deleting"))
	_, _, err = s.Tombstone(t.Context(), local("mcp-deleting"))
	check(t, err)
	check(t, st.Abort())
	check(t, os.MkdirAll(dir, 0o755))
	copyFile(t, p.db(), filepath.Join(dir, "state.db"))
	files, err := filepath.Glob(filepath.Join(p.state, "smol-mcp/hosts/*/ledger/*"))
	check(t, err)
	for _, f := range files {
		data, err := os.ReadFile(f)
		check(t, err)
		// a test has no lasting directory
		text := strings.ReplaceAll(string(data), p.run, "/run/user/1000/smol-mcp")
		check(t, os.WriteFile(filepath.Join(dir, filepath.Base(f)), []byte(text), 0o644))
	}
}

func readGolden(t *testing.T, dir string, records bool) {
	p := newPlaces(t)
	check(t, os.MkdirAll(p.run, 0o700))
	h := goldenHost()
	if records {
		copyFile(t, filepath.Join(dir, "state.db"), p.db())
	} else {
		h.BootID = "next boot"
		st := p.open(t, onHost(goldenHost()))
		ready(t, st.NewSession("stdio", "x"), wish("mcp-x")) // makes the ledger
		check(t, st.Abort())
		check(t, os.RemoveAll(p.run))
		ledger, err := filepath.Glob(filepath.Join(p.state, "smol-mcp/hosts/*/ledger"))
		if err != nil || len(ledger) != 1 {
			t.Fatal(ledger, err)
		}
		files, err := filepath.Glob(filepath.Join(dir, "*.json"))
		check(t, err)
		for _, f := range files {
			copyFile(t, f, filepath.Join(ledger[0], filepath.Base(f)))
		}
	}
	st := p.open(t, onHost(h))
	recs, err := st.Records(t.Context())
	check(t, err)
	phases := make(map[string]store.Phase)
	for _, r := range recs {
		phases[r.Name] = r.Phase
		if records && (r.Image != "alpine" || r.Kind != store.Ephemeral || r.UID == "") {
			t.Errorf("%+v", r)
		}
	}
	want := map[string]store.Phase{"mcp-ready": store.Ready, "mcp-creating": store.Creating, "mcp-deleting": store.Deleting}
	if !records { // the ledger does not say so much
		want = map[string]store.Phase{"mcp-ready": store.Ready, "mcp-creating": store.Ready, "mcp-deleting": store.Ready, "mcp-x": store.Ready}
	}
	for name, phase := range want {
		if phases[name] != phase && (records || phases[name] == "") {
			t.Errorf("%s: %q, want %q", name, phases[name], phase)
		}
	}
	if len(phases) != len(want) {
		t.Errorf("records %v", phases)
	}
	check(t, st.NewSession("stdio", "new").Abandon(t.Context(), store.Record{Target: "local", Name: "none"})) // it can be written
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	check(t, err)
	check(t, os.WriteFile(to, data, 0o600))
}
