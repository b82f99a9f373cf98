package tools

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// A tool is its words, its schemas and what it does.
type tool struct {
	name, title string
	description string // at most 1,024 characters
	hints       hints
	everywhere  bool // it is about all fleets that are served, unless it names one
	localOnly   bool // only machines of this computer can do it
	in, out     *jsonschema.Schema
	listed      *mcp.Tool                            // what the client sees; see [Catalog]
	resolved    func() (*jsonschema.Resolved, error) // in, to check arguments with; see [Catalog]
	call        func(ctx context.Context, c *call, arguments json.RawMessage) (any, error)
}

// hints are the four annotations, all set on purpose.
type hints struct{ readOnly, destructive, idempotent, openWorld bool }

// define joins a tool's definition with a handler of typed arguments and result.
func define[In, Out any](t tool, handle func(c *call, ctx context.Context, in In) (Out, error)) tool {
	t.call = func(ctx context.Context, c *call, arguments json.RawMessage) (any, error) {
		var in In
		if err := json.Unmarshal(arguments, &in); err != nil {
			// The schema takes 5.0 for an integer, and encoding/json does not.
			in = *new(In)
			if json.Unmarshal(plainNumbers(arguments), &in) != nil {
				return nil, invalid("arguments of "+t.name, err.Error())
			}
		}
		return handle(c, ctx, in)
	}
	return t
}

// plainNumbers writes arguments with numbers such as 5.0 as 5.
func plainNumbers(arguments json.RawMessage) json.RawMessage {
	var v map[string]any
	if json.Unmarshal(arguments, &v) != nil {
		return arguments
	}
	plain, err := jsonText(v)
	if err != nil {
		return arguments
	}
	return plain
}

// call is one tool call on its way.
type call struct {
	*Session
	*site                                    // of the machines that it is about; nil for one about all fleets
	account string                           // whose machines site has
	named   string                           // the machine that it is about; empty where it names none
	hidden  bool                             // that is another principal's: the fleet does not show it, and its record is not touched
	stage   func(format string, args ...any) // what the call waits for, told to the client
	links   []mcp.Content                    // go behind the text
}

// definition is what the client lists. Which fields a result always has is not worth
// the context of every agent; a test holds it against the types.
func (t tool) definition() *mcp.Tool {
	out := *t.out
	out.Required = nil
	return &mcp.Tool{
		Name: t.name, Title: t.title, Description: t.description,
		InputSchema: t.in, OutputSchema: &out,
		Annotations: &mcp.ToolAnnotations{
			ReadOnlyHint: t.hints.readOnly, IdempotentHint: t.hints.idempotent,
			DestructiveHint: &t.hints.destructive, OpenWorldHint: &t.hints.openWorld,
		},
	}
}

// handler checks the arguments, runs the tool, and gives its result once as
// structured content and once, the same bytes, as text.
func (s *Session) handler(t tool) mcp.ToolHandler {
	return func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		arguments, target, err := s.check(t, req.Params.Arguments)
		if err != nil {
			return errorResult(err), nil
		}
		stage, stop := s.progress(ctx, req)
		defer stop()
		c := &call{Session: s, stage: stage}
		if !t.everywhere || target != "" {
			one, question, err := s.pick(ctx, req, target)
			if question != nil {
				return question, nil
			}
			if err == nil {
				c, err = c.at(ctx, one)
			}
			if err == nil {
				err = c.adopt(ctx, t, arguments)
			}
			if err != nil {
				return errorResult(err), nil
			}
		}
		out, err := t.call(ctx, c, arguments)
		if err != nil {
			return errorResult(c.elsewhere(ctx, c.outlived(err))), nil
		}
		raw, err := jsonText(out)
		if err != nil {
			return errorResult(err), nil
		}
		return &mcp.CallToolResult{
			Content:           append(append([]mcp.Content{&mcp.TextContent{Text: string(raw)}}, c.links...), c.warning()...),
			StructuredContent: raw,
		}, nil
	}
}

// at is the call about the machines of one fleet.
func (c *call) at(ctx context.Context, one *site) (*call, error) {
	account, err := c.accountOf(ctx, one)
	if err != nil {
		return nil, err
	}
	there := *c
	there.site, there.account = one, account
	return &there, nil
}

// adopt makes a machine that a crashed session left this session's, since the
// agent goes on naming it. A failure to do so does not fail the call, unless the
// machine may be one that this principal must not see.
func (c *call) adopt(ctx context.Context, t tool, arguments json.RawMessage) error {
	if !slices.Contains(t.in.Required, "name") {
		return nil
	}
	var in struct{ Name string }
	if err := json.Unmarshal(arguments, &in); err != nil {
		return nil
	}
	c.named = in.Name
	rec, found, err := c.records.Use(ctx, c.key(in.Name))
	if err != nil && c.opts.Principal == "" {
		c.opts.Log.Warn("the owner of a machine could not be read", "machine", in.Name, "err", err)
		return nil
	}
	if err == nil {
		// What is hidden goes the way of what is not there, so that both end alike.
		c.hidden, err = c.conceals(c.key(in.Name), rec, found)
	}
	return err
}

// check returns the arguments when they follow the schema, and an error that
// tells the agent what to change when not.
//
// The target is taken out first: it is no argument of the tool's own.
func (s *Session) check(t tool, raw json.RawMessage) (_ json.RawMessage, target string, _ error) {
	arguments := map[string]any{}
	if len(raw) > 0 {
		if err := json.Unmarshal(raw, &arguments); err != nil {
			return nil, "", invalid("arguments of "+t.name, "they are no JSON object: "+err.Error())
		}
	}
	// Models send null for an argument that they leave out.
	maps.DeleteFunc(arguments, func(_ string, v any) bool { return v == nil })
	if named, given := arguments[targetWord]; given {
		if target, _ = named.(string); target == "" {
			return nil, "", invalid("target of "+t.name, "it is one of "+strings.Join(s.words(), ", "))
		}
		delete(arguments, targetWord)
	}
	resolved, err := t.resolved()
	if err != nil {
		return nil, "", err
	}
	if err := resolved.Validate(arguments); err != nil {
		return nil, "", invalid("arguments of "+t.name, explainSchema(t.in, err.Error()))
	}
	if len(raw) == 0 || string(raw) == "null" {
		return json.RawMessage("{}"), target, nil
	}
	return raw, target, nil
}

var (
	schemaPath  = regexp.MustCompile(`validating (/\S+|root): `)
	schemaExtra = regexp.MustCompile(`unexpected additional properties \["(.*)"\]`)
	fraction    = regexp.MustCompile(`(\d+)/1\b|(\d+)\.0+\b`)
)

// unionRule says what the only argument of two types may be: a command.
const unionRule = "it is a line of shell or a list of words, and not empty"

// explainSchema says what the validator found in the words of the arguments.
func explainSchema(in *jsonschema.Schema, found string) string {
	var path string
	for _, m := range schemaPath.FindAllStringSubmatch(found, -1) {
		if m[1] != "root" {
			path = m[1]
		}
	}
	rest := schemaPath.ReplaceAllString(found, "")
	if before, _, union := strings.Cut(found, "anyOf: "); union { // what follows is about its parts
		rest = unionRule
		if m := schemaPath.FindAllStringSubmatch(before, -1); m != nil {
			path = m[len(m)-1][1]
		}
	}
	rest = strings.ReplaceAll(fraction.ReplaceAllString(rest, "$1$2"), "<anonymous schema>", "what is allowed")
	if m := schemaExtra.FindStringSubmatch(rest); m != nil {
		rest = "there is no argument " + strings.ReplaceAll(m[1], `" "`, ", ")
		if path == "" {
			rest += "; there are " + strings.Join(slices.Sorted(maps.Keys(in.Properties)), ", ")
		}
	}
	argument := strings.Trim(strings.NewReplacer("/properties/", ".", "/items", "[]", "/additionalProperties", ".*").Replace(path), ".")
	if argument == "" {
		return rest
	}
	return argument + ": " + rest
}

// progressPeriod is how often a waiting call tells its client that it lives.
const progressPeriod = 5 * time.Second

// progress returns the function that tells what the call waits for, and the
// one that ends the telling. With a progress token the client hears a stage at
// once and then every progressPeriod; without one nothing is sent.
func (s *Session) progress(ctx context.Context, req *mcp.CallToolRequest) (stage func(format string, args ...any), stop func()) {
	token := req.Params.GetProgressToken()
	if token == nil {
		return func(string, ...any) {}, func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	stages := make(chan string)
	var told sync.WaitGroup
	told.Go(func() {
		_ = s.guard(func() error { tellProgress(ctx, req.Session, token, stages); return nil })
	})
	stage = func(format string, args ...any) {
		select {
		case stages <- fmt.Sprintf(format, args...):
		case <-ctx.Done():
		}
	}
	return stage, func() { cancel(); told.Wait() }
}

func tellProgress(ctx context.Context, session *mcp.ServerSession, token any, stages <-chan string) {
	begin := time.Now()
	tick := time.NewTicker(progressPeriod)
	defer tick.Stop()
	stage := "working"
	for count := 1.0; ; count++ {
		var message string
		select {
		case <-ctx.Done():
			return
		case stage = <-stages:
			message = stage
		case <-tick.C:
			message = fmt.Sprintf("%s (%d s)", stage, int(time.Since(begin).Seconds()))
		}
		// A client that no longer listens does not end the call.
		_ = session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: token, Progress: count, Message: message})
	}
}
