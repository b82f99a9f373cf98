// Package reaper deletes what the records say has to go: for a session that
// deletes or ends, and for owners that ended without doing so themselves. The
// same code serves servers, the next start and smol-mcp gc. Start with
// [New]; package store says who may delete what.
package reaper

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"smol-mcp/fleet"
	"smol-mcp/store"
)

// Fleet is what the reaper asks of a place that runs machines.
type Fleet interface {
	Get(ctx context.Context, name string) (fleet.Machine, error)
	Delete(ctx context.Context, name string) (fleet.Deletion, error)
}

// Options tune a reaper; the zero value is usable.
type Options struct {
	// Served reports whether a fleet answers without being started. While it
	// reports false, sweeps leave the fleet's machines for later. Nil: always.
	Served func(target string) bool

	// Account is the fingerprint of the account that a fleet works for: records
	// of another one are left alone. While it is not known, which is an error, so
	// are all. Nil: there is one account, without a fingerprint.
	Account func(ctx context.Context, target string) (string, error)

	// Installation is our mark in fleets that others use too, see
	// store.Store.Installation. Empty: marks say nothing.
	Installation string

	Log *slog.Logger
}

// The pace of sweeps and deletions.
const (
	firstSweep = time.Second      // after Start
	sweepEvery = 10 * time.Second // give or take a fifth
	tendEvery  = 10 * time.Minute // comparisons of ledger and records
	deathPause = 200 * time.Millisecond
	claimLimit = 16          // records of one sweep
	parallel   = 8           // deletions at once
	settleTime = time.Second // kept from a deadline to write down what came of it
	callTime   = 150 * time.Second
)

// Reaper sweeps in the background between Start and Close, and deletes on
// demand.
type Reaper struct {
	st     *store.Store
	fleets map[string]Fleet
	opts   Options

	mu     sync.Mutex
	cancel context.CancelFunc // nil: not started, or closed
	done   sync.WaitGroup
}

// New returns a reaper that does nothing by itself before Start.
func New(st *store.Store, fleets map[string]Fleet, opts Options) *Reaper {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	if opts.Served == nil {
		opts.Served = func(string) bool { return true }
	}
	if opts.Account == nil {
		opts.Account = func(context.Context, string) (string, error) { return "", nil }
	}
	return &Reaper{st: st, fleets: fleets, opts: opts}
}

// Start begins to sweep in the background.
func (r *Reaper) Start() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cancel != nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	deaths := make(chan struct{}, 1)
	r.done.Go(func() { r.run(ctx, deaths) })
	r.done.Go(func() { r.watch(ctx, deaths) })
}

// Close ends the sweeps and waits for them.
func (r *Reaper) Close() {
	r.mu.Lock()
	cancel := r.cancel
	r.cancel = nil
	r.mu.Unlock()
	if cancel != nil {
		cancel()
	}
	r.done.Wait()
}

func (r *Reaper) run(ctx context.Context, deaths <-chan struct{}) {
	next := firstSweep
	var tended time.Time
	for {
		timer := time.NewTimer(next)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-deaths:
			timer.Stop()
		case <-timer.C:
		}
		if time.Since(tended) > tendEvery {
			tended = time.Now()
			if err := r.st.Tend(ctx); err != nil && ctx.Err() == nil {
				r.opts.Log.Warn("compare ledger and records", "err", err)
			}
		}
		actions, err := r.Sweep(ctx)
		if err != nil && ctx.Err() == nil {
			r.opts.Log.Warn("sweep", "err", err)
		}
		next = sweepEvery - sweepEvery/5 + rand.N(sweepEvery*2/5)
		if err == nil && len(actions) == claimLimit { // there is more; what failed is not due again at once
			next = 0
		}
	}
}

// watch asks for a sweep when a process may have died. All servers hear of it
// at once, so each waits a little while of its own.
func (r *Reaper) watch(ctx context.Context, deaths chan<- struct{}) {
	for {
		_, err := r.st.Deaths(ctx, func() {
			pause(ctx, rand.N(deathPause))
			select {
			case deaths <- struct{}{}:
			default: // one is asked for already
			}
		})
		if err != nil && ctx.Err() == nil {
			r.opts.Log.Debug("deaths are found by sweeps only", "err", err)
		}
		if !pause(ctx, sweepEvery) { // until there is something to watch
			return
		}
	}
}

// pause waits for d and reports false when ctx ends before.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// Action is what came of the deletion of one machine.
type Action struct {
	Record store.Record
	Result store.Result
	Err    error // of a deletion that is not done, or that found another machine
	Left   bool  // it stays recorded for a later sweep
}

// Sweep deletes what is due.
func (r *Reaper) Sweep(ctx context.Context) ([]Action, error) {
	return r.sweep(ctx, store.Claims{Limit: claimLimit, Wanted: r.wanted})
}

// Collect is a sweep that a person asked for: it does not wait for the time of
// the next attempt, nor, with noGrace, for crashed sessions to come back.
func (r *Reaper) Collect(ctx context.Context, noGrace bool) ([]Action, error) {
	if err := r.st.Tend(ctx); err != nil {
		return nil, err
	}
	c := store.Claims{Wanted: r.wanted, NoGrace: noGrace, Again: true}
	var all []Action
	for {
		actions, err := r.sweep(ctx, c)
		all = append(all, actions...)
		if err != nil || len(actions) == 0 || ctx.Err() != nil {
			return all, err
		}
		c.Again = false // each once, and then what had to wait for them
	}
}

func (r *Reaper) sweep(ctx context.Context, c store.Claims) ([]Action, error) {
	claimed, err := r.st.Claim(ctx, c)
	if err != nil || len(claimed) == 0 {
		return nil, err
	}
	for _, rec := range claimed {
		r.opts.Log.Info("deleting what an ended session left", "target", rec.Target, "machine", rec.Name)
	}
	return r.deleteAll(ctx, claimed)
}

// wanted reports whether sweeps can do something for a target now.
func (r *Reaper) wanted(target string) bool { return r.fleets[target] != nil && r.opts.Served(target) }

// Remove deletes the machines of recs, which the caller may delete, in
// parallel, and records what came of it. What cannot be deleted before ctx
// ends stays recorded for a later sweep. The error joins those of all.
func (r *Reaper) Remove(ctx context.Context, recs ...store.Record) error {
	if len(recs) == 0 {
		return nil
	}
	claimed, busy, err := r.st.ClaimAll(ctx, recs...)
	if err != nil {
		// The records cannot be written. Deleting is right all the same: a
		// later sweep finds the machines gone.
		r.opts.Log.Warn("deleting without a claim", "err", err)
		claimed = recs
	}
	actions, err := r.deleteAll(ctx, claimed)
	errs := []error{err}
	for _, a := range actions {
		errs = append(errs, a.Err)
	}
	for _, rec := range busy {
		errs = append(errs, r.await(ctx, rec))
	}
	return errors.Join(errs...)
}

// await waits until the process that has claimed rec is done with it.
func (r *Reaper) await(ctx context.Context, rec store.Record) error {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return &fleet.Error{
				Code: fleet.CodeTimeout, Op: "delete machine " + rec.Name,
				Why: "another process is deleting it and has not finished", MaybeDone: true, Err: ctx.Err(),
			}
		case <-tick.C:
		}
		now, ok, err := r.st.Find(ctx, rec.Key())
		if err != nil {
			return err
		}
		if !ok || now.UID != rec.UID || now.Phase == store.Gone {
			return nil
		}
		if now.Claimer == "" && now.Error != "" {
			return &fleet.Error{Code: fleet.CodeUnreachable, Op: "delete machine " + rec.Name, Why: now.Error}
		}
	}
}
