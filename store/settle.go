package store

import (
	"context"
	"errors"
	"time"
)

// Result is what came of an attempt to delete a machine.
type Result int

// The results.
const (
	Deleted Result = iota // the fleet says that it deleted it, and it is not there
	Absent                // the fleet does not have it
	Failed                // not yet; try again soon
	Blocked               // a person or another deletion has to come first; try again later
	Foreign               // the name now belongs to a machine that is not ours: leave it
)

// String is the result in a word or two.
func (r Result) String() string {
	switch r {
	case Deleted:
		return "deleted"
	case Absent:
		return "not there"
	case Failed:
		return "not deleted yet"
	case Blocked:
		return "blocked"
	case Foreign:
		return "another machine of that name, kept"
	}
	return "unknown"
}

// Outcome tells [Store.Settle] what came of a claimed record.
type Outcome struct {
	Record Record
	Result Result
	Error  string // of Failed and Blocked, without secrets
}

// The pace of attempts.
const (
	firstRetry = time.Second
	lastRetry  = 5 * time.Minute
	slowRetry  = 10 * time.Minute
	quarantine = time.Minute // twice the time after which a fleet's request has surely ended
)

// Settle records what came of claimed records and lets go of them. It returns
// those that are not done with.
func (s *Store) Settle(ctx context.Context, outcomes ...Outcome) ([]Record, error) {
	var left, done []Record
	var files []string
	err := s.update(ctx, func(t *tx) error {
		left, done = nil, nil
		for _, o := range outcomes {
			r, ok, err := t.bare(o.Record.Key())
			if err != nil || !ok || r.UID != o.Record.UID {
				done = append(done, o.Record)
				continue
			}
			over, err := t.settle(&r, o)
			if err != nil {
				return err
			}
			if over {
				done = append(done, r)
			} else {
				left = append(left, r)
			}
		}
		var err error
		files, err = t.tidyInstances()
		return err
	})
	for _, o := range outcomes {
		s.release(o.Record)
	}
	if errors.Is(err, errOtherSchema) {
		left, done, err = unwritten(outcomes)
	}
	if err != nil {
		return nil, err
	}
	failpoint("settle")
	s.removeLocks(files)
	for _, r := range done {
		err = errors.Join(err, s.dropLedger(r.UID))
		if r.Kind == Persistent {
			err = errors.Join(err, s.unkeep(r))
		}
	}
	return left, err
}

// unwritten sorts outcomes that cannot be written down by what they mean for
// the ledger.
func unwritten(outcomes []Outcome) (left, done []Record, err error) {
	for _, o := range outcomes {
		if o.Result == Failed || o.Result == Blocked || o.Result == Absent && !o.Record.Confirmed() {
			left = append(left, o.Record)
		} else {
			done = append(done, o.Record)
		}
	}
	return left, done, nil
}

// settle applies one outcome and reports whether the machine is done with.
func (t *tx) settle(r *Record, o Outcome) (bool, error) {
	now := t.host.now()
	r.Claimer, r.Claimed = "", 0
	switch o.Result {
	case Absent:
		if r.Deadline > now { // its create call may still be under way
			r.Error = "not there, but its creation may still be under way"
			age := max(0, now-(r.Deadline-r.CreateFor)) // attempts are counted that sent something
			r.Due = min(r.Deadline, now+max(int64(firstRetry), age/2))
			return false, t.putRecord(*r)
		}
	case Failed, Blocked:
		r.Error, r.Blocked = o.Error, o.Result == Blocked
		r.Due = now + int64(backoff(r.Attempts))
		if r.Blocked {
			r.Due = now + int64(slowRetry)
		}
		r.Attempts++
		return false, t.putRecord(*r)
	case Foreign:
		if err := t.notice("%s machine %s was not made by us; it is kept", r.Target, r.Name); err != nil {
			return false, err
		}
		return true, t.dropRecord(*r)
	}
	if err := t.unblockParent(r.Parent); err != nil {
		return false, err
	}
	// an earlier try may still be on its way to the fleet, and must not meet
	// a new machine of that name
	if r.remote() || !r.Stolen && r.Attempts == 0 {
		return true, t.dropRecord(*r)
	}
	r.Phase, r.Due, r.Error, r.Blocked = Gone, now+int64(quarantine), "", false
	return true, t.putRecord(*r)
}

// unblockParent makes a machine that waits for its branches due when one of
// them is gone.
func (t *tx) unblockParent(uid string) error {
	if uid == "" {
		return nil
	}
	recs, err := t.records()
	if err != nil {
		return err
	}
	for _, r := range recs {
		if r.UID == uid && r.Phase == Deleting && r.Blocked {
			r.Due = t.host.now()
			return t.putRecord(r)
		}
	}
	return nil
}

func backoff(attempts int) time.Duration {
	d := lastRetry
	if attempts < 9 {
		d = min(lastRetry, firstRetry<<attempts)
	}
	return d - d/8 + jitter(d/4)
}
