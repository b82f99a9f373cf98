package tools

import (
	"context"
	"slices"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"smol-mcp/fleet"
)

// Permit is what a principal may do. The zero value permits all.
type Permit struct {
	ReadOnly bool     // only tools that change nothing
	Tools    []string // only these; nil: all
	Machines int      // that it may have at once, those that are kept among them; 0: any number
}

func (p Permit) allows(t tool) bool {
	return (!p.ReadOnly || t.hints.readOnly) && (p.Tools == nil || slices.Contains(p.Tools, t.name))
}

// ToolNames are the names of all tools, in order.
func ToolNames() []string {
	var names []string
	for _, t := range table(Limits{}) {
		names = append(names, t.name)
	}
	slices.Sort(names)
	return names
}

// permit is what the session may do now.
func (s *Session) permit() Permit {
	if s.opts.Permit == nil {
		return Permit{}
	}
	return s.opts.Permit()
}

// forbid leaves out of lists what is not permitted, and refuses it. The session has all
// tools, since what is permitted may change.
func (s *Session) forbid(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		may := s.permit()
		if !may.ReadOnly && may.Tools == nil {
			return next(ctx, method, req)
		}
		refused := func(name string) bool {
			t, known := s.opts.Catalog.named(name)
			return known && !may.allows(t)
		}
		if p, ok := req.GetParams().(*mcp.CallToolParamsRaw); ok && p != nil && refused(p.Name) {
			return errorResult(&fleet.Error{Code: fleet.CodeUnsupported, Op: "call " + p.Name,
				Why: "this client's token does not permit it", Next: "use the tools that tools/list shows, or ask the operator of the server"}), nil
		}
		res, err := next(ctx, method, req)
		if list, ok := res.(*mcp.ListToolsResult); ok && err == nil {
			list.Tools = slices.DeleteFunc(slices.Clone(list.Tools), func(t *mcp.Tool) bool { return refused(t.Name) })
		}
		return res, err
	}
}

// cacheTime is how long clients may keep lists: the tools of a session hardly change.
const cacheTime = time.Minute

// cacheable says how long and by whom a result may be kept. What a principal sees
// is nobody else's.
func (s *Session) cacheable(_ context.Context, req mcp.Request, c *mcp.Cacheable) {
	if s.opts.Principal != "" {
		c.CacheScope = "private"
	}
	switch req.GetParams().(type) {
	case *mcp.ListToolsParams, *mcp.ListPromptsParams, *mcp.ListResourceTemplatesParams, *mcp.ListResourcesParams:
		c.TTLMs = int(cacheTime.Milliseconds())
	}
}
