package store

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	bolt "go.etcd.io/bbolt"
)

// badMark is in the name of a file that was set aside.
const badMark = ".bad-"

// mendable reports whether a new state.db helps against err.
func mendable(err error) bool { return errors.Is(err, ErrCorrupt) || errors.Is(err, errOtherBoot) }

// mend replaces a state.db that is damaged or of another boot by one built
// from the ledger, and from the old one's rows where its boot is over. Nothing
// is lost by it but cursors and the time that graces have run: the
// living write again what is theirs. A file that looks sound is left alone,
// since another process may have been faster, unless it is met again.
func (s *Store) mend(cause error, again bool) error {
	f, root, err := s.openLocked()
	if err != nil {
		return err
	}
	defer f.Close()
	old, boot, err := readRows(f)
	if err == nil && boot == (bootRow{s.host.BootID, s.host.MachineID}) && !again {
		return nil
	}
	if err != nil || boot.BootID == s.host.BootID {
		old = nil // rows of a damaged file of this boot may be older than they say
	}
	imports, err := s.fromLedger()
	if err != nil {
		return err
	}
	imports = append(imports, s.fromOtherBoot(old, boot, imports)...)

	temp, err := s.buildDB(root, func(t *tx) error {
		if err := t.importAll(imports); err != nil {
			return err
		}
		if errors.Is(cause, errOtherBoot) {
			return nil
		}
		return t.notice("the state file was damaged and built anew from the ledger: %v", cause)
	})
	if err != nil {
		return err
	}
	defer root.Remove(temp)
	aside := dbName + badMark + newID()
	if err := root.Link(dbName, aside); err != nil {
		return fmt.Errorf("%w; it cannot be set aside: %w", ErrCorrupt, err)
	}
	failpoint("mend-rename")
	if err := root.Rename(temp, dbName); err != nil { // its lock is ours: nobody works with it now
		root.Remove(aside)
		return fmt.Errorf("%w; it cannot be replaced: %w", ErrCorrupt, err)
	}
	failpoint("mend-renamed")
	s.dropUseless(imports)
	s.opts.Log.Warn("the state file was built anew", "cause", cause, "machines", len(imports))
	s.quarantine(root, aside)
	return nil
}

// readRows checks a state.db that is locked and reads its records without
// letting go of the lock.
func readRows(f *os.File) ([]Record, bootRow, error) {
	if err := preflight(f); err != nil {
		return nil, bootRow{}, err
	}
	if _, err := verify(f); err != nil {
		return nil, bootRow{}, err
	}
	var recs []Record
	var boot bootRow
	err := withCopy(f, func(db *bolt.DB) error {
		return db.View(func(btx *bolt.Tx) error {
			t := &tx{Tx: btx, host: &Host{Awake: func() time.Duration { return 0 }}}
			meta, err := t.decodeMeta()
			if err != nil {
				return err
			}
			boot = meta.boot
			recs, err = t.records()
			return err
		})
	})
	return recs, boot, err
}

// withCopy runs fn on a copy of a locked state.db: bbolt unlocks what it closes.
func withCopy(f *os.File, fn func(*bolt.DB) error) error {
	temp, err := os.CreateTemp(filepath.Dir(f.Name()), dbName+tempMark)
	if err != nil {
		return dbError(err)
	}
	defer os.Remove(temp.Name())
	if _, err := io.Copy(temp, io.NewSectionReader(f, 0, 2*dbLimit)); err != nil {
		temp.Close()
		return dbError(err)
	}
	return withDB(temp, fn)
}

// keepBad is how many broken files are kept for whoever wants to know why.
const keepBad = 3

// quarantine moves a file that was set aside out of the small runtime
// directory. A failure costs evidence, nothing else.
func (s *Store) quarantine(root *os.Root, name string) {
	defer root.Remove(name)
	state, err := s.stateDir()
	if err != nil {
		return
	}
	dir, err := openPrivate(filepath.Join(state, "quarantine"), true, true)
	if err != nil {
		return
	}
	defer dir.Close()
	in, err := root.Open(name)
	if err != nil {
		return
	}
	defer in.Close()
	to := "state-" + time.Now().UTC().Format("20060102T150405.000") + ".db"
	out, err := dir.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return
	}
	_, err = io.Copy(out, io.NewSectionReader(in, 0, 2*dbLimit))
	if errors.Join(err, out.Close()) != nil {
		dir.Remove(to)
		return
	}
	files, err := fs.ReadDir(dir.FS(), ".")
	for err == nil && len(files) > keepBad { // in order of name, so of time
		dir.Remove(files[0].Name())
		files = files[1:]
	}
}

// imported is what a new state.db is told of a machine.
type imported struct {
	rec    Record
	inst   instance
	grace  time.Duration
	note   string
	recent bool // of this boot: its owner may be about to drop it himself
	remove bool // the ledger's file is of no use any more
}

// fromLedger reads what the ledger says about machines of this runtime
// directory and of boots that are over.
func (s *Store) fromLedger() ([]imported, error) {
	state, err := s.stateDir()
	if err != nil {
		return nil, nil // no place for a ledger: none was written
	}
	dir := filepath.Join(state, "ledger")
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	root, err := s.openLedger()
	if err != nil {
		return nil, err
	}
	entries, bad, err := readLedger(root)
	if err != nil {
		return nil, err
	}
	var all []imported
	for _, e := range entries {
		if im, ok := s.fromEntry(e); ok {
			all = append(all, im)
		}
	}
	for _, name := range bad {
		all = append(all, imported{note: "the ledger's file " + name + " cannot be read; if its machine exists it is kept"})
	}
	return all, nil
}

// fromEntry decides what an entry without a record means.
func (s *Store) fromEntry(e entry) (imported, bool) {
	im := imported{
		rec: Record{
			UID: e.UID, Target: e.Target, Account: e.Account, Name: e.Name, Kind: e.Kind, Phase: Ready,
			Instance: e.Instance, FleetID: e.FleetID, FleetCreated: e.Made, Created: e.Created, CreateFor: e.CreateFor, Deadline: e.Deadline,
		},
		inst:  e.Process,
		grace: max(0, s.opts.CrashGrace),
	}
	if e.Deadline != 0 {
		im.rec.Phase = Creating
	}
	here := e.MachineID == s.host.MachineID
	switch {
	case here && e.BootID == s.host.BootID && e.BootID != "":
		if e.Run != s.runDir() && !s.provenElsewhere(e) {
			return imported{}, false // of another runtime directory, whose processes know better
		}
		im.recent = true
	case here && e.MachineID != "" && e.BootID != "" && s.host.BootID != "": // P2
		im.inst = instance{Dead: true}
		im.rec.bootOver(s.host.now())
		if e.Kind == Persistent {
			im = imported{rec: im.rec, remove: true, note: fmt.Sprintf("the create of %s machine %s was interrupted; if it exists it is kept", e.Target, e.Name)}
		}
	default:
		im = imported{note: fmt.Sprintf("machine %s %s was made on another computer or on one that cannot be told from it (ledger %s.json); it is left alone", e.Target, e.Name, e.UID)}
	}
	return im, true
}

// bootOver says what the end of the boot in which a record was written means for its
// create call: one to this computer's engine has ended with it, one to a fleet elsewhere may
// still take effect for as long as from an owner that has just died.
func (r *Record) bootOver(now int64) {
	if r.remote() {
		r.unsent(now)
	} else {
		r.Deadline = 0
	}
}

// provenElsewhere reports whether the owner of an entry of another runtime
// directory is dead by the lock file there.
func (s *Store) provenElsewhere(e entry) bool {
	root, err := os.OpenRoot(e.Run)
	if err != nil {
		return false
	}
	defer root.Close()
	return probe(root, e.Process) == dead
}

// fromOtherBoot takes over records of a file whose boot is over, which the
// ledger does not have: all their owners are dead.
func (s *Store) fromOtherBoot(old []Record, boot bootRow, have []imported) []imported {
	if boot.MachineID == "" || boot.MachineID != s.host.MachineID || boot.BootID == "" || boot.BootID == s.host.BootID {
		return nil
	}
	var all []imported
	for _, r := range old {
		known := slices.ContainsFunc(have, func(im imported) bool { return im.rec.UID == r.UID })
		if known || r.Phase == Gone || r.Kind == Persistent {
			continue
		}
		r.bootOver(s.host.now())
		r.Session, r.Due, r.Claimer, r.Claimed = "", 0, "", 0
		all = append(all, imported{rec: r, inst: instance{Dead: true}})
	}
	return all
}

// dropUseless removes files of the ledger of which only a notice remains.
func (s *Store) dropUseless(all []imported) {
	for _, im := range all {
		if !im.remove {
			continue
		}
		if err := s.dropLedger(im.rec.UID); err != nil {
			s.opts.Log.Warn("ledger", "err", err)
		}
	}
}

// lostSession is the session of records whose own is not known any more. Its
// process is, and decides.
func lostSession(inst string) string { return "lost-" + inst }

// importAll writes imported records. A name that two of them claim goes to the
// later one: the earlier one's machine cannot exist beside it.
func (t *tx) importAll(all []imported) error {
	slices.SortFunc(all, func(a, b imported) int { return strings.Compare(a.rec.UID, b.rec.UID) })
	for _, im := range all {
		if im.note != "" {
			if err := t.noticeOnce(im.note); err != nil {
				return err
			}
		}
		if im.rec.UID == "" || im.remove {
			continue
		}
		if err := t.importOne(im); err != nil {
			return err
		}
	}
	return nil
}

func (t *tx) importOne(im imported) error {
	r := im.rec
	now, ok, err := t.record(r.Key())
	if err == nil && ok && now.UID >= r.UID {
		return nil
	}
	id := r.Instance
	var row instance
	ok, err = t.get(bInstances, []byte(id), &row)
	if err != nil || !ok {
		if err := t.put(bInstances, []byte(id), im.inst); err != nil {
			return err
		}
		row = im.inst
	}
	sess := session{Instance: id, Kind: "lost", State: sessionLive, Grace: int64(im.grace)}
	if row.Dead {
		sess.State, sess.OrphanMono, sess.Grace = sessionOrphan, t.host.now(), 0
		r.Due = t.host.now()
	}
	r.Session = lostSession(id)
	if ok, err := t.get(bSessions, []byte(r.Session), &session{}); err != nil || !ok {
		if err := t.put(bSessions, []byte(r.Session), sess); err != nil {
			return err
		}
	}
	return t.putRecord(r)
}

// noticeOnce adds a notice that is not there yet.
func (t *tx) noticeOnce(text string) error {
	all, err := t.notices()
	if err != nil {
		return err
	}
	if slices.ContainsFunc(all, func(n Notice) bool { return n.Text == text }) {
		return nil
	}
	return t.notice("%s", text)
}
