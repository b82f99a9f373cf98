package reaper

import (
	"context"
	"fmt"
	"slices"
	"time"

	"smol-mcp/fleet"
	"smol-mcp/store"
)

// work is one claimed record on its way out.
type work struct {
	rec      store.Record
	children []*work
	done     chan struct{}
	outcome  store.Outcome
	err      error
}

// deleteAll deletes claimed machines, branches before what they are branches
// of, and settles the records.
func (r *Reaper) deleteAll(ctx context.Context, recs []store.Record) ([]Action, error) {
	if len(recs) == 0 {
		return nil, nil
	}
	calls, cancel := leaveTime(ctx)
	defer cancel()
	jobs := plan(recs)
	slots := make(chan struct{}, parallel)
	for _, w := range jobs {
		go func() { // waited for below, each of them
			defer close(w.done)
			w.outcome, w.err = r.deleteOne(calls, w, slots)
		}()
	}
	outcomes := make([]store.Outcome, len(jobs))
	actions := make([]Action, len(jobs))
	for i, w := range jobs {
		<-w.done
		outcomes[i] = w.outcome
		actions[i] = Action{Record: w.rec, Result: w.outcome.Result, Err: w.err}
	}
	// what came of it has to be written down even when the caller's time is up
	write, stop := context.WithTimeout(context.WithoutCancel(ctx), settleTime)
	defer stop()
	left, err := r.st.Settle(write, outcomes...)
	for i := range actions {
		actions[i].Left = slices.ContainsFunc(left, func(rec store.Record) bool { return rec.UID == actions[i].Record.UID })
	}
	return actions, err
}

// leaveTime returns a context that ends early enough before ctx to settle.
func leaveTime(ctx context.Context) (context.Context, context.CancelFunc) {
	end, ok := ctx.Deadline()
	if !ok {
		return context.WithTimeout(ctx, callTime)
	}
	return context.WithDeadline(ctx, end.Add(-min(settleTime, time.Until(end)/4)))
}

// plan links each record with those among recs that are branches of it.
func plan(recs []store.Record) []*work {
	jobs := make([]*work, len(recs))
	byUID := make(map[string]*work, len(recs))
	for i, rec := range recs {
		jobs[i] = &work{rec: rec, done: make(chan struct{})}
		byUID[rec.UID] = jobs[i]
	}
	for _, w := range jobs {
		if parent := byUID[w.rec.Parent]; parent != nil && parent != w {
			parent.children = append(parent.children, w)
		}
	}
	return jobs
}

func (r *Reaper) deleteOne(ctx context.Context, w *work, slots chan struct{}) (store.Outcome, error) {
	for _, child := range w.children {
		<-child.done // ends with ctx at the latest
	}
	select {
	case slots <- struct{}{}:
		defer func() { <-slots }()
	case <-ctx.Done():
	}
	result, err := r.attempt(ctx, w)
	o := store.Outcome{Record: w.rec, Result: result}
	if result == store.Deleted || result == store.Absent || result == store.Foreign {
		return o, err
	}
	o.Error = fleet.Bound(err.Error(), fleet.MaxWhy)
	r.opts.Log.Warn("machine not deleted yet", "target", w.rec.Target, "machine", w.rec.Name, "err", err)
	return o, err
}

// attempt deletes one machine and makes sure of it. It never deletes a machine
// that only has the name of ours.
func (r *Reaper) attempt(ctx context.Context, w *work) (store.Result, error) {
	rec := w.rec
	if ctx.Err() != nil {
		return store.Failed, timeUp(rec)
	}
	for _, child := range w.children {
		if child.outcome.Result == store.Failed || child.outcome.Result == store.Blocked {
			return store.Failed, fleet.Errorf(fleet.CodeConflict, "delete machine "+rec.Name, "its branch %s is not deleted yet", child.rec.Name)
		}
	}
	f := r.fleets[rec.Target]
	if f == nil {
		return store.Blocked, fleet.Errorf(fleet.CodeUnsupported, "delete machine "+rec.Name, "target %s is not served here", rec.Target)
	}
	if result, err := r.checkAccount(ctx, rec); err != nil {
		return result, err
	}
	ref := rec.Name
	if rec.FleetID != "" {
		ref = rec.FleetID
	}
	m, err := f.Get(ctx, ref)
	switch {
	case fleet.CodeOf(err) == fleet.CodeNotFound:
		// Not there is what another account's key says too.
		if result, err := r.checkAccount(ctx, rec); err != nil {
			return result, err
		}
		return store.Absent, nil
	case err == nil && (foreign(m, rec) || r.marked(m, rec)):
		return store.Foreign, fleet.Errorf(fleet.CodeConflict, "delete machine "+rec.Name,
			"the fleet has another machine of that name, made at %s; it was kept", m.CreatedAt.UTC().Format(time.RFC3339))
	}
	if _, err := f.Delete(ctx, ref); err != nil {
		return classify(err)
	}
	return r.verify(ctx, f, ref)
}

// checkAccount refuses a record of another account than the fleet works for, and any
// as long as that is not known: who cannot see a machine must not forget it.
func (r *Reaper) checkAccount(ctx context.Context, rec store.Record) (store.Result, error) {
	account, err := r.opts.Account(ctx, rec.Target)
	switch {
	case err != nil:
		result, _ := classify(err)
		if result == store.Absent { // said of something else than the machine
			result = store.Failed
		}
		return result, err
	case account != rec.Account:
		return store.Blocked, &fleet.Error{Code: fleet.CodeCloudUnauthorized, Op: "delete machine " + rec.Name,
			Why:  fmt.Sprintf("it was made for %s account %q, and this process works for %q", rec.Target, rec.Account, account),
			Next: "run smol-mcp gc with the settings that it was made with"}
	}
	return store.Deleted, nil
}

// foreign reports whether m only has the name of rec's machine: it was made at
// another time, or, where the fleet's answer to the wish was not seen, before the
// wish. Both allow for the fleet's whole seconds.
func foreign(m fleet.Machine, rec store.Record) bool {
	const slack = 2 * time.Second
	switch {
	case m.CreatedAt.IsZero():
		return false
	case rec.FleetCreated.IsZero():
		// A name that was made up is nobody else's, whatever the clocks say.
		return rec.Chosen && m.CreatedAt.Before(rec.Created.Add(-slack))
	}
	return m.CreatedAt.Sub(rec.FleetCreated).Abs() >= slack
}

// marked reports whether m bears the mark of another installation, which chose the same
// name: our wish for it was most likely refused, and nobody here saw the answer. A branch
// has the mark of its source.
func (r *Reaper) marked(m fleet.Machine, rec store.Record) bool {
	unseen := rec.FleetID == "" && rec.Parent == ""
	return unseen && rec.Chosen && r.opts.Installation != "" && m.Owner != "" && m.Owner != r.opts.Installation
}

// verify says deleted only when the fleet does not show the machine any more.
func (r *Reaper) verify(ctx context.Context, f Fleet, ref string) (store.Result, error) {
	m, err := f.Get(ctx, ref)
	switch {
	case fleet.CodeOf(err) == fleet.CodeNotFound:
		return store.Deleted, nil
	case err != nil:
		return classify(err)
	}
	return store.Failed, fleet.Errorf(fleet.CodeInternal, "delete machine "+ref, "the fleet says that it was deleted but shows it as %s", m.State)
}

// classify says what a failed deletion means for the record.
func classify(err error) (store.Result, error) {
	switch fleet.CodeOf(err) {
	case fleet.CodeNotFound:
		return store.Absent, nil
	case fleet.CodeConflict, fleet.CodeCloudNotConfigured, fleet.CodeCloudUnauthorized, fleet.CodeUnsupported, fleet.CodeInvalid:
		return store.Blocked, err
	}
	return store.Failed, err
}

func timeUp(rec store.Record) error {
	return &fleet.Error{Code: fleet.CodeTimeout, Op: "delete machine " + rec.Name, Why: "the time for it was up; it goes on in the background"}
}
