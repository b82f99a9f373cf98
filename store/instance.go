package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"
)

const instDir = "inst"

// enter makes this process provably alive: a locked file that no other process
// ever sees unlocked. It is a no-op when the file is there and still ours.
func (s *Store) enter() error {
	var err error
	for range maxWiped {
		if err = s.enterOnce(); !wiped(err) {
			break
		}
	}
	return err
}

func (s *Store) enterOnce() error {
	if _, err := s.find(); err != nil {
		return err
	}
	s.placeMu.Lock()
	root := s.root
	s.placeMu.Unlock()
	if root == nil {
		return errReplaced
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life != nil && s.lifeThere(root) {
		return nil
	}
	if err := root.Mkdir(instDir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return dbError(err)
	}
	name := s.id
	if s.life != nil { // wiped under us: a new file is a new lock, under a new name
		name = s.id + "-" + newID()[24:]
	}
	f, err := lockedFile(root, name, s.self())
	if err != nil {
		return dbError(fmt.Errorf("prove to be alive: %w", err))
	}
	// the old file, if any, stays open and locked: whoever still sees it sees us
	s.life, s.lifeName = f, name
	heartbeat(f)
	return nil
}

// lifeEvery is how often our lock file is looked at, at most.
const lifeEvery = time.Second

// lifeAgain makes a new file when ours was wiped.
func (s *Store) lifeAgain(root *os.Root) error {
	if root == s.livedIn && time.Since(s.lived) < lifeEvery {
		return nil
	}
	s.lived, s.livedIn = time.Now(), root
	s.mu.Lock()
	lost := s.life != nil && !s.lifeThere(root)
	s.mu.Unlock()
	if !lost {
		return nil
	}
	s.opts.Log.Warn("the runtime directory was wiped; this process registers again")
	return s.enter()
}

// lifeThere reports whether our locked file still has its name.
func (s *Store) lifeThere(root *os.Root) bool {
	mine, err := s.life.Stat()
	if err != nil {
		return false
	}
	there, err := root.Lstat(instDir + "/" + s.lifeName)
	return err == nil && os.SameFile(mine, there)
}

// lockedFile makes inst/name so that it is locked before it has that name. Its
// content is for people.
func lockedFile(root *os.Root, name string, content instance) (*os.File, error) {
	f, temp, err := lockedTemp(root, instDir+"/"+name)
	if err != nil {
		return nil, err
	}
	content.File = name
	data, err := json.Marshal(content)
	if err == nil {
		_, err = f.Write(append(data, '\n'))
	}
	if err == nil {
		failpoint("inst-rename")
		err = root.Rename(temp, instDir+"/"+name)
	}
	if err != nil {
		f.Close()
		root.Remove(temp)
		return nil, err
	}
	return f, nil
}

// tempMark is in the name of every half-made file.
const tempMark = ".tmp-"

// lockedTemp makes a file beside name, to be renamed to it, and locks it: an
// unlocked one is that of a dead maker, which anybody may remove.
func lockedTemp(root *os.Root, name string) (*os.File, string, error) {
	for {
		temp := name + tempMark + newID()
		f, err := root.OpenFile(temp, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return nil, "", err
		}
		locked, err := lockTry(f, true)
		if err != nil {
			f.Close()
			root.Remove(temp)
			return nil, "", err
		}
		if _, err := root.Lstat(temp); locked && err == nil {
			return f, temp, nil
		}
		f.Close() // taken for a dead maker's just before it was locked
	}
}

// process describes this process.
func (o Options) process() instance {
	pid := os.Getpid()
	return instance{
		Version: o.Version,
		Kind:    o.Kind,
		PID:     pid,
		Ticks:   startTicks(pid),
		PIDNS:   pidNamespace(),
		Started: time.Now().Round(time.Second),
	}
}

// register writes the row of this instance: from then on its lock file counts.
func (s *Store) register(t *tx) error {
	s.mu.Lock()
	life, name := s.life, s.lifeName
	s.mu.Unlock()
	if life == nil {
		return errors.New("store: not entered")
	}
	lock, err := fileID(life)
	if err != nil {
		return err
	}
	var row instance
	ok, err := t.get(bInstances, []byte(s.id), &row)
	if err == nil && ok && row.File == name && row.Lock == lock && !row.Dead {
		return nil
	}
	row = s.self()
	row.File, row.Lock = name, lock
	return t.put(bInstances, []byte(s.id), row)
}

// leave takes this instance out of the records when nothing refers to it any
// more. Otherwise its row and file stay, and the free lock tells the rest.
func (s *Store) leave() {
	s.mu.Lock()
	life, name := s.life, s.lifeName
	s.mu.Unlock()
	if life == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeWait)
	defer cancel()
	referred := true
	err := s.update(ctx, func(t *tx) (err error) {
		if err := t.releaseClaims(s.id); err != nil {
			return err
		}
		if referred, err = t.refersTo(s.id); err != nil || referred {
			return err
		}
		return t.drop(bInstances, []byte(s.id))
	})
	if err == nil && !referred {
		s.placeMu.Lock()
		if s.root != nil {
			s.root.Remove(instDir + "/" + name)
		}
		s.placeMu.Unlock()
	}
	s.mu.Lock()
	s.life = nil
	s.mu.Unlock()
	life.Close()
}

// releaseClaims lets go of what an instance has claimed.
func (t *tx) releaseClaims(inst string) error {
	recs, err := t.records()
	if err != nil {
		return err
	}
	for _, r := range recs {
		if r.Claimer != inst {
			continue
		}
		r.Claimer = ""
		if err := t.putRecord(r); err != nil {
			return err
		}
	}
	return nil
}

// refersTo reports whether the end of an instance still has to be proven to
// somebody: it has a session that did not end, or a claim.
func (t *tx) refersTo(inst string) (bool, error) {
	found := false
	err := t.eachSession(func(_ string, row session) error {
		found = found || row.Instance == inst && row.State != sessionEnded
		return nil
	})
	if err != nil || found {
		return found, err
	}
	recs, err := t.records()
	for _, r := range recs {
		// a record whose session row is lost is judged by its instance
		found = found || r.Claimer == inst || r.Instance == inst && r.sess.State == ""
	}
	return found, err
}

func (t *tx) eachSession(fn func(id string, row session) error) error {
	c := t.Bucket([]byte(bSessions)).Cursor()
	for k, v := c.First(); k != nil; k, v = c.Next() {
		data, err := open(bSessions, k, v)
		var row session
		if err != nil || json.Unmarshal(data, &row) != nil {
			continue
		}
		if err := fn(string(k), row); err != nil {
			return err
		}
	}
	return nil
}

// tidyInstances drops the rows of dead processes to which nothing refers, and
// returns their lock files.
func (t *tx) tidyInstances() (files []string, err error) {
	idle := make(map[string]string)
	err = t.eachInstance(func(id string, row instance) error {
		if !row.Dead {
			return nil
		}
		refers, err := t.refersTo(id)
		if err == nil && !refers {
			idle[id] = row.File
		}
		return err
	})
	for id, file := range idle {
		err = errors.Join(err, t.drop(bInstances, []byte(id)))
		if file != "" {
			files = append(files, file)
		}
	}
	return files, err
}

// removeLocks removes lock files of dead processes that are not needed as a
// proof any more.
func (s *Store) removeLocks(files []string) {
	s.placeMu.Lock()
	defer s.placeMu.Unlock()
	for _, name := range files {
		if s.root != nil {
			removeFree(s.root, instDir+"/"+name)
		}
	}
}

// verdict is what can be proven about a process.
type verdict int

const (
	unproven verdict = iota // nothing: it has to be taken for alive
	alive
	dead
	missing // its file is gone or is another one: the first half of P1'
)

// missingTime is how long an instance's file must have been missing, in awake
// time, before the absence of its process counts. A live one makes a new file within seconds.
const missingTime = 10 * time.Minute

// judge looks for proof of the life or death of an instance. A verdict of
// death never changes: ids of instances are not used again.
func (s *Store) judge(id string, row instance) verdict {
	if id == s.id {
		return alive
	}
	if row.Dead {
		return dead
	}
	if id == "" || row.File == "" {
		return unproven
	}
	s.placeMu.Lock()
	root := s.root
	s.placeMu.Unlock()
	if root == nil {
		return unproven
	}
	v := probe(root, row)
	if v != missing || row.MissingMono == 0 || s.host.now()-row.MissingMono < int64(missingTime) {
		return v
	}
	if row.Ticks != 0 && row.PIDNS != "" && row.PIDNS == pidNamespace() && startTicks(row.PID) != row.Ticks {
		return dead // P1'
	}
	return v
}

// probe tries the lock of an instance's file. A shared lock keeps two probers
// from seeing each other.
func probe(root *os.Root, row instance) verdict {
	f, err := root.Open(instDir + "/" + row.File)
	if errors.Is(err, fs.ErrNotExist) {
		return missing
	}
	if err != nil {
		return unproven
	}
	defer f.Close()
	if id, err := fileID(f); err != nil {
		return unproven
	} else if id != row.Lock {
		return missing
	}
	if v, ok := byHeartbeat(f); ok {
		return v
	}
	free, err := lockTry(f, false)
	switch {
	case err != nil:
		return unproven
	case free:
		return dead // P1
	}
	return alive
}

// ownerOf says what is known of a record's owner. verdicts remembers probes.
func (s *Store) ownerOf(r Record, verdicts map[string]verdict) ownerState {
	if r.sess.State == sessionEnded {
		return ownerEnded // P3
	}
	v, ok := verdicts[r.Instance]
	if !ok {
		v = s.judge(r.Instance, r.inst)
		verdicts[r.Instance] = v
	}
	switch v {
	case alive:
		return ownerLive
	case dead:
		return ownerDead
	}
	return ownerUnknown
}

// judged returns r with its owner's state.
func (s *Store) judged(r Record) Record {
	r.owner = s.ownerOf(r, make(map[string]verdict))
	return r
}
