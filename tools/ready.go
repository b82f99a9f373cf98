package tools

import (
	"context"
	"errors"
	"strings"
	"time"

	"smol-mcp/fleet"
)

// Readiness waits: the first tries come fast, since most machines answer at
// once, later ones spare a machine that is busy booting.
const (
	probeTimeout = 10 * time.Second
	firstPause   = 50 * time.Millisecond
	longestPause = time.Second
)

// waitReady returns when the machine's workload answers a script, or has shown
// that it runs although it has no shell. It gives up at once where waiting
// cannot help, and with NOT_READY after limit.
func (c *call) waitReady(ctx context.Context, name string, limit time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errReadyLimit)
	defer cancel()
	c.met(name) // it was just started: no need to ask whether it runs
	var last error
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		_, err := c.inGuest(ctx, name, scripts.probe(), fleet.Command{Timeout: probeTimeout, Brief: true})
		if err == nil || errors.Is(err, errNoShell) || c.answersTrue(ctx, name, err) {
			return nil
		}
		if ctx.Err() == nil {
			last = err
		}
		if isPermanent(err) {
			return err
		}
		if err := c.exitedEarly(ctx, name); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return notReady(ctx, name, limit, last)
		case <-time.After(pause):
		}
	}
}

// answersTrue tries a program without a shell where the engine answered that the
// script did not run, in words that we do not know for a missing shell.
func (c *call) answersTrue(ctx context.Context, name string, err error) bool {
	if !fleet.MaybeDone(err) || isPermanent(err) {
		return false
	}
	res, err := c.fleet.Exec(ctx, name, fleet.Command{Argv: []string{"true"}, Timeout: probeTimeout})
	if err != nil || res.ExitCode != 0 {
		return false
	}
	c.noShell(name)
	return true
}

// exitedEarly returns an error when the machine is down again although it was
// started, with what its console said last.
func (c *call) exitedEarly(ctx context.Context, name string) error {
	m, err := c.fleet.Get(ctx, name)
	if err != nil {
		if isPermanent(err) {
			return err
		}
		return nil
	}
	if m.State != fleet.Stopped && m.State != fleet.Failed {
		return nil
	}
	e := &fleet.Error{Code: fleet.CodeNotReady, Op: "wait for machine " + name, Why: "it went to state " + string(m.State) + " before it was ready"}
	if page, err := c.fleet.Logs(ctx, name, fleet.LogQuery{Tail: 5}); err == nil && len(page.Lines) > 0 {
		e.Why += "; its console ends with: " + fleet.Bound(strings.Join(page.Lines, " | "), 400)
	}
	return e
}

var errReadyLimit = errors.New("the machine did not become ready in time")

func notReady(ctx context.Context, name string, limit time.Duration, last error) error {
	if !errors.Is(context.Cause(ctx), errReadyLimit) {
		return &fleet.Error{Code: fleet.CodeCancelled, Op: "wait for machine " + name, Why: "the call was cancelled", Err: context.Cause(ctx)}
	}
	e := &fleet.Error{Code: fleet.CodeNotReady, Op: "wait for machine " + name, Err: last,
		Why:  "no answer from its workload within " + limit.String(),
		Next: "look at machine-logs; a slow image may need SMOL_MCP_READY_TIMEOUT_SECS raised"}
	if last != nil {
		e.Why += "; the last try said: " + fleet.Bound(last.Error(), 300)
	}
	return e
}

// isPermanent reports whether trying again cannot help.
func isPermanent(err error) bool {
	switch fleet.CodeOf(err) {
	case fleet.CodeNotFound, fleet.CodeConflict, fleet.CodeInvalid, fleet.CodeUnsupported, fleet.CodeQuota, fleet.CodePortInUse,
		fleet.CodeUnavailable, fleet.CodeCloudNotConfigured, fleet.CodeCloudUnauthorized:
		return true
	}
	return false
}
