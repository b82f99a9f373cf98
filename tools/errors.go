package tools

import (
	"context"
	"encoding/json"
	"errors"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"smol-mcp/fleet"
	"smol-mcp/store"
)

// Codes that come from the records rather than from a fleet.
const (
	codeStateBusy fleet.Code = "STATE_BUSY"
	codeStateFull fleet.Code = "STATE_FULL"
)

// maxErrorText bounds an error result in bytes; a client was seen to cut such texts
// at 11,000.
const maxErrorText = 4096

// errorResult is the one place where an error becomes words for the agent:
// "CODE: what failed. Why. Next step." and the code in _meta.
func errorResult(err error) *mcp.CallToolResult {
	e := explain(err)
	parts := []string{sentence(e.Op), sentence(e.Why), sentence(nextStep(e))}
	if e.MaybeDone {
		parts = append(parts[:2], "It may have been done all the same.", parts[2])
	}
	text := string(e.Code) + ": " + strings.Join(nonEmpty(parts), " ")
	return &mcp.CallToolResult{
		Meta:    mcp.Meta{"code": string(e.Code)},
		Content: []mcp.Content{&mcp.TextContent{Text: fleet.Bound(text, maxErrorText)}},
		IsError: true,
	}
}

// explain brings any error into the three parts.
func explain(err error) *fleet.Error {
	var e *fleet.Error
	var exists *store.ExistsError
	switch {
	case errors.As(err, &e):
		return e
	case errors.As(err, &exists):
		return &fleet.Error{Code: fleet.CodeConflict, Op: "record machine " + exists.Record.Name, Why: exists.Error(),
			Next: "choose another name, or try again when it is gone"}
	case errors.Is(err, store.ErrBusy):
		return &fleet.Error{Code: codeStateBusy, Op: "read the machine records", Why: err.Error(), Next: "try again in a few seconds; nothing was changed"}
	case errors.Is(err, store.ErrKept):
		return &fleet.Error{Code: codeStateFull, Op: "find out whose the machine is", Why: err.Error(), Next: "the operator of the server has to see to that; nothing was changed"}
	case errors.Is(err, store.ErrFull):
		return &fleet.Error{Code: codeStateFull, Op: "write the machine records", Why: err.Error(), Next: "delete machines that are no longer needed, or free space there; nothing was created"}
	case errors.Is(err, store.ErrPlace):
		return &fleet.Error{Code: codeStateFull, Op: "use the machine records", Why: err.Error(), Next: "give the server a private directory, as with SMOL_MCP_RUNTIME_DIR or XDG_STATE_HOME; nothing was created"}
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return &fleet.Error{Code: fleet.CodeOf(err), Op: "finish the call", Why: err.Error()}
	}
	return &fleet.Error{Code: fleet.CodeInternal, Op: "finish the call", Why: fleet.Bound(err.Error(), fleet.MaxWhy)}
}

// nextStep is the error's own, else what usually helps.
func nextStep(e *fleet.Error) string {
	if e.Next != "" {
		return e.Next
	}
	switch e.Code {
	case fleet.CodeNotFound:
		return "use list-machines for the names that exist"
	case fleet.CodeConflict:
		return "use get-machine to see its state"
	case fleet.CodeInvalid:
		return "correct the argument and call again"
	case fleet.CodeNotReady:
		return "call start-machine to wait on, or machine-logs to see why"
	case fleet.CodeTimeout, fleet.CodeUnreachable:
		return "use list-machines to see how things stand before trying again"
	case fleet.CodeInternal:
		return "try again; if it goes on, the engine's log says more (smol-mcp status names the directory)"
	case fleet.CodeUnavailable:
		return "fix the cause and call again: each call looks anew"
	case fleet.CodeUnsupported:
		return "do without it; the resource smol://targets lists what this engine cannot do"
	case fleet.CodeRateLimited:
		return "wait and try again"
	}
	return ""
}

func sentence(s string) string {
	s = strings.TrimSpace(s)
	if s == "" || strings.ContainsRune(".!?", rune(s[len(s)-1])) {
		return s
	}
	return s + "."
}

func nonEmpty(parts []string) []string {
	var kept []string
	for _, p := range parts {
		if p != "" {
			kept = append(kept, p)
		}
	}
	return kept
}

// invalid is an argument that breaks a rule.
func invalid(what, why string) error {
	return &fleet.Error{Code: fleet.CodeInvalid, Op: what, Why: why}
}

// nearby adds the machine names that look like name to a not-found error.
func (c *call) nearby(ctx context.Context, name string, err error) error {
	var e *fleet.Error
	if !errors.As(err, &e) || e.Code != fleet.CodeNotFound || e.Next != "" {
		return err
	}
	machines, listErr := c.fleet.List(ctx)
	if listErr != nil {
		return err
	}
	named := *e
	var near, all []string
	for _, m := range machines {
		all = append(all, m.Name)
		if looksLike(m.Name, name) {
			near = append(near, m.Name)
		}
	}
	switch {
	case len(near) > 0:
		named.Next = "did you mean " + strings.Join(near[:min(len(near), 5)], ", ") + "? list-machines shows all"
	case len(all) == 0:
		named.Next = "there is no machine at all now; create-machine makes one"
	}
	return &named
}

// looksLike reports whether two names are so close that one may be meant for the other.
func looksLike(a, b string) bool {
	a, b = strings.ToLower(a), strings.ToLower(b)
	return strings.Contains(a, b) || strings.Contains(b, a) || Distance(a, b) <= max(1, len(b)/4)
}

// Distance is how many bytes to insert, drop or change to make b of a.
func Distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// jsonText is v as JSON without the escapes that are only for HTML.
func jsonText(v any) (json.RawMessage, error) {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return json.RawMessage(strings.TrimSuffix(b.String(), "\n")), nil
}
