package httpd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// watch writes a line of the access log for each request of a session: who asked for
// what about which machine, how long it took and what came of it. Neither arguments nor
// output are in it.
func (s *Server) watch(token Token, session Session) mcp.Middleware {
	return func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			if strings.HasPrefix(method, "notifications/") || method == "ping" {
				return next(ctx, method, req)
			}
			begin := time.Now()
			res, err := next(ctx, method, req)
			line := []slog.Attr{slog.String("principal", token.Name)}
			line = add(line, "session", clientOf(req))
			line = append(line, slog.String("method", method))
			tool, target, machine := subject(req)
			if machine == "" {
				machine = made(res)
			}
			if target == "" && tool != "" {
				target = session.Target()
			}
			line = add(add(add(line, "tool", tool), "target", target), "machine", machine)
			line = append(line, slog.Float64("ms", float64(time.Since(begin).Microseconds())/1000), slog.String("outcome", outcome(res, err)))
			if extra := req.GetExtra(); extra != nil {
				line = add(line, "request", extra.Header.Get("X-Request-Id"))
			}
			s.opts.Log.LogAttrs(ctx, slog.LevelInfo, "request", line...)
			return res, err
		}
	}
}

func add(line []slog.Attr, key, value string) []slog.Attr {
	if value == "" {
		return line
	}
	return append(line, slog.String(key, value[:min(len(value), maxLogged)]))
}

// maxLogged bounds what a client may write into the log at a time, in bytes.
const maxLogged = 64

// subject is what a request is about, as far as it says.
func subject(req mcp.Request) (tool, target, machine string) {
	switch p := req.GetParams().(type) {
	case *mcp.CallToolParamsRaw:
		var in struct{ Target, Name string }
		if json.Unmarshal(p.Arguments, &in) != nil {
			return p.Name, "", "" // of another type: the tool says so
		}
		return p.Name, in.Target, in.Name
	case *mcp.ReadResourceParams:
		target, machine = about(p.URI)
	case *mcp.SubscribeParams:
		target, machine = about(p.URI)
	}
	return "", target, machine
}

// made is the machine that a call without a name was about: a new one.
func made(res mcp.Result) string {
	r, ok := res.(*mcp.CallToolResult)
	if !ok || r == nil || r.IsError {
		return ""
	}
	raw, _ := r.StructuredContent.(json.RawMessage)
	var out struct{ Machine json.RawMessage }
	if !bytes.Contains(raw[:min(len(raw), 64)], []byte(`"machine"`)) || json.Unmarshal(raw, &out) != nil {
		return ""
	}
	var whole struct{ Name string }
	if json.Unmarshal(out.Machine, &whole.Name) != nil && json.Unmarshal(out.Machine, &whole) != nil {
		return ""
	}
	return whole.Name
}

// about names the machine of a resource, and not what of it was read.
func about(uri string) (target, machine string) {
	rest, ok := strings.CutPrefix(uri, "smol://machine/")
	parts := strings.SplitN(rest, "/", 3)
	if !ok || len(parts) < 3 {
		return "", ""
	}
	return parts[0], parts[1]
}

// outcome is ok, or the code of the failure.
func outcome(res mcp.Result, err error) string {
	var wire *jsonrpc.Error
	switch {
	case errors.As(err, &wire):
		return "error " + strconv.FormatInt(wire.Code, 10)
	case err != nil:
		return "error"
	}
	if r, ok := res.(*mcp.CallToolResult); ok && r != nil {
		if code, ok := r.Meta["code"].(string); r.IsError && ok {
			return code
		}
		if r.IsError {
			return "error"
		}
	}
	return "ok"
}
