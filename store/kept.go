package store

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Kept says whose a machine is that is kept beyond its session: it belongs to the
// principal who had it made. It is a file in S/kept, since such a machine
// outlives its record and the boot. It is written before the create call, so it may
// stand for a machine that never was, and then means nothing. What the user of this
// computer or another program makes has none.
type Kept struct {
	V         int       `json:"v"`
	UID       string    `json:"uid"` // of the record of its creation; the latest of a name counts
	Target    string    `json:"target"`
	Account   string    `json:"account,omitempty"`
	Name      string    `json:"name"`
	Principal string    `json:"principal"`
	Created   time.Time `json:"created"` // wall clock, of the wish
}

const keptVersion = 1

// Key names the machine.
func (k Kept) Key() Key { return Key{k.Target, k.Account, k.Name} }

// Pending reports whether the machine may be missing since the call that creates it may
// still be under way.
func (k Kept) Pending() bool { return time.Since(k.Created) < createDeadline }

// file is the name of k's file. All files of a machine begin alike, so whose it is
// is known without reading those of others.
func (k Kept) file() string { return keptPrefix(k.Key()) + k.UID + ".json" }

func keptPrefix(key Key) string {
	sum := sha256.Sum256(key.bytes())
	return hex.EncodeToString(sum[:16]) + "-"
}

// openKept opens S/kept. Without create there is none where nothing was kept yet:
// errAbsent.
func (s *Store) openKept(create bool) (*os.Root, error) {
	state, err := s.stateDir()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrKept, err)
	}
	root, err := openPrivate(filepath.Join(state, "kept"), true, create && !s.opts.ReadOnly)
	if err != nil && !errors.Is(err, errAbsent) {
		err = fmt.Errorf("%w: %w", ErrKept, dbError(err))
	}
	return root, err
}

// noteDown writes the files that outlive a record in creation.
func (s *Session) noteDown(net *os.Root, rec Record) error {
	kept := rec.Kind == Persistent && s.row.Principal != ""
	if kept {
		if err := s.st.keep(rec, s.row.Principal); err != nil {
			return err
		}
		failpoint("intend-kept")
	}
	err := s.st.writeLedger(net, rec)
	if err != nil && kept {
		err = errors.Join(err, s.st.unkeep(rec))
	}
	return err
}

// keep writes down that the machine of rec is to be kept for a principal.
func (s *Store) keep(rec Record, principal string) error {
	root, err := s.openKept(true)
	if err != nil {
		return err
	}
	defer root.Close()
	k := Kept{keptVersion, rec.UID, rec.Target, rec.Account, rec.Name, principal, time.Now().Round(time.Second)}
	data, err := json.Marshal(k)
	if err != nil {
		return err
	}
	if err := writeSynced(root, k.file(), append(data, '\n')); err != nil {
		return fmt.Errorf("%w: %s: %w", ErrFull, root.Name(), err)
	}
	return nil
}

// unkeep removes what [Store.keep] wrote for rec.
func (s *Store) unkeep(rec Record) error {
	return s.removeKept(rec.Key(), func(uid string) bool { return uid == rec.UID })
}

// keepOnly removes what was written for earlier machines of the name of rec.
func (s *Store) keepOnly(rec Record) error {
	return s.removeKept(rec.Key(), func(uid string) bool { return uid != rec.UID })
}

// Unkeep removes k when its machine is gone. One of that name that was wished for
// since is not touched.
func (s *Store) Unkeep(k Kept) error {
	return s.removeKept(k.Key(), func(uid string) bool { return uid <= k.UID })
}

func (s *Store) removeKept(key Key, which func(uid string) bool) error {
	root, err := s.openKept(false)
	if errors.Is(err, errAbsent) {
		return nil
	}
	if err != nil {
		return err
	}
	defer root.Close()
	names, err := keptNames(root, keptPrefix(key))
	for _, name := range names {
		if !which(keptUID(name)) {
			continue
		}
		if gone := root.Remove(name); gone != nil && !errors.Is(gone, fs.ErrNotExist) {
			err = errors.Join(err, gone)
		}
	}
	return err
}

// KeptBy says whose the machine of key is that was made to be kept; false: nobody's,
// so everybody's. An error means that it is not known, and then it must not be
// shown to any principal.
func (s *Store) KeptBy(key Key) (Kept, bool, error) {
	root, err := s.openKept(false)
	if errors.Is(err, errAbsent) {
		return Kept{}, false, nil
	}
	if err != nil {
		return Kept{}, false, err
	}
	defer root.Close()
	for {
		names, err := keptNames(root, keptPrefix(key))
		if err != nil || len(names) == 0 {
			return Kept{}, false, err
		}
		k, err := readKept(root, names[len(names)-1])
		if !errors.Is(err, fs.ErrNotExist) { // else it was removed since: look again
			return k, err == nil, err
		}
	}
}

// Kept returns whose all machines are that were made to be kept for a principal, in the
// order of their wishes: of several of one machine the last counts.
func (s *Store) Kept() ([]Kept, error) {
	root, err := s.openKept(false)
	if errors.Is(err, errAbsent) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer root.Close()
	names, err := keptNames(root, "")
	if err != nil {
		return nil, err
	}
	var all []Kept
	for _, name := range names {
		k, err := readKept(root, name)
		switch {
		case errors.Is(err, fs.ErrNotExist): // removed since
		case err != nil:
			return nil, err
		default:
			all = append(all, k)
		}
	}
	slices.SortStableFunc(all, func(a, b Kept) int { return strings.Compare(a.UID, b.UID) })
	return all, nil
}

// keptNames are the files whose names begin so, in the order of their names. It looks at
// no file, since it is on the way of every request.
func keptNames(root *os.Root, prefix string) ([]string, error) {
	dir, err := root.Open(".")
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrKept, err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrKept, err)
	}
	names = slices.DeleteFunc(names, func(name string) bool { return !strings.HasPrefix(name, prefix) || !strings.HasSuffix(name, ".json") })
	slices.Sort(names)
	return names, nil
}

func keptUID(file string) string {
	_, rest, _ := strings.Cut(file, "-")
	return strings.TrimSuffix(rest, ".json")
}

func readKept(root *os.Root, name string) (Kept, error) {
	data, err := root.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return Kept{}, err
	}
	var k Kept
	if err == nil {
		err = json.Unmarshal(data, &k)
	}
	if err == nil && (k.file() != name || k.Principal == "") {
		err = errors.New("it does not belong to its name")
	}
	if err != nil {
		return Kept{}, fmt.Errorf("%w: %s: %w; without this file the machine is everybody's", ErrKept, filepath.Join(root.Name(), name), err)
	}
	return k, nil
}
