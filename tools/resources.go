package tools

import (
	"bytes"
	"context"
	"net/url"
	"strings"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"smol-mcp/fleet"
)

const (
	targetsURI   = "smol://targets"
	fileTemplate = "smol://machine/{target}/{name}/file{+path}"
	logsTemplate = "smol://machine/{target}/{name}/logs"
)

// maxResource bounds a file read as a resource, in bytes: it comes whole or not at all.
const maxResource = 8 << 20

func (s *Session) addResources(server *mcp.Server) {
	server.AddResource(&mcp.Resource{
		URI: targetsURI, Name: "targets", Title: "Targets", MIMEType: "application/json",
		Description: "Where machines can be made: which fleets are served, by what engine, with what isolation, whether they are usable now, and what they cannot do.",
	}, s.readTargets)
	server.AddResourceTemplate(&mcp.ResourceTemplate{
		URITemplate: fileTemplate, Name: "machine-file", Title: "File of a machine", MIMEType: "application/octet-stream",
		Description: "A file of a machine, whole, up to 8 MiB; for parts of larger ones use the read-file tool.",
	}, s.readFileResource)
	server.AddResourceTemplate(&mcp.ResourceTemplate{
		URITemplate: logsTemplate, Name: "machine-logs", Title: "Console of a machine", MIMEType: "text/plain",
		Description: "The newest lines of a machine's console. Subscribe to be told of new ones; the machine-logs tool reads from where you were.",
	}, s.readLogsResource)
	s.addCommandResource(server)
}

// cannot says in words what a fleet is not able to do.
func cannot(can fleet.Features) []string {
	words := []string{}
	for _, f := range []struct {
		can  bool
		word string
	}{
		{can.Branch, "branch machines"},
		{can.BranchRunning || !can.Branch, "branch a machine without stopping it"},
		{can.Suspend, "stop a machine with its memory kept"},
		{can.Pull, "pull images into a machine"},
		{can.HostPull, "use a registry image with blocked egress"},
		{can.Mounts, "mount host directories"},
		{can.Overlay, "size the overlay disk"},
		{can.Cmd, "set the workload's command"},
	} {
		if !f.can {
			words = append(words, f.word)
		}
	}
	return words
}

// readFileResource gives a file of a machine: as text where it is UTF-8, else as a blob.
func (s *Session) readFileResource(ctx context.Context, req *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
	uri := req.Params.URI
	one, machine, rest, err := s.parseURI(uri)
	file, isFile := strings.CutPrefix(rest, "file/")
	switch {
	case err == nil && !isFile:
		err = invalid("resource "+fleet.Quote(uri), "it does not follow "+fileTemplate)
	case err == nil:
		file = "/" + file
		err = checkPath(file)
	}
	if err != nil {
		return nil, resourceError(err)
	}
	var content bytes.Buffer
	if _, err := one.fleet.Download(ctx, machine, file, &content, maxResource); err != nil {
		return nil, resourceError(err)
	}
	c := &mcp.ResourceContents{URI: uri, MIMEType: "application/octet-stream"}
	if utf8.Valid(content.Bytes()) {
		c.MIMEType, c.Text = "text/plain; charset=utf-8", content.String()
	} else {
		c.Blob = content.Bytes()
	}
	return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{c}}, nil
}

// fileURI is the address of a guest file.
func fileURI(target, machine, file string) string {
	return "smol://machine/" + target + "/" + url.PathEscape(machine) + "/file" + (&url.URL{Path: file}).EscapedPath()
}

// readLogsResource gives the newest console lines.
func (s *Session) readLogsResource(ctx context.Context, req *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
	one, machine, rest, err := s.parseURI(req.Params.URI)
	if err == nil && rest != "logs" {
		err = invalid("resource "+fleet.Quote(req.Params.URI), "it does not follow "+logsTemplate)
	}
	if err != nil {
		return nil, resourceError(err)
	}
	page, err := one.fleet.Logs(ctx, machine, fleet.LogQuery{Tail: s.opts.Limits.LogsTail, MaxBytes: s.opts.Limits.MaxOutputBytes})
	if err != nil {
		return nil, resourceError(err)
	}
	return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: req.Params.URI, MIMEType: "text/plain", Text: strings.Join(page.Lines, "\n")}}}, nil
}

// parseURI takes the address of something of a machine apart, with escapes
// resolved. Only a fleet that the session may use may be named.
func (s *Session) parseURI(uri string) (one *site, machine, rest string, err error) {
	path, ok := strings.CutPrefix(uri, "smol://machine/")
	parts := strings.SplitN(path, "/", 3)
	if !ok || len(parts) < 3 {
		return nil, "", "", invalid("resource "+fleet.Quote(uri), "it follows none of "+fileTemplate+", "+logsTemplate+", "+commandTemplate)
	}
	for i, part := range parts {
		if parts[i], err = url.PathUnescape(part); err != nil {
			return nil, "", "", invalid("resource "+fleet.Quote(uri), err.Error())
		}
	}
	if one, err = s.siteOf(parts[0]); err != nil {
		return nil, "", "", err
	}
	return one, parts[1], parts[2], fleet.CheckAnyName(parts[1])
}

// resourceError keeps the code of a failure, which a protocol error has no field for.
func resourceError(err error) error {
	e := explain(err)
	code := int64(jsonrpc.CodeInternalError)
	if e.Code == fleet.CodeInvalid || e.Code == fleet.CodeNotFound {
		code = jsonrpc.CodeInvalidParams
	}
	data, _ := jsonText(map[string]string{"code": string(e.Code)})
	return &jsonrpc.Error{Code: code, Message: string(e.Code) + ": " + sentence(e.Error()) + " " + sentence(nextStep(e)), Data: data}
}
