package tools

import (
	"encoding/json"
	"sync"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// A Catalog is the tools in the words of one set of limits. Sessions of a process share
// one: all tools take some 400 KB and milliseconds.
type Catalog struct {
	tools func() []tool // read-only
}

// NewCatalog returns the catalog of some limits. It is made at its first use.
func NewCatalog(l Limits) *Catalog {
	return &Catalog{tools: sync.OnceValue(func() []tool {
		all := table(l)
		for i := range all {
			in := all[i].in
			all[i].listed = written(all[i].definition())
			all[i].resolved = sync.OnceValues(func() (*jsonschema.Resolved, error) { return in.Resolve(nil) })
		}
		return all
	})}
}

// named is the tool of that name.
func (c *Catalog) named(name string) (t tool, known bool) {
	for _, t := range c.tools() {
		if t.name == name {
			return t, true
		}
	}
	return tool{}, false
}

// written is a definition with its schemas in JSON: they are written once, and not for each
// client anew.
func written(t *mcp.Tool) *mcp.Tool {
	for _, schema := range []*any{&t.InputSchema, &t.OutputSchema} {
		if text, err := json.Marshal(*schema); err == nil {
			*schema = json.RawMessage(text)
		}
	}
	return t
}
