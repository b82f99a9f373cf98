package fleettest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
)

// Bounds of request bodies in bytes.
const (
	jsonLimit = 2 << 20
	fileLimit = 100 << 20
)

// call is one request on its way through the server.
type call struct {
	*http.Request
	server  *smolvmServer
	version string // of the release that answers
	vars    map[string]string
	body    *countedBody
	fault   *SmolvmFault
}

// reply is what goes back, whole.
type reply struct {
	status int
	kind   string // Content-Type; none when empty
	body   []byte
}

func jsonReply(v any) reply {
	b, err := json.Marshal(v)
	if err != nil {
		return failed("encode: %v", err)
	}
	return reply{http.StatusOK, "application/json", b}
}

func textReply(status int, format string, args ...any) reply {
	return reply{status, "text/plain; charset=utf-8", fmt.Appendf(nil, format, args...)}
}

// refuse is the API's own kind of error.
func refuse(status int, code, format string, args ...any) *reply {
	b, _ := json.Marshal(map[string]string{"error": fmt.Sprintf(format, args...), "code": code})
	return &reply{status, "application/json", b}
}

func badRequest(format string, args ...any) *reply {
	return refuse(http.StatusBadRequest, "BAD_REQUEST", format, args...)
}

func conflict(format string, args ...any) *reply {
	return refuse(http.StatusConflict, "CONFLICT", format, args...)
}

// failed is how smolvm reports whatever goes wrong in a guest.
func failed(format string, args ...any) reply {
	return *refuse(http.StatusInternalServerError, "INTERNAL_ERROR", "agent operation failed: "+format, args...)
}

// read returns the request's body.
func (r *call) read(limit int64) ([]byte, *reply) {
	b, err := io.ReadAll(io.LimitReader(r.body, limit+1))
	switch {
	case err != nil:
		return nil, ref(textReply(http.StatusBadRequest, "Failed to buffer the request body: %v", err))
	case int64(len(b)) > limit:
		return nil, ref(textReply(http.StatusRequestEntityTooLarge, "Failed to buffer the request body: length limit exceeded"))
	}
	return b, nil
}

// decode reads the JSON body into v. fields are the accepted ones where the
// release refuses others, else nil.
func (r *call) decode(v any, fields []string) *reply {
	kind, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	if kind != "application/json" {
		return ref(textReply(http.StatusUnsupportedMediaType, "Expected request with `Content-Type: application/json`"))
	}
	b, re := r.read(jsonLimit)
	if re != nil {
		return re
	}
	if fields != nil {
		var raw map[string]json.RawMessage
		if json.Unmarshal(b, &raw) == nil {
			for name := range raw {
				if !slices.Contains(fields, name) {
					return unprocessable("unknown field `%s`, expected one of `%s`", name, strings.Join(fields, "`, `"))
				}
			}
		}
	}
	d := json.NewDecoder(bytes.NewReader(b))
	err := d.Decode(v)
	var syntax *json.SyntaxError
	switch {
	case err == nil && d.More():
		return ref(textReply(http.StatusBadRequest, "Failed to parse the request body as JSON: trailing characters"))
	case err == nil:
		return nil
	case errors.As(err, &syntax), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return ref(textReply(http.StatusBadRequest, "Failed to parse the request body as JSON: %v", err))
	}
	return unprocessable("%v", err)
}

func unprocessable(format string, args ...any) *reply {
	return ref(textReply(http.StatusUnprocessableEntity,
		"Failed to deserialize the JSON body into the target type: "+format+" at line 1 column 2", args...))
}

// flag reads a boolean of the query.
func (r *call) flag(name string) (bool, *reply) {
	switch v := r.URL.Query().Get(name); v {
	case "true":
		return true, nil
	case "", "false":
		if v == "" && r.URL.Query().Has(name) {
			break
		}
		return false, nil
	}
	return false, ref(textReply(http.StatusBadRequest,
		"Failed to deserialize query string: %s: provided string was not `true` or `false`", name))
}

func ref(re reply) *reply { return &re }

// countedBody counts what is read of a request.
type countedBody struct {
	r io.Reader
	n atomic.Int64
}

func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	b.n.Add(int64(n))
	return n, err
}

// match compares an escaped path with a pattern like /a/{name}/files/{path...}
// and returns the variables, unescaped.
func match(pattern, escaped string) (map[string]string, bool, error) {
	vars := map[string]string{}
	want, got := strings.Split(pattern, "/"), strings.Split(escaped, "/")
	for i, w := range want {
		name, rest := strings.CutSuffix(strings.Trim(w, "{}"), "...")
		isVar := strings.HasPrefix(w, "{")
		switch {
		case i >= len(got) || !isVar && w != got[i]:
			return nil, false, nil
		case isVar:
			value := got[i]
			if rest {
				value, got = strings.Join(got[i:], "/"), got[:i+1]
			}
			plain, err := url.PathUnescape(value)
			if err != nil {
				return nil, true, err
			}
			vars[name] = plain
		}
	}
	return vars, len(got) == len(want), nil
}
