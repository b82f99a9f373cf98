package fleet

import (
	"context"
	"errors"
	"fmt"
	"net/http"
)

// Branch copies a running machine. The copy has the time-to-live that the service
// gives it, which the answer shows: the request cannot carry one.
func (c *Cloud) Branch(ctx context.Context, source string, spec BranchSpec) (Machine, error) {
	op := "branch machine " + source + " to " + spec.Name
	if err := CheckAnyName(source); err != nil {
		return Machine{}, err
	}
	if err := CheckName(spec.Name); err != nil {
		return Machine{}, err
	}
	var made cloudMachine
	err := c.with(ctx, op, source, func(id string) (err error) {
		if made, err = c.branchOf(ctx, op, id, spec.Name); err != nil {
			return err
		}
		if spec.StopSource {
			err = c.freeze(ctx, op, id, made)
		}
		return err
	})
	if err != nil {
		return Machine{}, err
	}
	if made.state() == Starting {
		if made, err = c.awaitUp(ctx, request{op: op, effect: true}, made, nil); err != nil {
			return Machine{}, c.dropChild(ctx, op, made, err)
		}
	}
	return made.machine(), nil
}

// branchRoutes are the two words of the service for it, the newer first.
func branchRoutes() []string { return []string{"/branches", "/fork"} }

// branchOf makes the copy by the route that the service has.
func (c *Cloud) branchOf(ctx context.Context, op, id, name string) (m cloudMachine, err error) {
	for _, route := range branchRoutes() {
		if c.can.lacks(route) {
			continue
		}
		r := request{op: op, method: http.MethodPost, path: cloudPath(id, route), wait: cloudBranchWait, effect: true, json: map[string]string{"name": name}}
		m, err = c.sendNamed(ctx, landing{r: r, name: name, ours: c.isChildOf(ctx, op, id)})
		missing := noRoute(err)
		if !missing && gone(err) { // an unknown route and an unknown machine may look alike
			if _, lookErr := c.look(ctx, op, id); lookErr != nil {
				return m, lookErr
			}
			missing = true
		}
		if !missing {
			if err == nil {
				c.names.put(m.label(), knownMachine{id: m.id})
			}
			return m, err
		}
		c.can.without(route)
	}
	c.can.retry(branchRoutes()...) // next time; one strange answer is not for ever
	return m, &Error{Code: CodeUnsupported, Op: op, Why: "the service has no route to branch machines", Err: err}
}

// isChildOf reports whether a machine is a branch of the one of that id: it inherits the
// marks of its source, whoever made that, which is the most that it can show.
func (c *Cloud) isChildOf(ctx context.Context, op, id string) func(cloudMachine) (ours, told bool) {
	return func(m cloudMachine) (ours, told bool) {
		if m.env[ownerMark] == "" {
			return false, false
		}
		source, err := c.look(ctx, op, id)
		if err != nil {
			return false, false
		}
		return m.env[ownerMark] == source.env[ownerMark] && m.env[createMark] == source.env[createMark], true
	}
}

// freeze suspends the source of a branch.
func (c *Cloud) freeze(ctx context.Context, op, id string, made cloudMachine) error {
	_, err := c.suspend(ctx, op, id)
	if err == nil {
		return nil
	}
	return c.dropChild(ctx, op, made, fmt.Errorf("the source could not be suspended: %w", err))
}

// dropChild deletes a branch that cannot be handed out because of cause.
func (c *Cloud) dropChild(ctx context.Context, op string, made cloudMachine, cause error) error {
	var e *Error
	told := &Error{Code: CodeOf(cause), Op: op, Why: Bound(cause.Error(), MaxWhy), Err: cause}
	if errors.As(cause, &e) {
		told.Next = e.Next
	}
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), cloudStopWait)
	defer cancel()
	if _, err := c.remove(undo, op, made.id); err != nil && CodeOf(err) != CodeNotFound {
		told.MaybeDone = true
		told.Why = Bound(told.Why+"; and the branch could not be deleted: "+err.Error(), MaxWhy)
	}
	return told
}
