package cli

import (
	"bytes"
	"os"
	"strings"
	"testing"
)

// Every setting and every tool is in README as it is.
func TestReadme(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	fresh, err := regenerate(readme)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(readme, fresh) {
		t.Error("the tables of README.md are stale; run: go run ./cmd/smol-mcp docs")
	}
	list, err := served()
	if err != nil {
		t.Fatal(err)
	}
	for _, tool := range list {
		if !strings.Contains(string(readme), "| `"+tool.Name+"` |") {
			t.Errorf("tool %s is not in README.md", tool.Name)
		}
	}
	for _, s := range settings(new(Config)) {
		if !strings.Contains(string(readme), "| `"+s.key+"` | `"+s.env+"` |") {
			t.Errorf("setting %s is not in README.md", s.key)
		}
	}
}
