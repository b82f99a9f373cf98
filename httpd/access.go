package httpd

import (
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
func (s *Server) watch(token Token) mcp.Middleware {
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
			line = append(line, subject(req)...)
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

// subject is what a request is about.
func subject(req mcp.Request) (line []slog.Attr) {
	switch p := req.GetParams().(type) {
	case *mcp.CallToolParamsRaw:
		var about struct{ Target, Name string }
		if json.Unmarshal(p.Arguments, &about) != nil {
			about.Target, about.Name = "", "" // of another type: the tool says so
		}
		line = add(line, "tool", p.Name)
		line = add(line, "target", about.Target)
		line = add(line, "machine", about.Name)
	case *mcp.ReadResourceParams:
		line = about(line, p.URI)
	case *mcp.SubscribeParams:
		line = about(line, p.URI)
	}
	return line
}

// about names the machine of a resource, and not what of it was read.
func about(line []slog.Attr, uri string) []slog.Attr {
	parts := strings.SplitN(strings.TrimPrefix(uri, "smol://machine/"), "/", 3)
	if len(parts) < 3 || !strings.HasPrefix(uri, "smol://machine/") {
		return line
	}
	return add(add(line, "target", parts[0]), "machine", parts[1])
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
