package fleet

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// refusal turns an answer that is not 2xx into the Error of r. Servers refuse in
// several shapes: JSON with error and code, plain text of their HTTP library,
// nothing at all, or a page of some proxy.
func (r request) refusal(res *http.Response, body []byte, took time.Duration, denied Code) *Error {
	text, word := serverWords(res, body)
	code, maybe := r.judge(res.StatusCode, word, text, took, denied)
	mark := ""
	if code == CodeTimeout && r.guest {
		mark = "; the guest does not answer, what was asked of it may still be going on"
	}
	mark += fmt.Sprintf(" (HTTP %d", res.StatusCode)
	for _, part := range []string{word, traceOf(res.Header)} {
		if part != "" {
			mark += ", " + Bound(part, 64)
		}
	}
	e := &Error{Code: code, Op: r.op, MaybeDone: maybe && r.effect, status: res.StatusCode, after: retryAfter(res.Header, time.Now())}
	if code == CodeInvalid && res.StatusCode == http.StatusRequestEntityTooLarge {
		text = "too large: " + text
	}
	e.Why = Bound(text, MaxWhy-len(mark)-1) + mark + ")"
	if code == CodeConflict && diskFull.in(text) {
		e.Next = "the guest's disk is full: free some of it with run-command, and call again"
	}
	if code == CodePortInUse {
		if port := portOf(e.Why); port != "" {
			e.Next = "free port " + port + " of this computer, or publish another"
		}
	}
	return e
}

// judge reads the kind of failure from the status, and from the text where the
// status says nothing. maybe tells that the work may have been done or be going on.
func (r request) judge(status int, word, text string, took time.Duration, denied Code) (code Code, maybe bool) {
	switch status {
	case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
		return CodeInternal, false // never followed: the key would go where it leads
	case http.StatusUnprocessableEntity:
		if overQuota.in(text) {
			return CodeQuota, false
		}
		return CodeInvalid, false
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType:
		return CodeInvalid, false
	case http.StatusPaymentRequired:
		return CodeQuota, false
	case http.StatusUnauthorized, http.StatusForbidden:
		return denied, false
	case http.StatusNotFound:
		switch {
		case text == pageSaid: // it comes from something between, which knows of no machine
			return CodeUnreachable, true
		case text == nothingSaid && word == "": // no handler answered, so nothing was looked up
			return CodeUnsupported, false
		}
		return CodeNotFound, false
	case http.StatusMethodNotAllowed, http.StatusNotImplemented:
		return CodeUnsupported, false
	case http.StatusConflict:
		if word == "PORT_IN_USE" || portTaken.in(text) {
			return CodePortInUse, false
		}
		if word == "NOT_RUNNING" {
			return CodeNotReady, false
		}
		return CodeConflict, false
	case http.StatusRequestTimeout, http.StatusGatewayTimeout:
		return CodeTimeout, true
	case http.StatusTooManyRequests:
		return CodeRateLimited, false
	case http.StatusServiceUnavailable, http.StatusBadGateway: // it may come from something between
		return CodeUnreachable, true
	}
	return r.judgeText(text, took)
}

// The texts by which answers of one status can be told apart, in lower case.
var (
	portTaken   = phrases{"address already in use", "eaddrinuse", "port is already allocated"}
	fileMissing = phrases{"no such file"}
	fileKind    = phrases{"not a regular file", "is a directory"}
	diskFull    = phrases{"no space left", "(os error 28)", "disk quota exceeded"}
	tooMuch     = phrases{"output too large", "output exceeded"}
	overQuota   = phrases{"quota exceeded", "over quota", "limit reached", "limit exceeded", "plan allows"}
	timedOut    = phrases{"timed out", "timeout", "time out"}
	tryAgain    = phrases{"os error 11)", "os error 35)"}
)

type phrases []string

// in reports whether one of the phrases stands in text.
func (p phrases) in(text string) bool {
	text = strings.ToLower(text)
	return slices.ContainsFunc(p, func(s string) bool { return strings.Contains(text, s) })
}

func (r request) judgeText(text string, took time.Duration) (Code, bool) {
	switch {
	case portTaken.in(text):
		return CodePortInUse, false
	case timedOut.in(text), r.guest && tryAgain.in(text) && r.nearDeadline(took):
		return CodeTimeout, true
	case r.guest && diskFull.in(text):
		return CodeConflict, false
	case r.guest && fileMissing.in(text):
		return CodeNotFound, false
	case r.guest && fileKind.in(text):
		return CodeInvalid, false
	case r.guest && tooMuch.in(text):
		return CodeInvalid, true
	}
	return CodeInternal, true
}

// nearDeadline reports whether an EAGAIN after this time is the end of the
// server's wait for the guest, and not the guest being short of something.
func (r request) nearDeadline(took time.Duration) bool {
	if r.killAfter > 0 {
		return took >= r.killAfter*9/10
	}
	return took >= 2*time.Second
}

// The texts of refusals whose body has no words of the server: an empty one, and the
// page of a proxy or of another server.
const (
	nothingSaid = "refused without a word"
	pageSaid    = "something answered with a web page"
)

// serverWords returns the server's own text and code word.
func serverWords(res *http.Response, body []byte) (text, word string) {
	trimmed := strings.TrimSpace(string(body))
	switch {
	case trimmed == "":
		return nothingSaid, ""
	case strings.HasPrefix(trimmed, "<") || strings.HasPrefix(res.Header.Get("Content-Type"), "text/html"):
		return pageSaid, ""
	}
	var said struct {
		Error   any    `json:"error"`
		Message string `json:"message"`
		Detail  string `json:"detail"`
		Title   string `json:"title"`
		Code    string `json:"code"`
	}
	if json.Unmarshal(body, &said) != nil {
		return trimmed, ""
	}
	inner, _ := said.Error.(map[string]any)
	direct, _ := said.Error.(string)
	nested, _ := inner["message"].(string)
	for _, text := range []string{said.Detail, direct, nested, said.Message, said.Title} {
		if text != "" {
			return text, said.Code
		}
	}
	return trimmed, said.Code
}

// traceOf is the server's name for the exchange, to look it up in its log.
func traceOf(h http.Header) string {
	if id := h.Get("X-Trace-Id"); id != "" {
		return "trace " + id
	}
	if id := h.Get("X-Request-Id"); id != "" {
		return "x-request-id " + id
	}
	return ""
}

// retryAfter is how long a server asks to be left alone; 0 when it does not say. A
// date is taken by the server's own clock where it tells it.
func retryAfter(h http.Header, now time.Time) time.Duration {
	said := strings.TrimSpace(h.Get("Retry-After"))
	if secs, err := strconv.Atoi(said); err == nil {
		return time.Duration(min(max(secs, 0), 1<<20)) * time.Second
	}
	at, err := http.ParseTime(said)
	if err != nil {
		return 0
	}
	if there, err := http.ParseTime(h.Get("Date")); err == nil {
		now = there
	}
	return max(at.Sub(now), 0)
}

// portOf finds the port that a text names, behind "port" or a colon.
func portOf(text string) string {
	for i := range len(text) {
		before := strings.ToLower(strings.TrimRight(text[:i], " ="))
		rest := strings.TrimLeft(text[i:], "0123456789")
		digits := text[i : len(text)-len(rest)]
		if len(digits) == 0 || len(digits) > 5 || strings.HasPrefix(rest, "]") { // as in [::1]
			continue
		}
		if strings.HasSuffix(before, ":") || strings.HasSuffix(before, "port") {
			return digits
		}
	}
	return ""
}
