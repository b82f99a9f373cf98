//go:build unix

package engine

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"smol-mcp/fleet/engine/image"
	"smol-mcp/fleet/engine/machine"
)

// bodies have these bounds in bytes.
const (
	jsonLimit = 2 << 20
	fileLimit = 100 << 20
)

// refusal is an answer that is not 2xx. Most are JSON with a code; some are the
// plain text of smolvm's HTTP library, or nothing at all.
type refusal struct {
	status int
	code   string // empty: plain text
	text   string
}

func (r *refusal) Error() string { return r.text }

func badRequest(format string, args ...any) *refusal {
	return &refusal{http.StatusBadRequest, "BAD_REQUEST", fmt.Sprintf(format, args...)}
}

func plain(status int, format string, args ...any) *refusal {
	return &refusal{status, "", fmt.Sprintf(format, args...)}
}

// failed is a failure of what a machine or its guest was asked for.
func failed(op string, err error) error {
	var known *machine.Error
	var said *refusal
	if errors.As(err, &known) || errors.As(err, &said) {
		return err
	}
	return &refusal{http.StatusInternalServerError, "INTERNAL_ERROR", "agent operation failed: " + op + ": " + err.Error()}
}

// maxError bounds the text of an error in bytes.
const maxError = 2000

// refuse writes err as an answer.
func refuse(w http.ResponseWriter, err error) {
	r := &refusal{http.StatusInternalServerError, "INTERNAL_ERROR", err.Error()}
	var known *machine.Error
	var ref *image.ReferenceError
	switch {
	case errors.As(err, &known):
		r.status, r.code = kindStatus(known.Kind)
	case errors.As(err, &ref):
		r.status, r.code = http.StatusBadRequest, "BAD_REQUEST"
	default:
		errors.As(err, &r)
	}
	text := strings.ToValidUTF8(r.text, "\ufffd")
	if len(text) > maxError {
		text = strings.ToValidUTF8(text[:maxError], "") + " [cut]"
	}
	if r.code == "" {
		w.Header()["Content-Type"] = nil
		if text != "" {
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		}
		w.WriteHeader(r.status)
		io.WriteString(w, text)
		return
	}
	body, _ := json.Marshal(map[string]string{"error": text, "code": r.code}) // strings always encode
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(r.status)
	w.Write(body)
}

func kindStatus(kind machine.Kind) (int, string) {
	switch kind {
	case machine.NotFound:
		return http.StatusNotFound, "NOT_FOUND"
	case machine.Conflict:
		return http.StatusConflict, "CONFLICT"
	case machine.PortInUse:
		return http.StatusConflict, "PORT_IN_USE"
	case machine.NotRunning:
		return http.StatusConflict, "NOT_RUNNING"
	}
	return http.StatusNotImplemented, "UNSUPPORTED"
}

// answer writes v as JSON.
func answer(w http.ResponseWriter, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", fmt.Sprint(len(body)))
	_, err = w.Write(body)
	_ = err // the client is gone
	return nil
}

// decode reads a JSON body. Fields that the schema lacks are refused.
func decode(r *http.Request, v any, schema string) error {
	kind, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	if strings.TrimSpace(kind) != "application/json" {
		return plain(http.StatusUnsupportedMediaType, "Expected request with `Content-Type: application/json`")
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, jsonLimit+1))
	if err != nil {
		return plain(http.StatusBadRequest, "Failed to buffer the request body: %v", err)
	}
	if len(body) > jsonLimit {
		return plain(http.StatusRequestEntityTooLarge, "Failed to buffer the request body: length limit exceeded")
	}
	var fields map[string]json.RawMessage
	if names := schemaFields(schema); schema != "" && json.Unmarshal(body, &fields) == nil {
		for name := range fields {
			if !slices.Contains(names, name) {
				return unprocessable("unknown field `%s`, expected one of `%s`", name, strings.Join(names, "`, `"))
			}
		}
	}
	d := json.NewDecoder(bytes.NewReader(body))
	err = d.Decode(v)
	var syntax *json.SyntaxError
	switch {
	case err == nil && d.More():
		return plain(http.StatusBadRequest, "Failed to parse the request body as JSON: trailing characters")
	case err == nil:
		return nil
	case errors.As(err, &syntax), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return plain(http.StatusBadRequest, "Failed to parse the request body as JSON: %v", err)
	}
	return unprocessable("%v", err)
}

func unprocessable(format string, args ...any) *refusal {
	return plain(http.StatusUnprocessableEntity, "Failed to deserialize the JSON body into the target type: "+format, args...)
}
