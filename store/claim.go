package store

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"time"
)

// hold notes that this process is deleting a machine, so that its own sweeps
// leave it alone.
func (s *Store) hold(uid string) {
	s.mu.Lock()
	s.held[uid] = time.Now()
	s.mu.Unlock()
}

// holdTime is how long a deletion of this process counts as under way when
// nobody says that it ended.
const holdTime = 10 * time.Minute

func (s *Store) holds(uid string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	since, ok := s.held[uid]
	return ok && time.Since(since) < holdTime
}

func (s *Store) release(uid string) {
	s.mu.Lock()
	delete(s.held, uid)
	s.mu.Unlock()
}

// Claim finds what ended owners left, decides which of it is due, and takes up
// to limit records of the wanted targets for this process to delete. Every record it
// returns has to be given to [Store.Settle]. It writes nothing when
// there is nothing to do.
func (s *Store) Claim(ctx context.Context, limit int, wanted func(target string) bool) ([]Record, error) {
	known, err := s.known()
	if err != nil || !known || s.settle.closed(s.host) {
		return nil, err
	}
	look, err := s.look(ctx)
	if err != nil || !look.anything() {
		return nil, err
	}
	if err := s.enter(); err != nil {
		return nil, err
	}
	var claimed []Record
	err = s.update(ctx, func(t *tx) (err error) {
		claimed = nil
		if err := t.markDead(look.dead, look.missing, look.found); err != nil {
			return err
		}
		claimed, err = s.claimDue(t, limit, wanted)
		return err
	})
	if err != nil {
		return nil, err
	}
	failpoint("claim")
	for _, r := range claimed {
		s.hold(r.UID)
	}
	return claimed, nil
}

// outlook is what a sweep knows before it writes.
type outlook struct {
	dead, missing, found []string // instances, by what changed about them
	due                  bool
}

func (o outlook) anything() bool {
	return o.due || len(o.dead)+len(o.missing)+len(o.found) > 0
}

// look reads what there is and probes the processes outside of the transaction.
func (s *Store) look(ctx context.Context) (outlook, error) {
	rows := make(map[string]instance)
	var o outlook
	err := s.view(ctx, func(t *tx) error {
		clear(rows)
		o.due = false
		now := t.host.now()
		if k, _ := t.Bucket([]byte(bDue)).Cursor().First(); k != nil {
			o.due = int64(binary.BigEndian.Uint64(k)) <= now
		}
		return t.eachInstance(func(id string, row instance) error {
			rows[id] = row
			return nil
		})
	})
	if err != nil {
		return o, err
	}
	for id, row := range rows {
		if row.Dead {
			continue
		}
		switch v := s.judge(id, row); {
		case v == dead:
			o.dead = append(o.dead, id)
		case v == missing && row.MissingMono == 0:
			o.missing = append(o.missing, id)
		case v == alive && row.MissingMono != 0:
			o.found = append(o.found, id)
		}
	}
	return o, nil
}

// markDead writes down what the probes proved, and what follows from it: the
// sessions of a dead process are orphans, and their records become due.
func (t *tx) markDead(dead, missing, found []string) error {
	mark := func(ids []string, change func(*instance)) error {
		for _, id := range ids {
			var row instance
			if ok, err := t.get(bInstances, []byte(id), &row); err != nil || !ok {
				continue // gone, or never to be believed
			}
			change(&row)
			if err := t.put(bInstances, []byte(id), row); err != nil {
				return err
			}
		}
		return nil
	}
	now := t.host.now()
	err := errors.Join(
		mark(dead, func(r *instance) { r.Dead = true }),
		mark(missing, func(r *instance) { r.MissingMono = now }),
		mark(found, func(r *instance) { r.MissingMono = 0 }))
	if err != nil {
		return err
	}
	for _, id := range dead {
		if err := t.orphan(id); err != nil {
			return err
		}
	}
	return nil
}

// orphan starts the grace of a dead process's sessions.
func (t *tx) orphan(inst string) error {
	type row struct {
		id string
		session
	}
	var orphans []row
	err := t.eachSession(func(id string, r session) error {
		if r.Instance == inst && r.State == sessionLive {
			orphans = append(orphans, row{id, r})
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, o := range orphans {
		o.State, o.OrphanMono = sessionOrphan, t.host.now()
		if err := t.put(bSessions, []byte(o.id), o.session); err != nil {
			return err
		}
		recs, err := t.ofSession(o.id)
		if err != nil {
			return err
		}
		for _, r := range recs {
			if r.Due = r.dueAfter(o.OrphanMono, o.Grace); r.Due == 0 {
				continue
			}
			if err := t.putRecord(r); err != nil {
				return err
			}
		}
		if err := t.tidySession(o.id); err != nil {
			return err
		}
	}
	return nil
}

// dueAfter says when a record of a session that died at orphaned is to be
// looked at.
func (r Record) dueAfter(orphaned, grace int64) int64 {
	switch {
	case r.Phase == Deleting || r.Phase == Gone:
		return max(1, r.Due)
	case r.Kind == Persistent:
		return max(1, r.Deadline)
	case r.Phase == Ready && r.Kind == Ephemeral:
		return orphaned + grace
	}
	return orphaned // its client never saw the name, or cannot use it again
}

func (t *tx) eachInstance(fn func(id string, row instance) error) error {
	c := t.Bucket([]byte(bInstances)).Cursor()
	for k, v := c.First(); k != nil; k, v = c.Next() {
		row := instance{}
		if ok, err := t.get(bInstances, k, &row); err != nil || !ok || v == nil {
			continue
		}
		if err := fn(string(k), row); err != nil {
			return err
		}
	}
	return nil
}

// claimDue goes through the records whose time has come.
func (s *Store) claimDue(t *tx, limit int, wanted func(string) bool) ([]Record, error) {
	if err := s.register(t); err != nil {
		return nil, err
	}
	keys, err := t.dueKeys()
	if err != nil {
		return nil, err
	}
	verdicts := make(map[string]verdict)
	var claimed []Record
	for _, key := range keys {
		r, ok, err := t.record(key)
		if err != nil || !ok {
			continue
		}
		if r.Phase == Gone || r.Kind == Persistent && r.Phase == Creating {
			if err := t.expire(r); err != nil {
				return nil, err
			}
			continue
		}
		if len(claimed) == limit || !wanted(r.Target) || !s.claimable(r, verdicts) {
			continue
		}
		if r, err = s.claim(t, r); err != nil {
			return nil, err
		}
		claimed = append(claimed, r)
	}
	return claimed, t.tidyInstances()
}

// dueKeys returns the machines whose due time has come, and drops entries that
// lead nowhere.
func (t *tx) dueKeys() ([]Key, error) {
	now := t.host.now()
	var keys []Key
	var dangling [][]byte
	c := t.Bucket([]byte(bDue)).Cursor()
	for k, _ := c.First(); k != nil; k, _ = c.Next() {
		if len(k) < 8 {
			dangling = append(dangling, bytes.Clone(k))
			continue
		}
		due := int64(binary.BigEndian.Uint64(k))
		if due > now {
			break
		}
		key, ok := parseKey(k[8:])
		var r Record
		if ok {
			ok, _ = t.get(bMachines, key.bytes(), &r)
		}
		if !ok || r.Due != due {
			dangling = append(dangling, bytes.Clone(k))
			continue
		}
		keys = append(keys, key)
	}
	var err error
	for _, k := range dangling {
		err = errors.Join(err, t.Bucket([]byte(bDue)).Delete(k))
	}
	return keys, err
}

// expire drops a record whose name need not be kept any longer.
func (t *tx) expire(r Record) error {
	if r.Kind == Persistent && r.Phase == Creating {
		err := t.notice("the create of %s machine %s was interrupted; if it exists it is kept", r.Target, r.Name)
		if err != nil {
			return err
		}
	}
	return t.dropRecord(r)
}

// claimable reports whether this process may have the machine deleted now: its
// owner's end is proven, and nobody else is at it.
func (s *Store) claimable(r Record, verdicts map[string]verdict) bool {
	if s.holds(r.UID) {
		return false
	}
	if r.Claimer != "" && r.Claimer != s.id && !r.claimerDead {
		return false
	}
	if r.Phase == Deleting { // somebody with the right to it said so
		return true
	}
	switch s.ownerOf(r, verdicts) {
	case ownerDead, ownerEnded:
		return true
	}
	return false
}

// claim takes a record for this process.
func (s *Store) claim(t *tx, r Record) (Record, error) {
	r.Stolen = r.Stolen || r.Claimer != "" && r.Claimer != s.id
	r.Phase = Deleting
	r.Claimer, r.Claimed = s.id, t.host.now()
	return r, t.putRecord(r)
}

// ClaimAll takes records that the caller may delete: its session's, or those a
// user named. Those that another live process is deleting right now are returned as busy.
func (s *Store) ClaimAll(ctx context.Context, recs ...Record) (claimed, busy []Record, err error) {
	if err := s.enter(); err != nil {
		return nil, nil, err
	}
	err = s.update(ctx, func(t *tx) error {
		claimed, busy = nil, nil
		if err := s.register(t); err != nil {
			return err
		}
		for _, want := range recs {
			r, ok, err := t.record(want.Key())
			if err != nil || !ok || r.UID != want.UID || r.Phase == Gone {
				continue // gone already
			}
			if r.Claimer != "" && r.Claimer != s.id && !r.claimerDead {
				busy = append(busy, r)
				continue
			}
			if r, err = s.claim(t, r); err != nil {
				return err
			}
			claimed = append(claimed, r)
		}
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	for _, r := range claimed {
		s.hold(r.UID)
	}
	return claimed, busy, nil
}

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
	err := s.update(ctx, func(t *tx) error {
		left, done = nil, nil
		for _, o := range outcomes {
			r, ok, err := t.record(o.Record.Key())
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
		return nil
	})
	for _, o := range outcomes {
		s.release(o.Record.UID)
	}
	if err != nil {
		return nil, err
	}
	failpoint("settle")
	for _, r := range done {
		err = errors.Join(err, s.dropLedger(r.UID))
	}
	return left, err
}

// settle applies one outcome and reports whether the machine is done with.
func (t *tx) settle(r *Record, o Outcome) (bool, error) {
	now := t.host.now()
	r.Claimer, r.Claimed = "", 0
	switch o.Result {
	case Absent:
		if r.Deadline > now { // its create call may still be under way
			r.Error = "not there, but its creation may still be under way"
			r.Due = min(r.Deadline, now+int64(backoff(r.Attempts)))
			r.Attempts++
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
	if r.Account != "" || !r.Stolen && r.Attempts == 0 {
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

// tidyInstances drops the rows of dead processes to which nothing refers.
func (t *tx) tidyInstances() error {
	var idle []string
	err := t.eachInstance(func(id string, row instance) error {
		if !row.Dead {
			return nil
		}
		refers, err := t.refersTo(id)
		if err == nil && !refers {
			idle = append(idle, id)
		}
		return err
	})
	for _, id := range idle {
		err = errors.Join(err, t.drop(bInstances, []byte(id)))
	}
	return err
}
