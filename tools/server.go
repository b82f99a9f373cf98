package tools

import (
	"context"
	_ "embed"
	"fmt"
	"runtime/debug"
	"strings"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

//go:embed instructions.md
var instructionsText string

// Protocol revisions between which behaviour differs: the newest that opens with
// a handshake, and the first that does not.
const (
	lastHandshake = "2025-11-25"
	firstModern   = "2026-07-28"
)

func (s *Session) newServer() *mcp.Server {
	server := mcp.NewServer(&mcp.Implementation{Name: "smol-mcp", Title: "smol machines", Version: s.opts.Version}, &mcp.ServerOptions{
		Instructions: s.instructions(),
		Logger:       s.opts.Log,
		Capabilities: &mcp.ServerCapabilities{
			Logging:   &mcp.LoggingCapabilities{},
			Tools:     &mcp.ToolCapabilities{ListChanged: len(s.sites) > 1},
			Resources: &mcp.ResourceCapabilities{Subscribe: true},
			Prompts:   &mcp.PromptCapabilities{},
		},
		CompletionHandler:  s.complete,
		SubscribeHandler:   s.subscribe,
		UnsubscribeHandler: s.unsubscribe,
		SetCacheable:       s.cacheable,
	})
	equip := sync.OnceFunc(func() {
		for _, t := range s.opts.Catalog.tools() {
			server.AddTool(t.listed, s.handler(t))
		}
		s.addResources(server)
		s.addPrompts(server)
	})
	server.AddReceivingMiddleware(s.track, fixVersion, s.recoverPanics, s.tellLeftovers, onFirstUse(equip), s.showTargets, s.forbid)
	server.AddSendingMiddleware(s.announceOnce)
	return server
}

// onFirstUse keeps work off the way to the answer that opens a session: adding
// the tools takes milliseconds, since the SDK reads each schema.
func onFirstUse(equip func()) mcp.Middleware {
	return func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			switch method {
			case "initialize", "server/discover", "ping", "notifications/initialized":
			default:
				equip()
			}
			return next(ctx, method, req)
		}
	}
}

// instructions are what concerns several tools at once; at most 2,048
// characters, since a client was seen to cut there.
func (s *Session) instructions() string {
	egress := "blocked"
	if s.opts.Limits.NetworkOpen {
		egress = "open"
	}
	where, targets := "on this computer", ""
	if len(s.sites) > 1 {
		where = "on this computer (target local) or in smol cloud (target cloud)"
		targets = "- Name the target in every call: none is the default, and machines of one are not seen in the other. A client that can ask its user does so once, at the first call without a target. smol://targets tells what each can do.\n"
	} else if s.sites[0].fleet.Target() != localTarget {
		where = "in smol cloud"
	}
	if len(s.sites) > 1 || s.sites[0].fleet.Target() != localTarget {
		targets += fmt.Sprintf("- Cloud machines cost money until they are deleted: delete what you are done with. Those of this session are deleted by the cloud %d min after they were made, whatever they do (expiresAt), and stopped when idle for %d min.\n",
			int(s.opts.Limits.TTL.Minutes()), int(s.opts.Limits.AutoStop.Minutes()))
	}
	return strings.NewReplacer(
		"{where}", where,
		"{targets}", targets,
		"{prefix}", s.opts.Limits.MachinePrefix,
		"{egress}", egress,
	).Replace(instructionsText)
}

// recoverPanics makes a panic the error of its own call. The SDK would let it
// end the process, and with it every machine of the session.
func (s *Session) recoverPanics(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (res mcp.Result, err error) {
		defer func() {
			if p := recover(); p != nil {
				s.opts.Log.Error("panic in a handler", "method", method, "panic", p, "stack", string(debug.Stack()))
				res, err = nil, &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "internal error; the server goes on"}
			}
		}()
		return next(ctx, method, req)
	}
}

// track counts running calls, and ends them with the session: the SDK's Close
// only waits.
func (s *Session) track(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		calls := &s.calls
		if method == "subscriptions/listen" { // it only waits, for as long as the client likes
			calls = &s.listens
		}
		if !calls.begin() {
			return nil, &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: errSessionOver.Error()}
		}
		defer calls.done()
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		defer context.AfterFunc(s.over, func() { cancel(context.Cause(s.over)) })()
		return next(ctx, method, req)
	}
}

// fixVersion lets a client that asks a handshake for a revision without one
// have the newest with one: SDK 1.8 answers so, but goes on as if the session were modern.
func fixVersion(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		if p, ok := req.GetParams().(*mcp.InitializeParams); ok && p != nil && p.ProtocolVersion >= firstModern {
			p.ProtocolVersion = lastHandshake
		}
		return next(ctx, method, req)
	}
}
