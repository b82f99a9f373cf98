package tools

import (
	"context"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// targetNeed is how a list of tools shows the target.
type targetNeed int

const (
	targetAbsent targetNeed = iota
	targetOptional
	targetRequired
)

// need is how the tools are to be shown to the client of req.
func (s *Session) need(req *mcp.ListToolsRequest) targetNeed {
	if len(s.sites) == 1 {
		return targetAbsent
	}
	if req.ProtocolVersion() >= firstModern {
		return targetRequired // whatever was said in other calls
	}
	s.choice.mu.Lock()
	defer s.choice.mu.Unlock()
	switch {
	case s.choice.only != nil:
		return targetAbsent
	case s.choice.question == nil && canElicit(req.ClientCapabilities()):
		return targetOptional
	case s.choice.question != nil:
		select {
		case <-s.choice.question.settled:
		default:
			return targetOptional
		}
	}
	return targetRequired
}

// showTargets gives the tools of a list their target, or leaves out those that no
// fleet of the session can carry out.
func (s *Session) showTargets(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		res, err := next(ctx, method, req)
		if err != nil {
			return res, err
		}
		switch r := res.(type) {
		case *mcp.ListToolsResult:
			if of, ok := req.(*mcp.ListToolsRequest); ok {
				r.Tools = s.aimedTools(r.Tools, s.need(of))
			}
		case *mcp.DiscoverResult: // of a revision in which lists do not vary
			r.Capabilities.Tools.ListChanged = false
		}
		return res, nil
	}
}

// aimedTools are listed tools with the target that they need.
func (s *Session) aimedTools(listed []*mcp.Tool, need targetNeed) []*mcp.Tool {
	served := s.served()
	remote := need == targetAbsent && served[0].fleet.Target() != localTarget
	if need == targetAbsent && !remote {
		return listed
	}
	own := map[string]tool{}
	for _, t := range s.opts.Catalog.tools() {
		own[t.name] = t
	}
	shown := []*mcp.Tool{}
	for _, l := range listed {
		t, known := own[l.Name]
		switch {
		case remote && t.localOnly:
		case remote || !known:
			shown = append(shown, l)
		default:
			aimed := *l
			aimed.InputSchema = t.aimed(s.words(), need)
			shown = append(shown, &aimed)
		}
	}
	return shown
}

// localTarget is the target that can do what others cannot.
const localTarget = "local"

// aimed is the schema of the arguments with a target in front.
func (t tool) aimed(words []string, need targetNeed) *jsonschema.Schema {
	in := *t.in
	target := oneOf("local: this computer. cloud: billed.", words...)
	if t.everywhere {
		target.Description, need = "Only this one. Default: all.", targetOptional
	}
	in.Properties = make(map[string]*jsonschema.Schema, len(t.in.Properties)+1)
	for name, p := range t.in.Properties {
		in.Properties[name] = p
	}
	in.Properties[targetWord] = target
	in.PropertyOrder = append([]string{targetWord}, t.in.PropertyOrder...)
	if need == targetRequired {
		in.Required = append([]string{targetWord}, t.in.Required...)
	}
	return &in
}

// announceTools has the SDK tell the client that the list of tools has changed: it
// does so when a tool is added, also in place of itself.
func (s *Session) announceTools() {
	t := s.opts.Catalog.tools()[0]
	s.choice.announce.Store(true)
	s.server.AddTool(t.listed, s.handler(t))
}

// announceOnce lets through only the notices that announceTools asked for: the SDK sends
// one, too, for the tools that are added at the first use.
func (s *Session) announceOnce(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		if method == "notifications/tools/list_changed" && !s.choice.announce.Swap(false) {
			return nil, nil
		}
		return next(ctx, method, req)
	}
}
