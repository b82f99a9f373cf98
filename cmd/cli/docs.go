package cli

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"smol-mcp/tools"
)

const docsHelp = `Rewrites the tables of the README between their marks, from the table of
settings and from the tools as a client is told of them.
`

// runDocs rewrites the generated tables of a README.
func runDocs(c *call) error {
	path := "README.md"
	if len(c.args) > 0 {
		path = c.args[0]
	}
	old, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	fresh, err := regenerate(old)
	if err != nil || bytes.Equal(old, fresh) {
		return err
	}
	return os.WriteFile(path, fresh, 0o644)
}

// regenerate returns a README with its tables as they should be.
func regenerate(readme []byte) ([]byte, error) {
	toolList, err := served()
	if err != nil {
		return nil, err
	}
	for name, table := range map[string]string{"tools": toolTable(toolList), "settings": settingTable()} {
		begin, end := fmt.Sprintf("<!-- %s: written by smol-mcp docs -->\n", name), fmt.Sprintf("<!-- end of %s -->\n", name)
		before, rest, ok := bytes.Cut(readme, []byte(begin))
		_, after, ok2 := bytes.Cut(rest, []byte(end))
		if !ok || !ok2 {
			return nil, fmt.Errorf("no marks for the table of %s", name)
		}
		readme = fmt.Appendf(nil, "%s%s%s%s%s", before, begin, table, end, after)
	}
	return readme, nil
}

// served asks a server for its tools, as a client does, with the settings at
// their defaults.
func served() ([]*mcp.Tool, error) {
	r, err := resolve(func(name string) (string, bool) { return "", name == "SMOL_MCP_CONFIG" }, "")
	if err != nil {
		return nil, err
	}
	ctx := context.Background()
	here, there := mcp.NewInMemoryTransports()
	session := tools.New(wire(&r.Config, "stdio", slog.New(slog.DiscardHandler)).options, "stdio")
	defer session.Close(ctx)
	if _, err := session.Server().Connect(ctx, there, nil); err != nil {
		return nil, err
	}
	client, err := mcp.NewClient(&mcp.Implementation{Name: "docs", Version: version}, nil).Connect(ctx, here, nil)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	list, err := client.ListTools(ctx, nil)
	if err != nil {
		return nil, err
	}
	return list.Tools, nil
}

func toolTable(list []*mcp.Tool) string {
	var b strings.Builder
	b.WriteString("| tool | what it does | effect |\n|---|---|---|\n")
	for _, t := range list {
		first, _, _ := strings.Cut(t.Description, ". ")
		first, _, _ = strings.Cut(first, "\n")
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", t.Name, strings.TrimSuffix(first, "."), effect(t.Annotations))
	}
	return b.String()
}

// effect says in a word what the hints of a tool say.
func effect(a *mcp.ToolAnnotations) string {
	switch {
	case a == nil:
		return "unknown"
	case a.ReadOnlyHint:
		return "reads"
	case a.DestructiveHint == nil || *a.DestructiveHint:
		return "may destroy"
	}
	return "changes"
}

func settingTable() string {
	var c Config
	var b strings.Builder
	b.WriteString("| key in the file | variable | default | meaning |\n|---|---|---|---|\n")
	for _, s := range settings(&c) {
		s.set(s.kind.initial())
		def := s.print()
		if def == "" {
			def = "empty"
		} else {
			def = "`" + def + "`"
		}
		meaning := s.help
		if bounds := s.kind.bounds(); bounds != "" {
			meaning += " (" + bounds + ")"
		}
		fmt.Fprintf(&b, "| `%s` | `%s` | %s | %s |\n", s.key, s.env, def, meaning)
	}
	return b.String()
}
