package store

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Survey is all that a person may want to know about the records.
type Survey struct {
	Dir       string     `json:"runtimeDir"`
	Why       string     `json:"why"` // the rule that chose Dir
	StateDir  string     `json:"stateDir"`
	BootID    string     `json:"bootId"`
	MachineID string     `json:"machineId"`
	Epoch     string     `json:"epoch"` // of state.db; empty: there is none
	Size      int64      `json:"size"`  // of state.db, in bytes
	Ledger    int        `json:"ledger"`
	Processes []Process  `json:"processes"`
	Sessions  []Sitting  `json:"sessions"`
	Machines  []Standing `json:"machines"`
	Kept      []Kept     `json:"kept"` // machines of principals that outlive their sessions
	Notices   []Notice   `json:"notices"`
}

// Process is an instance: one life of a process.
type Process struct {
	ID      string    `json:"id"`
	Kind    string    `json:"kind"`
	Version string    `json:"version"`
	PID     int       `json:"pid"`
	Started time.Time `json:"started"`
	Life    string    `json:"life"` // alive, dead, or unproven
	Proof   string    `json:"proof,omitempty"`
}

// Sitting is a session.
type Sitting struct {
	ID       string `json:"id"`
	Instance string `json:"instance"`
	Kind     string `json:"kind"`
	Client   string `json:"client,omitempty"`
	State    string `json:"state"` // live, orphan or ended
}

// Standing is a record, and what will become of it.
type Standing struct {
	Record Record
	Fate   Fate
	Reason string
	Within time.Duration // when, if it is known
}

// Fate is what a sweep does with a record now.
type Fate string

// The fates.
const (
	FateKeep    Fate = "keep"    // its owner lives, or nobody can tell
	FateDelete  Fate = "delete"  // now
	FateWait    Fate = "wait"    // for a grace, or for the next attempt
	FateClaimed Fate = "claimed" // another process is deleting it
	FateBlocked Fate = "blocked" // a person has to do something
	FateForget  Fate = "forget"  // it is gone, or was never made; only its name is kept for a while
)

// MarshalJSON renders a standing flat.
func (st Standing) MarshalJSON() ([]byte, error) {
	r := st.Record
	return json.Marshal(struct {
		Record
		Owner  string  `json:"owner"` // alive, dead, ended or unproven
		Proof  string  `json:"proof,omitempty"`
		Fate   Fate    `json:"fate"`
		Reason string  `json:"reason"`
		Within float64 `json:"withinSecs,omitempty"`
	}{r, r.OwnerLife(), r.Proof(), st.Fate, st.Reason, st.Within.Seconds()})
}

// OwnerLife says what is known of the owner: alive, dead, ended or unproven.
func (r Record) OwnerLife() string {
	switch r.owner {
	case ownerLive:
		return "alive"
	case ownerDead:
		return "dead"
	case ownerEnded:
		return "ended"
	}
	return "unproven"
}

// Proof names the proof of the owner's end; see the package comment.
func (r Record) Proof() string {
	switch r.owner {
	case ownerEnded:
		return "P3"
	case ownerDead:
		return r.inst.proof()
	}
	return ""
}

func (i instance) proof() string {
	switch {
	case i.File == "":
		return "P2"
	case i.MissingMono != 0:
		return "P1'"
	}
	return "P1"
}

// fate says what a sweep would do with a judged record.
func (r Record) fate() Standing {
	st := Standing{Record: r}
	set := func(f Fate, within time.Duration, reason string, args ...any) Standing {
		st.Fate, st.Within, st.Reason = f, max(0, within), fmt.Sprintf(reason, args...)
		return st
	}
	due := time.Duration(r.Due - r.now)
	switch {
	case r.Phase == Gone:
		return set(FateForget, due, "it is gone; its name is kept until no earlier deletion can be under way")
	case r.Kind == Persistent && r.Phase != Deleting:
		return set(FateForget, time.Duration(r.Deadline-r.now), "it is being created, to be kept")
	case r.Phase == Deleting && r.Claimer != "" && !r.claimerDead:
		return set(FateClaimed, 0, "process %s is deleting it", r.Claimer)
	case r.Phase == Deleting && r.Blocked:
		return set(FateBlocked, due, "%s", r.Error)
	case r.Phase == Deleting && due > 0:
		return set(FateWait, due, "the next attempt is not due yet: %s", r.Error)
	case r.Phase == Deleting:
		return set(FateDelete, 0, "it was asked for")
	case r.owner == ownerLive:
		return set(FateKeep, 0, "its owner lives")
	case r.owner == ownerUnknown:
		return set(FateKeep, 0, "its owner's end is not proven")
	}
	if left, ok := r.Left(); ok && left > 0 {
		return set(FateWait, left, "its session crashed, and may come back")
	}
	return set(FateDelete, 0, "its owner has ended")
}

// Survey looks at everything and changes nothing. With ReadOnly not even a
// directory is made.
func (s *Store) Survey(ctx context.Context) (Survey, error) {
	sv := Survey{BootID: s.host.BootID, MachineID: s.host.MachineID, Processes: []Process{}, Sessions: []Sitting{}, Machines: []Standing{}, Kept: []Kept{}, Notices: []Notice{}}
	p, err := s.find()
	sv.Dir, sv.Why, sv.StateDir = p.run, p.why, p.state
	if err != nil {
		return sv, err
	}
	entries, err := s.surveyLedger()
	if err != nil {
		return sv, err
	}
	sv.Ledger = len(entries)
	kept, err := s.Kept()
	if err != nil {
		return sv, err
	}
	sv.Kept = append(sv.Kept, kept...)
	if fi, err := os.Lstat(filepath.Join(p.run, dbName)); err == nil {
		sv.Size = fi.Size()
	}
	rows, recs, err := s.surveyRows(ctx, &sv)
	if err != nil {
		return sv, err
	}
	verdicts := make(map[string]verdict)
	for id, row := range rows {
		verdicts[id] = s.judge(id, row)
		sv.Processes = append(sv.Processes, process(id, row, verdicts[id]))
	}
	slices.SortFunc(sv.Processes, func(a, b Process) int { return strings.Compare(a.ID, b.ID) })
	for _, r := range recs {
		r.owner = s.ownerOf(r, verdicts)
		sv.Machines = append(sv.Machines, r.fate())
	}
	sv.Machines = append(sv.Machines, s.unrecordedIn(entries, recs)...)
	return sv, nil
}

// surveyRows reads state.db, where there is one, into sv and what is still to be judged.
func (s *Store) surveyRows(ctx context.Context, sv *Survey) (rows map[string]instance, recs []Record, err error) {
	rows = make(map[string]instance)
	if sv.Size == 0 {
		return rows, nil, nil
	}
	err = s.view(ctx, func(t *tx) (err error) {
		clear(rows)
		sv.Sessions = sv.Sessions[:0]
		if _, err := t.get(bMeta, []byte("epoch"), &sv.Epoch); err != nil {
			return err
		}
		if err := t.eachInstance(func(id string, row instance) error { rows[id] = row; return nil }); err != nil {
			return err
		}
		err = t.eachSession(func(id string, row session) error {
			sv.Sessions = append(sv.Sessions, Sitting{id, row.Instance, row.Kind, row.Client, row.State})
			return nil
		})
		if err != nil {
			return err
		}
		if recs, err = t.records(); err != nil {
			return err
		}
		if ns, err := t.notices(); err == nil && len(ns) > 0 {
			sv.Notices = ns
		}
		return nil
	})
	return rows, recs, err
}

func process(id string, row instance, v verdict) Process {
	p := Process{ID: id, Kind: row.Kind, Version: row.Version, PID: row.PID, Started: row.Started, Life: "unproven"}
	switch v {
	case alive:
		p.Life = "alive"
	case dead:
		p.Life, p.Proof = "dead", row.proof()
	}
	return p
}

// surveyLedger reads the ledger without making it.
func (s *Store) surveyLedger() ([]entry, error) {
	state, err := s.stateDir()
	if err != nil {
		return nil, nil
	}
	root, err := os.OpenRoot(filepath.Join(state, "ledger"))
	if err != nil {
		if os.IsNotExist(err) {
			return nil, nil
		}
		return nil, err
	}
	defer root.Close()
	entries, _, err := readLedger(root)
	return entries, err
}

// unrecordedIn describes entries of the ledger that no record stands for.
func (s *Store) unrecordedIn(entries []entry, recs []Record) []Standing {
	var all []Standing
	for _, e := range entries {
		if slices.ContainsFunc(recs, func(r Record) bool { return r.UID == e.UID }) {
			continue
		}
		r := Record{
			UID: e.UID, Target: e.Target, Account: e.Account, Name: e.Name, Kind: e.Kind, Phase: Ready,
			Instance: e.Instance, FleetID: e.FleetID, FleetCreated: e.Made, Created: e.Created, CreateFor: e.CreateFor, Deadline: e.Deadline,
		}
		st := Standing{Record: r, Fate: FateKeep}
		im, ok := s.fromEntry(e)
		switch {
		case !ok:
			st.Reason = "its record is in " + e.Run
		case im.rec.UID == "" || im.remove:
			st.Reason = im.note
		case im.inst.Dead:
			st.Fate, st.Reason, st.Record.owner = FateDelete, "its owner ended with an earlier boot of this computer", ownerDead
		default:
			st.Fate, st.Reason = FateWait, "only the ledger knows it; its record is made again by the next sweep"
		}
		all = append(all, st)
	}
	return all
}

// Verify looks at the whole of state.db, page by page and row by row, and
// returns what is wrong with it, and nothing when it is sound.
func (s *Store) Verify(ctx context.Context) (faults []string, err error) {
	if _, err := s.find(); err != nil {
		return nil, err
	}
	if _, err := os.Lstat(filepath.Join(s.runDir(), dbName)); err != nil {
		if os.IsNotExist(err) {
			return nil, nil
		}
		return nil, err
	}
	err = s.locked(ctx, func(f *os.File, _ *os.Root) error {
		_, err := verify(f)
		return err
	})
	if err != nil {
		return []string{err.Error()}, nil
	}
	err = s.view(ctx, func(t *tx) error {
		faults = nil
		for _, b := range []string{bMeta, bInstances, bSessions, bMachines, bCursors, bNotices} {
			c := t.Bucket([]byte(b)).Cursor()
			for k, v := c.First(); k != nil; k, v = c.Next() {
				if _, err := open(b, k, v); err != nil {
					faults = append(faults, err.Error())
				}
			}
		}
		return nil
	})
	return faults, err
}

// Compact makes state.db as small as it can be.
func (s *Store) Compact(ctx context.Context) (before, after int64, err error) {
	size := func() int64 {
		fi, err := os.Lstat(filepath.Join(s.runDir(), dbName))
		if err != nil {
			return 0
		}
		return fi.Size()
	}
	if known, err := s.known(); err != nil || !known {
		return 0, 0, err
	}
	before = size()
	err = s.locked(ctx, func(f *os.File, root *os.Root) error { return rewrite(f, root) })
	return before, size(), err
}
