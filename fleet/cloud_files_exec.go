package fleet

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// Where the service has no route for files they go through commands, in pieces and
// as base64, since text is all that an older service carries. A piece and its text
// stay below the megabyte at which it cuts output off.
const filePiece = 512 << 10

// Scripts for files, of POSIX sh and base64. A file is written beside its place and
// moved there when it is whole.
const (
	sizeScript  = `[ -d "$1" ] && { echo "$1: is a directory" >&2; exit 1; }; [ -e "$1" ] || { echo "$1: No such file or directory" >&2; exit 1; }; wc -c <"$1"`
	readScript  = `dd if="$1" bs="$2" skip="$3" count=1 2>/dev/null | base64`
	writeScript = `mkdir -p -- "${1%/*}/" && base64 -d >>"$1.$2.part"`
	placeScript = `mv -f -- "$1.$2.part" "$1"`
	dropScript  = `rm -f -- "$1.$2.part"`
)

func shell(text string, args ...string) []string {
	return append([]string{"sh", "-c", text, "sh"}, args...)
}

// downloadByExec reads a file by commands.
func (c *Cloud) downloadByExec(ctx context.Context, r request, id, file string, w io.Writer, limit int64) (int64, error) {
	res, err := c.inGuest(ctx, r.op, id, Command{Argv: shell(sizeScript, file)})
	if err != nil {
		return 0, err
	}
	size, err := strconv.ParseInt(strings.TrimSpace(string(res.Stdout)), 10, 64)
	if err != nil {
		return 0, r.fail(CodeInternal, false, fmt.Errorf("the guest does not tell the file's size: %w", err))
	}
	if limit > 0 && size > limit {
		return 0, r.fail(CodeInvalid, false, fmt.Errorf("too large: %d bytes, more than %d", size, limit))
	}
	var n int64
	for piece := 0; n < size; piece++ {
		res, err := c.inGuest(ctx, r.op, id, Command{Argv: shell(readScript, file, strconv.Itoa(filePiece), strconv.Itoa(piece))})
		if err != nil {
			return n, err
		}
		if res.StdoutTruncated {
			return n, r.fail(CodeInternal, false, errors.New("the service cut the file's text off"))
		}
		data, err := base64.StdEncoding.DecodeString(string(bytes.Join(bytes.Fields(res.Stdout), nil)))
		if err != nil {
			return n, r.fail(CodeInternal, false, fmt.Errorf("the guest does not answer with base64: %w", err))
		}
		if int64(len(data)) != min(filePiece, size-n) {
			return n, r.fail(CodeInternal, false, fmt.Errorf("it changed while it was read: %d bytes of %d at %d", len(data), min(filePiece, size-n), n))
		}
		written, err := w.Write(data)
		n += int64(written)
		if err != nil {
			return n, r.fail(CodeInternal, false, fmt.Errorf("its bytes could not be kept: %w", err))
		}
	}
	return n, nil
}

// uploadByExec writes a file by commands.
func (c *Cloud) uploadByExec(ctx context.Context, r request, id, file string, src io.Reader) (err error) {
	part := randomID(4)
	defer func() {
		if err != nil {
			undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), cloudReadWait)
			defer cancel()
			_, _ = c.inGuest(undo, r.op, id, Command{Argv: shell(dropScript, file, part)}) // what failed before is told
		}
	}()
	piece := make([]byte, filePiece)
	for sent := int64(0); sent == 0 || sent < r.size; sent += filePiece {
		n, err := io.ReadFull(src, piece[:min(r.size-sent, filePiece)])
		if err != nil {
			return r.fail(CodeInternal, false, fmt.Errorf("the bytes to send could not be read: %w", err))
		}
		cmd := Command{Argv: shell(writeScript, file, part), Stdin: base64.StdEncoding.EncodeToString(piece[:n])}
		if _, err := c.inGuest(ctx, r.op, id, cmd); err != nil {
			return err
		}
	}
	_, err = c.inGuest(ctx, r.op, id, Command{Argv: shell(placeScript, file, part)})
	return err
}
