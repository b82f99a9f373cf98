package tools

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"smol-mcp/fleet"
)

func (s *Session) addPrompts(server *mcp.Server) {
	server.AddPrompt(&mcp.Prompt{
		Name: "try-in-a-machine", Title: "Try a repository in a machine",
		Description: "Clone a repository into a fresh machine, install what it needs, and run its tests there.",
		Arguments: []*mcp.PromptArgument{
			{Name: "repository", Description: "Address to clone from.", Required: true},
			{Name: "image", Description: "Image to work in. Default: one that fits the repository's language."},
		},
	}, s.tryPrompt)
	server.AddPrompt(&mcp.Prompt{
		Name: "compare-branches", Title: "Compare ways in branches",
		Description: "Prepare one machine, branch it once for each way of doing something, try the ways side by side, and compare.",
		Arguments: []*mcp.PromptArgument{
			{Name: "task", Description: "What is to be done.", Required: true},
			{Name: "ways", Description: "The ways to compare. Default: two or three that you find."},
		},
	}, s.comparePrompt)
}

func (s *Session) comparePrompt(_ context.Context, req *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
	ways := "two or three ways that you think of"
	if named := req.Params.Arguments["ways"]; named != "" {
		ways = "these ways: " + named
	}
	text := fmt.Sprintf("Compare how to do this: %s. Try %s.\n"+
		"Create one machine with create-machine and branchable true, and prepare in it what all ways need: sources, packages, data. "+
		"Then make one branch for each way with branch-machine and childNames, so that all begin from the same state, and carry each way out in its own branch with run-command. "+
		"If the fleet cannot branch, as smol://targets says, prepare one machine for each way alike. "+
		"Measure what matters in each in the same manner, report the ways beside each other with figures and the decisive lines of output, and delete the branches, then their source.", req.Params.Arguments["task"], ways)
	return s.promptText(text), nil
}

// promptText is a prompt of one message, with the target that its calls need.
func (s *Session) promptText(text string) *mcp.GetPromptResult {
	if s.several() {
		text += " Unless the user says where, make machines on this computer: pass target " + localTarget + " in each call."
	}
	return &mcp.GetPromptResult{Messages: []*mcp.PromptMessage{{Role: "user", Content: &mcp.TextContent{Text: text}}}}
}

func (s *Session) tryPrompt(_ context.Context, req *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
	image := "an image that fits its language"
	if named := req.Params.Arguments["image"]; named != "" {
		image = "the image " + named
	}
	text := fmt.Sprintf("Try the repository %s in a fresh virtual machine. "+
		"Create one with create-machine from %s, with allowHosts for the repository's host and the package registries it needs. "+
		"Clone it, find out how it is built and tested, install what that needs, and run the tests with run-command; "+
		"for steps that take longer than a call waits, look at the files named in overflow. "+
		"Report what passed and what failed with the decisive lines of output, and delete the machine.", req.Params.Arguments["repository"], image)
	return s.promptText(text), nil
}

// completionTime bounds the wait for names: a person is typing.
const completionTime = 5 * time.Second

// maxCompletions is what the protocol allows in one answer.
const maxCompletions = 100

// complete offers machine names and targets for the resource templates.
func (s *Session) complete(ctx context.Context, req *mcp.CompleteRequest) (*mcp.CompleteResult, error) {
	values := []string{}
	if req.Params.Ref != nil && req.Params.Ref.Type == "ref/resource" {
		switch req.Params.Argument.Name {
		case targetWord:
			for _, one := range s.served() {
				values = append(values, one.fleet.Target())
			}
		case "name":
			values = s.machineNames(ctx, req.Params.Context)
		}
	}
	fitting := []string{}
	for _, v := range values {
		if strings.HasPrefix(v, req.Params.Argument.Value) {
			fitting = append(fitting, v)
		}
	}
	shown := fitting[:min(len(fitting), maxCompletions)]
	return &mcp.CompleteResult{Completion: mcp.CompletionResultDetails{Values: shown, Total: len(fitting), HasMore: len(fitting) > len(shown)}}, nil
}

// machineNames are the names in the fleet that the client has named already, or in
// all that the session may use. No list is no reason to fail: completion only helps.
func (s *Session) machineNames(ctx context.Context, known *mcp.CompleteContext) []string {
	asked := s.served()
	if known != nil && known.Arguments[targetWord] != "" {
		one, err := s.siteOf(known.Arguments[targetWord])
		if err != nil {
			return nil
		}
		asked = []*site{one}
	}
	found := make([][]fleet.Machine, len(asked))
	var looks sync.WaitGroup
	for i, one := range asked {
		looks.Go(func() { found[i], _ = within(ctx, completionTime, s, one.fleet.List) })
	}
	looks.Wait()
	var names []string
	for _, machines := range found {
		for _, m := range machines {
			names = append(names, m.Name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
