package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// entry is a file of the ledger: what has to be known of a machine when
// state.db is lost. Its format is frozen but for additions.
type entry struct {
	V         int       `json:"v"`
	UID       string    `json:"uid"`
	Target    string    `json:"target"`
	Account   string    `json:"account,omitempty"`
	Name      string    `json:"name"`
	Kind      Kind      `json:"kind"`
	FleetID   string    `json:"fleetId,omitempty"`
	Made      time.Time `json:"fleetCreated,omitzero"`
	Created   time.Time `json:"created"` // wall clock, to be shown only
	MachineID string    `json:"machineId"`
	BootID    string    `json:"bootId"`
	Instance  string    `json:"instance"` // the owner's process
	Process   instance  `json:"process"`  // and what is needed to judge it
	Run       string    `json:"run"`      // R, where its record and lock file are
	CreateFor int64     `json:"createNanos,omitempty"`
	Deadline  int64     `json:"deadlineMono,omitempty"`
}

const ledgerVersion = 1

// openLedger makes and checks the ledger's directory.
func (s *Store) openLedger() (*os.Root, error) {
	s.placeMu.Lock()
	defer s.placeMu.Unlock()
	if _, err := s.findLocked(); err != nil {
		return nil, err
	}
	state, err := s.stateDir()
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(state, "ledger")
	if s.ledger != nil && sameDir(s.ledger, dir) {
		return s.ledger, nil
	}
	root, err := openPrivate(dir, true, !s.opts.ReadOnly)
	if err != nil {
		return nil, fmt.Errorf("%w: ledger: %w", ErrPlace, dbError(err))
	}
	if s.ledger != nil {
		s.ledger.Close()
	}
	s.ledger = root
	return root, nil
}

// writeLedger makes or replaces a record's file so that it survives a power loss.
func (s *Store) writeLedger(root *os.Root, r Record) error {
	s.mu.Lock()
	life, name := s.life, s.lifeName
	s.mu.Unlock()
	if life == nil {
		return errors.New("store: not entered")
	}
	process := s.self()
	process.File = name
	var err error
	if process.Lock, err = fileID(life); err != nil {
		return err
	}
	data, err := json.Marshal(entry{
		V: ledgerVersion, UID: r.UID, Target: r.Target, Account: r.Account, Name: r.Name, Kind: r.Kind,
		FleetID: r.FleetID, Made: r.FleetCreated, Created: r.Created, MachineID: s.host.MachineID, BootID: s.host.BootID,
		Instance: s.id, Process: process, Run: s.runDir(), CreateFor: r.CreateFor, Deadline: r.Deadline,
	})
	if err != nil {
		return err
	}
	if err := writeSynced(root, r.UID+".json", append(data, '\n')); err != nil {
		return fmt.Errorf("%w: ledger %s: %w", ErrFull, root.Name(), err)
	}
	return nil
}

// updateLedger rewrites the file of a record that was confirmed or taken over.
// The old one is enough to have the machine deleted, so a failure is only told.
func (s *Store) updateLedger(r Record) {
	root, err := s.openLedger()
	if err == nil {
		err = s.writeLedger(root, r)
	}
	if err == nil { // who deleted it meanwhile has looked for its file before
		if now, ok, findErr := s.Find(context.Background(), r.Key()); findErr == nil && (!ok || now.UID != r.UID) {
			err = s.dropLedger(r.UID)
		}
	}
	if err != nil {
		s.opts.Log.Warn("the ledger is behind", "machine", r.Name, "err", err)
	}
}

// writeSynced makes or replaces a file so that it survives a power loss.
func writeSynced(root *os.Root, name string, data []byte) error {
	f, temp, err := lockedTemp(root, name)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = rename(root, f, temp, name)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		root.Remove(temp)
		return err
	}
	return syncDir(root)
}

// dropLedger removes a record's file. That it is gone need not survive a
// power loss: the machine would only be looked for once more.
func (s *Store) dropLedger(uid string) error {
	root, err := s.openLedger()
	if err != nil {
		return err
	}
	if err := root.Remove(uid + ".json"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// readLedger returns the entries that can be read, and the names of files that
// cannot.
func readLedger(root *os.Root) (entries []entry, bad []string, err error) {
	files, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return nil, nil, err
	}
	for _, f := range files {
		uid, ok := strings.CutSuffix(f.Name(), ".json")
		if !ok {
			continue
		}
		data, err := root.ReadFile(f.Name())
		if errors.Is(err, fs.ErrNotExist) { // dropped meanwhile
			continue
		}
		var e entry
		if err != nil || json.Unmarshal(data, &e) != nil || e.UID != uid || e.Target == "" || e.Name == "" || e.Kind == "" {
			bad = append(bad, f.Name())
			continue
		}
		entries = append(entries, e)
	}
	return entries, bad, nil
}
