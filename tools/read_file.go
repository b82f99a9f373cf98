package tools

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"
	"unicode/utf8"

	"smol-mcp/fleet"
)

type readIn struct {
	Name     string `json:"name"`
	Path     string `json:"path"`
	Encoding string `json:"encoding"`
	Offset   int64  `json:"offset"`
	Length   int    `json:"length"`
}

type readOut struct {
	Path           string  `json:"path"`
	Content        string  `json:"content"`
	Encoding       string  `json:"encoding"`
	Size           int64   `json:"size"`
	Offset         int64   `json:"offset"`
	Bytes          int     `json:"bytes"`
	EOF            bool    `json:"eof"`
	Entries        []entry `json:"entries,omitempty"`
	StartedMachine bool    `json:"startedMachine"`
}

type entry struct {
	Name string `json:"name"`
	Kind string `json:"kind"`
}

func readFile() tool {
	return define(tool{
		name:  "read-file",
		title: "Read file",
		description: "Reads a file of a machine, or a part of it, exactly, and lists a directory. Prefer it to cat: bytes come as they are and long files in pages. Without length it reads what fits; " +
			"go on at offset + bytes until eof. What is no UTF-8 needs encoding base64, or auto. " +
			"Starts a stopped machine. A missing path is NOT_FOUND; a directory gives entries. Cannot read the host.",
		hints: hints{readOnly: true, idempotent: true, openWorld: true},
		in: arguments(nameArgument(), pathArgument("File or directory."),
			encodingArgument("auto: utf8 where the page is UTF-8, else base64.", "utf8", "base64", "auto"),
			optional("offset", standard(between("Byte to begin at.", 0, 1<<50), 0)),
			optional("length", between("Bytes at most; fewer come where the output budget ends.", 1, 1<<20))),
		out: object(
			required("path", text("")), required("content", text("")),
			required("encoding", oneOf("", "utf8", "base64")), required("size", integer("Whole file.")),
			required("offset", integer("")), required("bytes", integer("Of a directory offset and bytes count entries.")),
			required("eof", flag("")),
			optional("entries", list("Of a directory: name, and kind: file, directory, link, other.", plainObject(""))),
			required("startedMachine", flag("")),
		),
	}, (*call).read)
}

// block is the unit in which read.sh reads.
const block = 4096

func (c *call) read(ctx context.Context, in readIn) (readOut, error) {
	out := readOut{Path: in.Path, Encoding: "utf8", Offset: in.Offset}
	if err := checkPath(in.Path); err != nil {
		return out, err
	}
	length := c.opts.Limits.MaxOutputBytes
	if in.Length > 0 {
		length = min(length, in.Length)
	}
	part, done, err := c.readPart(ctx, in, length)
	if done {
		return part, err
	}
	// A page ends between characters, so a few bytes more than asked must be known.
	skip := in.Offset / block
	count := (in.Offset%block+int64(length)+utf8.UTFMax)/block + 1
	r, err := c.inGuest(ctx, in.Name, scripts.read(), fleet.Command{Timeout: scriptTimeout, Brief: true}, in.Path,
		strconv.FormatInt(skip, 10), strconv.FormatInt(count, 10), strconv.FormatInt(in.Offset, 10), strconv.Itoa(maxEntries))
	if errors.Is(err, errNoShell) {
		return c.readWhole(ctx, in, length)
	}
	if err != nil {
		return out, c.nearby(ctx, in.Name, err)
	}
	out.StartedMachine = r.started || part.StartedMachine
	switch r.word(0) {
	case "file":
		size, err := strconv.ParseInt(r.word(1), 10, 64)
		if err != nil {
			return out, &fleet.Error{Code: fleet.CodeInternal, Op: "read " + in.Path, Why: "the guest gave no size: " + fleet.Quote(r.word(1))}
		}
		known := r.stdout[min(int64(len(r.stdout)), in.Offset%block):]
		// Files of /proc have content but no size.
		if len(known) > 0 {
			size = max(size, in.Offset+int64(len(known)))
		}
		return c.page(out, in, known, size, length)
	case "dir":
		return c.listing(out, r.stdout), nil
	}
	return out, noFile(in.Path, r)
}

// readPart reads a page without a command in the guest, where the fleet can. It is
// not done when that failed in a way that the script explains, or reads better: a
// directory, a missing file, a page behind the end.
func (c *call) readPart(ctx context.Context, in readIn, length int) (out readOut, done bool, err error) {
	reader, ok := c.fleet.(fleet.PartReader)
	if !ok {
		return out, false, nil
	}
	var known bytes.Buffer
	part, err := reader.DownloadPart(ctx, in.Name, in.Path, &known, in.Offset, int64(length+utf8.UTFMax))
	if part.Started { // by us; a script that finds no mark of ours must not take it for its own doing
		c.contacts.change(in.Name, func(k contact) contact { k.met = false; return k })
	}
	out = readOut{Path: in.Path, Encoding: "utf8", Offset: in.Offset, StartedMachine: part.Started}
	switch fleet.CodeOf(err) {
	case "":
	case fleet.CodeUnsupported, fleet.CodeInvalid, fleet.CodeNotFound, fleet.CodeInternal:
		return out, false, nil
	default:
		return out, true, c.nearby(ctx, in.Name, err)
	}
	out, err = c.page(out, in, known.Bytes(), part.Size, length)
	return out, true, err
}

// maxEntries bounds the entries of a directory in one answer.
const maxEntries = 1000

// listing makes a result of a part of a directory's list. There offset, bytes and
// size count entries, so that going on works as with bytes.
func (c *call) listing(out readOut, list []byte) readOut {
	found, more := entries(list)
	chars := c.opts.Limits.payloadChars()
	for i, e := range found {
		if chars -= len(`{"name":"","kind":"directory"},`) + jsonLen([]byte(e.Name)); chars < 0 {
			found, more = found[:max(i, 1)], true
			break
		}
	}
	out.Entries, out.Bytes, out.EOF = found, len(found), !more
	out.Size = out.Offset + int64(len(found))
	if more {
		out.Size++
	}
	return out
}

// page makes a result of the bytes known from the offset on, at most length of them.
func (c *call) page(out readOut, in readIn, known []byte, size int64, length int) (readOut, error) {
	chars := c.opts.Limits.payloadChars()
	out.Size = size
	n := min(length, len(known))
	text := known[:max(fit(known, n, chars), min(firstRune(known), len(known)))]
	if in.Encoding != "base64" && utf8.Valid(text) {
		out.Content, out.Bytes = string(text), len(text)
	} else if in.Encoding == "base64" || in.Encoding == "auto" {
		raw := known[:min(n, chars/4*3)]
		out.Content, out.Bytes, out.Encoding = base64.StdEncoding.EncodeToString(raw), len(raw), "base64"
	} else {
		return out, &fleet.Error{Code: fleet.CodeInvalid, Op: "read " + in.Path + " as utf8", Why: fmt.Sprintf("the bytes from offset %d on are no UTF-8", in.Offset),
			Next: "call again with encoding base64, or auto"}
	}
	out.EOF = in.Offset+int64(out.Bytes) >= size
	return out, nil
}

// firstRune is the length of the character at the start of b: a page holds at
// least one, so that paging always moves on.
func firstRune(b []byte) int {
	_, n := utf8.DecodeRune(b)
	return n
}

// readWhole serves a guest without a shell: the file comes whole, and only the
// page is kept.
func (c *call) readWhole(ctx context.Context, in readIn, length int) (readOut, error) {
	out := readOut{Path: in.Path, Encoding: "utf8", Offset: in.Offset}
	w := &window{skip: in.Offset, left: int64(length + utf8.UTFMax)}
	size, err := c.fleet.Download(ctx, in.Name, in.Path, w, 0)
	if err != nil {
		return out, err
	}
	return c.page(out, in, w.kept.Bytes(), size, length)
}

// A window keeps a part of what is written to it.
type window struct {
	skip, left int64
	kept       bytes.Buffer
}

func (w *window) Write(p []byte) (int, error) {
	n := len(p)
	drop := min(w.skip, int64(len(p)))
	w.skip -= drop
	p = p[drop:]
	p = p[:min(w.left, int64(len(p)))]
	w.left -= int64(len(p))
	w.kept.Write(p)
	return n, nil
}

// entries reads the directory listing of read.sh, and whether there are more.
func entries(listing []byte) (found []entry, more bool) {
	kinds := map[byte]string{'f': "file", 'd': "directory", 'l': "link", 'o': "other"}
	found = []entry{}
	for item := range bytes.SplitSeq(listing, []byte{0}) {
		if len(item) > 2 && item[0] == 'm' {
			return found, true
		}
		if len(item) > 2 {
			found = append(found, entry{Name: strings.ToValidUTF8(string(item[2:]), "\uFFFD"), Kind: kinds[item[0]]})
		}
	}
	return found, false
}

// noFile is the error for what read.sh and place.sh found in the place of a file.
func noFile(file string, r reply) error {
	e := &fleet.Error{Code: fleet.CodeInvalid, Op: "open " + file}
	switch r.word(0) {
	case "missing":
		e.Code, e.Why, e.Next = fleet.CodeNotFound, "there is no such file in the guest", "list its directory with read-file "+path.Dir(file)
	case "denied":
		e.Why, e.Next = strings.TrimSuffix("the guest refuses it: "+fleet.Bound(string(r.stderr), 300), ": "), "check its owner and mode with run-command, as ls -ld "+file
	case "special":
		e.Why, e.Next = "it is a device, pipe or socket, not a file", "use run-command"
	case "dir":
		e.Why, e.Next = "it is a directory", "name a file in it"
	default:
		e.Code, e.Why = fleet.CodeInternal, "the guest answered "+fleet.Quote(r.word(0))
	}
	return e
}

// checkPath refuses what is no plain path of the guest.
func checkPath(p string) error {
	switch {
	case !path.IsAbs(p):
		return invalid("path "+fleet.Quote(p), "it is not absolute")
	case strings.ContainsRune(p, 0):
		return invalid("path "+fleet.Quote(p), "it has a NUL character")
	}
	for part := range strings.SplitSeq(p, "/") {
		if part == "." || part == ".." {
			return invalid("path "+fleet.Quote(p), "it has a . or .. part")
		}
	}
	return nil
}
