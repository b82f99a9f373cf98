package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"
)

// How often a request is sent at most.
const (
	cloudTries = 3 // after a failure of the service or of the network
	cloudHeld  = 4 // when the rate limit refused it
)

// How long is waited before, where the service does not say.
const (
	firstBackoff   = 250 * time.Millisecond // doubled each time, give or take a half
	longestBackoff = 4 * time.Second
)

// ask sends r and decodes the JSON answer into out.
func (c *Cloud) ask(ctx context.Context, r request, out any) error {
	return c.try(ctx, r, func(a *answer) (bool, error) {
		data, err := a.read()
		if err != nil {
			return true, err
		}
		if err := json.Unmarshal(data, out); err != nil {
			return false, r.fail(CodeInternal, r.effect, fmt.Errorf("the answer is not the JSON we know: %w", err))
		}
		return false, nil
	})
}

// try sends r until use has what it needs of the answer, or sending it again is
// not safe or of no use. use says whether it can begin anew with another answer.
func (c *Cloud) try(ctx context.Context, r request, use func(*answer) (again bool, err error)) error {
	maybe := false
	for n := 1; ; n++ {
		again, err := c.attempt(ctx, r, use)
		if maybe && r.method == http.MethodDelete && CodeOf(err) == CodeNotFound {
			return nil // an earlier one was carried out
		}
		if err == nil {
			return nil
		}
		maybe = maybe || MaybeDone(err)
		wait, ok := c.nextTry(ctx, r, err, n)
		if !ok || !again {
			if maybe {
				err = unsure(err)
			}
			return advise(err)
		}
		c.opts.Log.Debug("the cloud is asked again", "op", r.op, "try", n, "wait", wait, "err", err)
		if wait > 0 && c.opts.Pause(ctx, wait) != nil {
			return r.fail(CodeOf(ctx.Err()), maybe, fmt.Errorf("given up while it waited to try again: %w; the last try said: %v", ctx.Err(), err))
		}
	}
}

// attempt sends r once, with the key of now, when the rate limit lets it.
func (c *Cloud) attempt(ctx context.Context, r request, use func(*answer) (bool, error)) (again bool, err error) {
	token := r.key
	if token == "" && !r.keyless {
		if token, err = c.key(ctx, r.op); err != nil {
			return false, err
		}
	}
	if err := c.limit.wait(ctx); err != nil {
		return false, r.fail(CodeOf(err), false, fmt.Errorf("it was not sent: the service's rate limit was waited for: %w", err))
	}
	if token != "" {
		r.header = http.Header{"Authorization": {"Bearer " + token}}
	}
	a, err := c.wire.open(ctx, r)
	if err != nil {
		c.noteRefusal(token, err)
		return true, err
	}
	defer a.Close()
	c.limit.passed(a.Header)
	return use(a)
}

// noteRefusal remembers what a failed request says about those to come.
func (c *Cloud) noteRefusal(token string, err error) {
	var e *Error
	if !errors.As(err, &e) {
		return
	}
	switch e.status {
	case http.StatusTooManyRequests:
		c.limit.refused(e.after)
	case http.StatusUnauthorized:
		if token != "" {
			c.refuseKey(token, e)
		}
	}
}

// nextTry says whether r may be sent again after err of the nth time, and how
// long to wait before.
func (c *Cloud) nextTry(ctx context.Context, r request, err error, n int) (wait time.Duration, ok bool) {
	var e *Error
	if !errors.As(err, &e) || r.body != nil || ctx.Err() != nil {
		return 0, false
	}
	switch e.status {
	case http.StatusTooManyRequests: // refused before anything was done; the limiter does the waiting
		return 0, n < cloudHeld && e.after <= longestHold
	case http.StatusUnauthorized: // the source may have a newer key
		return 0, n == 1 && r.key == "" && c.newerKey(ctx)
	}
	safe := !r.effect || r.twice || !e.MaybeDone && e.Code == CodeUnreachable
	if !safe || !weather(e) || n >= cloudTries || e.after > longestHold {
		return 0, false
	}
	wait = min(firstBackoff<<(n-1), longestBackoff)
	return max(e.after, wait/2+rand.N(wait)), true
}

// weather reports whether a failure is of the service or the network, and not of what
// was asked.
func weather(e *Error) bool {
	return e.Code == CodeUnreachable || e.status >= http.StatusInternalServerError && e.status != http.StatusNotImplemented
}

// passing reports whether a later look may succeed where one failed with err.
func passing(err error) bool {
	var e *Error
	return errors.As(err, &e) && (weather(e) || e.status == http.StatusTooManyRequests)
}

// advise adds what to do to refusals that the service explains.
func advise(err error) error {
	var e *Error
	if !errors.As(err, &e) || e.Next != "" {
		return err
	}
	next := ""
	switch {
	case e.status == http.StatusForbidden && strings.HasPrefix(e.Why, pageSaid):
		next = "something between refuses it, as a proxy or a filter of contents: the key may be good; put what was sent another way"
	case e.status == http.StatusForbidden:
		next = "use a key with the scope that it names, or with the scope admin"
	case e.Code == CodeQuota && e.status == http.StatusPaymentRequired:
		next = "see to the account's budget or payment; deleting machines ends their cost"
	case e.Code == CodeQuota:
		next = "delete machines that are no longer needed, stopped ones count too, or raise the plan's limit"
	case e.Code == CodeRateLimited && e.after > 0:
		next = fmt.Sprintf("wait %v and try again", e.after)
	case e.status >= 300 && e.status < 400:
		next = "set SMOL_CLOUD_URL to the address of the API itself"
	case e.Code == CodeInternal:
		next = "see how things stand before you try again; if it goes on, tell the service's support, with the x-request-id where there is one"
	default:
		return err
	}
	told := *e
	told.Next = next
	return &told
}

// statusOf is the HTTP status of the refusal in err; 0 when it is none.
func statusOf(err error) int {
	var e *Error
	if errors.As(err, &e) {
		return e.status
	}
	return 0
}

// gone reports whether err says that the machine itself is not there, and not a
// file or a route of it.
func gone(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.status == http.StatusNotFound && e.Code == CodeNotFound && !fileGone.in(e.Why)
}

// noMachine is the refusal of a machine's own route. That the service has, so that a
// 404 without a word is about the machine.
func noMachine(err error) error {
	if statusOf(err) != http.StatusNotFound || CodeOf(err) != CodeUnsupported {
		return err
	}
	var e *Error
	errors.As(err, &e)
	told := *e
	told.Code = CodeNotFound
	return &told
}

// notTheService is the refusal of a route that the service always has: a 404 comes from
// something else at its address, and says nothing of machines.
func notTheService(err error) error {
	var e *Error
	if !errors.As(err, &e) || e.status != http.StatusNotFound {
		return err
	}
	return &Error{Code: CodeUnreachable, Op: e.Op, Why: Bound("something else than the service answers: "+e.Why, MaxWhy),
		Next: "try again later; if it goes on, set SMOL_CLOUD_URL to the address of the API", Err: err}
}

// noRoute reports whether err says that the service has no such route.
func noRoute(err error) bool {
	switch statusOf(err) {
	case http.StatusMethodNotAllowed, http.StatusNotImplemented:
		return true
	case http.StatusNotFound:
		return CodeOf(err) == CodeUnsupported
	}
	return false
}

// unsure is err with the warning that what was asked for may have been done all the
// same.
func unsure(err error) error {
	var e *Error
	if !errors.As(err, &e) || e.MaybeDone {
		return err
	}
	told := *e
	told.MaybeDone = true
	return &told
}

// during returns err as a failure of op.
func during(op string, err error) error {
	var e *Error
	if !errors.As(err, &e) || e.Op == op {
		return err
	}
	told := *e
	told.Op = op
	return &told
}
