package fleet

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"syscall"
	"time"
)

// probeTimeout is how long an engine has to say that it is well.
const probeTimeout = 2 * time.Second

// errSilent is wrapped by probe when nobody listens at an address.
var errSilent = errors.New("nobody listens")

// nobody reports whether a failed dial proves that nobody listens. Others, such
// as a lack of rights, do not.
func nobody(err error) bool {
	const refusedOnWindows = syscall.Errno(10061)
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, os.ErrNotExist) ||
		runtime.GOOS == "windows" && errors.Is(err, refusedOnWindows)
}

// probe asks who answers at an address. An error that is not errSilent says
// what was met there instead of an engine.
func probe(ctx context.Context, at address, timeout time.Duration) (health, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var h health
	conn, err := at.dial(ctx)
	if nobody(err) {
		return h, fmt.Errorf("%w: %w", errSilent, err)
	}
	if err != nil {
		return h, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	res, body, err := askHealth(conn)
	switch {
	case ctx.Err() != nil:
		return h, fmt.Errorf("something listens, and did not answer GET /health within %v", timeout)
	case err != nil:
		return h, fmt.Errorf("something listens, and GET /health fails: %w", err)
	}
	if res.StatusCode != http.StatusOK || json.Unmarshal(body, &h) != nil || h.Status != "ok" || len(numbers(h.Version)) == 0 {
		return h, fmt.Errorf("what answers is not smolvm: GET /health gives %s: %s", res.Status, Bound(string(body), 200))
	}
	return h, nil
}

// askHealth asks by hand: an http.Transport swallows the words of a server that
// speaks first, and prints them.
func askHealth(conn net.Conn) (*http.Response, []byte, error) {
	// What cannot be written because the other end has said enough can be read still.
	_, werr := io.WriteString(conn, "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
	res, err := http.ReadResponse(bufio.NewReader(io.LimitReader(conn, 128<<10)), nil)
	if err != nil {
		return nil, nil, errors.Join(err, werr)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, 64<<10))
	return res, body, err
}
