package tools

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"smol-mcp/fleet"
)

const commandTemplate = "smol://machine/{target}/{name}/command/{id}/{stream}"

func (s *Session) addCommandResource(server *mcp.Server) {
	server.AddResourceTemplate(&mcp.ResourceTemplate{
		URITemplate: commandTemplate, Name: "machine-command", Title: "Output of a command", MIMEType: "application/octet-stream",
		Description: "What a command of run-command has printed so far to stdout or stderr, whole, up to 8 MiB; the read-command tool gives parts of longer output, and tells how the command stands.",
	}, s.readCommandResource)
}

// readCommandResource gives a stream of a command: as text where it is UTF-8, else
// as a blob. It starts no machine.
func (s *Session) readCommandResource(ctx context.Context, req *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
	content, err := s.commandOutput(ctx, req.Params.URI)
	if err != nil {
		return nil, resourceError(err)
	}
	c := &mcp.ResourceContents{URI: req.Params.URI, MIMEType: "application/octet-stream"}
	if utf8.Valid(content) {
		c.MIMEType, c.Text = "text/plain; charset=utf-8", string(content)
	} else {
		c.Blob = content
	}
	return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{c}}, nil
}

func (s *Session) commandOutput(ctx context.Context, uri string) ([]byte, error) {
	one, machine, rest, err := s.parseURI(uri)
	if err != nil {
		return nil, err
	}
	parts := strings.Split(rest, "/")
	if len(parts) != 3 || parts[0] != "command" || !slices.Contains(streamNames[:], parts[2]) {
		return nil, invalid("resource "+fleet.Quote(uri), "it does not follow "+commandTemplate+" with stdout or stderr")
	}
	id, stream := parts[1], slices.Index(streamNames[:], parts[2])
	if err := checkCommandID(id); err != nil {
		return nil, err
	}
	c, err := (&call{Session: s, stage: func(string, ...any) {}}).at(ctx, one)
	if err != nil {
		return nil, err
	}
	found, err := c.look(ctx, machine, id, [2]part{})
	switch size := found.sizes[stream]; {
	case err != nil:
		return nil, err
	case found.state == "gone" || size < 0:
		return nil, unknownCommand(machine, id)
	case size > maxResource:
		return nil, &fleet.Error{Code: fleet.CodeInvalid, Op: "read resource " + fleet.Quote(uri), Why: fmt.Sprintf("it has %d bytes, over %d", size, maxResource), Next: "use the read-command tool, which gives parts of it"}
	}
	var content bytes.Buffer
	_, err = c.fleet.Download(ctx, machine, found.files+"."+streamNames[stream], &content, maxResource)
	return content.Bytes(), err
}
