package store

import (
	"context"
	"encoding/binary"
	"errors"
	"time"
)

// holding says that this process has the right to delete a machine.
type holding struct {
	since   time.Time
	working bool // somebody is at it; else it was only asked for
}

// hold notes that this process is about to delete a machine, or is, so that its
// own sweeps leave it alone. It is called in the transaction that claims the
// record, before any other can see it.
func (s *Store) hold(uid string, working bool) {
	s.mu.Lock()
	s.held[uid] = holding{time.Now(), working}
	s.mu.Unlock()
}

// holdTime is how long a deletion of this process counts as under way when
// nobody says that it ended.
const holdTime = 10 * time.Minute

// holds reports whether this process has the right to delete a machine, and
// whether it is at it.
func (s *Store) holds(uid string) (held, working bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h, ok := s.held[uid]
	held = ok && time.Since(h.since) < holdTime
	return held, held && h.working
}

func (s *Store) release(recs ...Record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range recs {
		delete(s.held, r.UID)
	}
}

// Claims say which records to take.
type Claims struct {
	Limit   int                      // how many at most
	Wanted  func(target string) bool // nil: all
	NoGrace bool                     // a person does not want to wait for crashed sessions to come back
	Again   bool                     // nor for the time of the next attempt
}

// Claim finds what ended owners left, decides which of it is due, and takes
// records for this process to delete. Every record it returns has to be given
// to [Store.Settle]. It writes nothing when there is nothing to do.
func (s *Store) Claim(ctx context.Context, c Claims) ([]Record, error) {
	known, err := s.known()
	if err != nil || !known || s.settle.closed(s.host) {
		return nil, err
	}
	look, err := s.look(ctx)
	if errors.Is(err, errOtherSchema) {
		return nil, nil
	}
	if err != nil || !look.anything() && !c.NoGrace && !c.Again {
		return nil, err
	}
	if err := s.enter(); err != nil {
		return nil, err
	}
	var claimed, expired []Record
	var files []string
	err = s.update(ctx, func(t *tx) (err error) {
		s.release(claimed...) // of a run that was rolled back
		if err := t.markDead(look.dead, look.missing, look.found); err != nil {
			return err
		}
		if claimed, expired, err = s.claimDue(t, c); err != nil {
			return err
		}
		if files, err = t.tidyInstances(); err != nil {
			return err
		}
		if len(claimed)+len(expired)+len(files)+look.changes() == 0 {
			return errNothingToDo
		}
		return nil
	})
	if errors.Is(err, errNothingToDo) {
		return nil, nil
	}
	if err != nil {
		s.release(claimed...)
		return nil, unlessOtherSchema(err)
	}
	failpoint("claim")
	s.removeLocks(files)
	for _, r := range expired {
		if err := s.dropLedger(r.UID); err != nil {
			s.opts.Log.Warn("ledger", "err", err)
		}
	}
	return claimed, nil
}

// outlook is what a sweep knows before it writes.
type outlook struct {
	dead, missing, found []string // instances, by what changed about them
	due                  bool
}

func (o outlook) anything() bool { return o.due || o.changes() > 0 }

func (o outlook) changes() int { return len(o.dead) + len(o.missing) + len(o.found) }

// errNothingToDo rolls a transaction back that would write what is there: what
// is due is nobody's business here.
var errNothingToDo = errors.New("nothing to do")

// look reads what there is and probes the processes outside of the transaction.
func (s *Store) look(ctx context.Context) (outlook, error) {
	rows := make(map[string]instance)
	owned := s.owned()
	var recs []Record
	var o outlook
	err := s.view(ctx, func(t *tx) (err error) {
		clear(rows)
		o.due = false
		if len(owned) > 0 {
			if recs, err = t.records(); err != nil {
				return err
			}
		}
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
	s.refresh(owned, recs)
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
			if r.Phase == Creating {
				r.unsent(o.OrphanMono)
			}
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

// claimable reports whether this process may have the machine deleted now: its
// owner's end is proven, and nobody else is at it.
func (s *Store) claimable(r Record, verdicts map[string]verdict) bool {
	if held, _ := s.holds(r.UID); held || r.Phase == Gone || r.Kind == Persistent && r.Phase != Deleting {
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
	s.hold(r.UID, true)
	return r, t.putRecord(r)
}

// ClaimAll takes records that the caller may delete: its session's, or those a
// user named. Those that another process, or another call of this one, is deleting right
// now are returned as busy.
func (s *Store) ClaimAll(ctx context.Context, recs ...Record) (claimed, busy []Record, err error) {
	if err := s.enter(); err != nil {
		return nil, nil, err
	}
	err = s.update(ctx, func(t *tx) error {
		s.release(claimed...) // of a run that was rolled back
		claimed, busy = nil, nil
		if err := s.register(t); err != nil {
			return err
		}
		for _, want := range recs {
			r, ok, err := t.record(want.Key())
			if err != nil || !ok || r.UID != want.UID || r.Phase == Gone || r.Phase != Deleting && r.Session != want.Session {
				continue // gone already, or another session's by now
			}
			_, working := s.holds(r.UID)
			if working || r.Claimer != "" && r.Claimer != s.id && !r.claimerDead {
				busy = append(busy, r)
				continue
			}
			claimed = append(claimed, r)
			if claimed[len(claimed)-1], err = s.claim(t, r); err != nil {
				return err
			}
		}
		return nil
	})
	if errors.Is(err, errOtherSchema) {
		return recs, nil, nil
	}
	if err != nil {
		s.release(claimed...)
		return nil, nil, err
	}
	return claimed, busy, nil
}
