//go:build unix

package engine_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"smol-mcp/fleet/engine"
	"smol-mcp/fleet/engine/image"
)

// The images are listed with the machines that are made of them, and those stay when
// all others are removed.
func TestImagesCommand(t *testing.T) {
	if err := image.CheckBuiltin(); err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	o := engine.Options{Data: filepath.Join(dir, "data"), Cache: filepath.Join(dir, "cache")}
	store, err := image.Open(filepath.Join(o.Cache, "images"))
	must(t, err)
	img, err := store.Ensure(t.Context(), image.Builtin)
	must(t, err)
	vm := filepath.Join(o.Data, "machines", "vm")
	must(t, os.MkdirAll(vm, 0o700))
	must(t, os.WriteFile(filepath.Join(vm, "machine.json"), []byte(`{"name":"vm","digest":"`+img.Digest+`"}`), 0o600))
	list := func() (text string, rows []struct {
		Digest               string
		References, Machines []string
		Bytes                int64
	}) {
		t.Helper()
		var plain, asJSON bytes.Buffer
		must(t, engine.ListImages(o, false, &plain))
		must(t, engine.ListImages(o, true, &asJSON))
		must(t, json.Unmarshal(asJSON.Bytes(), &rows))
		return plain.String(), rows
	}
	text, rows := list()
	if len(rows) != 1 || rows[0].Digest != img.Digest || rows[0].Bytes != img.Size || strings.Join(rows[0].Machines, " ") != "vm" || !strings.Contains(text, "(vm)") {
		t.Errorf("%+v\n%s", rows, text)
	}
	var said bytes.Buffer
	must(t, engine.PruneImages(o, true, &said))
	if _, rows := list(); len(rows) != 1 || said.Len() > 0 {
		t.Errorf("in use, and %q: %+v", said.String(), rows)
	}
	must(t, os.RemoveAll(vm))
	must(t, engine.PruneImages(o, false, &said)) // within the bound
	if text, rows := list(); len(rows) != 1 || !strings.Contains(text, "no machine") {
		t.Errorf("within the bound, and %q: %+v", text, rows)
	}
	must(t, engine.PruneImages(o, true, &said))
	if _, rows := list(); len(rows) != 0 || !strings.Contains(said.String(), "removed "+img.Digest[:19]) {
		t.Errorf("%q: %+v", said.String(), rows)
	}
}
