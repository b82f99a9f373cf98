package tools

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"path"
	"strconv"
	"strings"

	"smol-mcp/fleet"
)

type writeIn struct {
	Name     string `json:"name"`
	Path     string `json:"path"`
	Content  string `json:"content"`
	Encoding string `json:"encoding"`
	Mode     string `json:"mode"`
	Append   bool   `json:"append"`
}

type writeOut struct {
	Path           string `json:"path"`
	Size           int64  `json:"size"`
	SHA256         string `json:"sha256"`
	StartedMachine bool   `json:"startedMachine"`
}

func writeFile() tool {
	mode := text("Octal permissions, as 0755. Default: as they are, 0644 for a new file.")
	mode.Pattern = "^[0-7]{3,4}$"
	return define(tool{
		name:  "write-file",
		title: "Write file",
		description: "Writes a file in a machine: makes it with its parent directories, or replaces it in one step; mode and owner of an existing file stay, and a link is written through. " +
			"Prefer it to echo and heredocs: any text or bytes arrive exactly. With append the content is added at the end. Starts a stopped machine. " +
			"A directory, a relative path or broken base64 is refused, and nothing written. Cannot write to the host.",
		hints: hints{destructive: true, openWorld: true},
		in: arguments(nameArgument(), pathArgument("File."),
			required("content", text("What to write, in encoding.")),
			encodingArgument("base64 (padded) for bytes that are no text.", "utf8", "base64"),
			optional("mode", mode),
			optional("append", standard(flag("Add to the end instead; not safe to repeat."), false))),
		out: object(required("path", text("")), required("size", integer("")),
			required("sha256", text("Of content.")), required("startedMachine", flag(""))),
	}, (*call).write)
}

func (c *call) write(ctx context.Context, in writeIn) (writeOut, error) {
	out := writeOut{Path: in.Path}
	if err := checkPath(in.Path); err != nil {
		return out, err
	}
	if strings.HasSuffix(in.Path, "/") {
		return out, invalid("path "+fleet.Quote(in.Path), "it names a directory, not a file")
	}
	content, err := decode(in.Content, in.Encoding)
	if err != nil {
		return out, err
	}
	sum := sha256.Sum256(content)
	out.SHA256 = hex.EncodeToString(sum[:])
	ran, err := c.runs(ctx, in.Name)
	if err != nil {
		return out, c.nearby(ctx, in.Name, err)
	}
	out.StartedMachine = !ran
	upload := path.Join(path.Dir(in.Path), randomName(".smol-mcp-", 12))
	// A machine that is off is started by the upload, below a workload that comes
	// up later and may hide it: then the file is not there for the script, and a
	// second upload is.
	for range 2 {
		if err := c.fleet.Upload(ctx, in.Name, upload, bytes.NewReader(content), int64(len(content))); err != nil {
			return out, err
		}
		appended := map[bool]string{true: "1", false: "0"}[in.Append]
		r, err := c.inGuest(ctx, in.Name, scripts.place(), fleet.Command{Timeout: scriptTimeout, Brief: true}, upload, in.Path, in.Mode, appended, strconv.Itoa(len(content)))
		if errors.Is(err, errNoShell) {
			return c.writeWhole(ctx, in, content, out)
		}
		if err != nil {
			c.dropUpload(ctx, in.Name, upload)
			return out, err
		}
		out.StartedMachine = out.StartedMachine || r.started
		switch r.word(0) {
		case "hidden":
			continue
		case "file":
			out.Size, err = strconv.ParseInt(r.word(1), 10, 64)
			return out, err
		}
		return out, noFile(in.Path, r)
	}
	return out, &fleet.Error{Code: fleet.CodeNotReady, Op: "write " + in.Path, Why: "the guest does not see what the engine stored for it"}
}

// dropUpload removes an upload that was not put in place, as far as that can be done.
func (c *call) dropUpload(ctx context.Context, machine, upload string) {
	c.background(ctx, scriptTimeout, func(ctx context.Context) {
		_, _ = c.fleet.Exec(ctx, machine, fleet.Command{Argv: []string{"rm", "-f", upload}, Timeout: scriptTimeout, NoStart: true})
	})
}

// writeWhole serves a guest without a shell, with what the engine's own upload does.
func (c *call) writeWhole(ctx context.Context, in writeIn, content []byte, out writeOut) (writeOut, error) {
	if in.Append || in.Mode != "" {
		return out, &fleet.Error{Code: fleet.CodeUnsupported, Op: "write " + in.Path, Why: "the image has no /bin/sh, which append and mode need", Next: "leave them out"}
	}
	out.Size = int64(len(content))
	return out, c.fleet.Upload(ctx, in.Name, in.Path, bytes.NewReader(content), out.Size)
}

// decode returns the bytes that content stands for.
func decode(content, encoding string) ([]byte, error) {
	if encoding != "base64" {
		return []byte(content), nil
	}
	b, err := base64.StdEncoding.Strict().DecodeString(content)
	if err != nil {
		return nil, invalid("content", "it is no base64: "+err.Error())
	}
	return b, nil
}
