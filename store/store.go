// Package store records who owns which machine, so that after any crash, of
// any process, at any moment, it is known which machines nobody needs. It knows
// the disk; it has never heard of virtual machines or of MCP. Start with [New]
// and [Store.NewSession].
//
// # Who may delete what
//
// A record says: session S of process P wished for machine M. It is written
// before the fleet is asked for M and dropped after the fleet confirmed that M
// is gone. Only these may have M deleted:
//
//	the session itself              its own machines                  no proof needed
//	a user who names M              any machine                       [Session.Tombstone]: his wish is enough
//	any reaper, and smol-mcp gc     machines of an ended owner        proof of the end, one of P1 P2 P3
//	nobody, ever, by itself         persistent machines, machines without a record, records of
//	                                another computer or account, records that fail their checksum
//
// and the proofs are
//
//	P1  the lock file of process P is there, is the very file P registered, and its lock is free
//	P2  P lived on this computer before it was booted the last time
//	P3  the session is marked as ended
//	P1' the lock file is missing or replaced: no proof at all, until P's pid (with its start
//	    time) is gone too and ten minutes of awake time have passed
//
// A missing fact is never a proof. A process holds its lock (flock) from its
// first write to its death, however it dies; a stopped or suspended one still
// holds it. There are no heartbeats, and no time stamp decides about life.
//
// # A record's life
//
//	        Intend               Confirm            Tombstone, End, owner dead + grace
//	none ------------> creating ----------> ready -----------------> deleting -----> gone --> none
//	          Abandon |   |                   |  ^                    ^  | ^   deleted   quarantine
//	none <------------+   +- owner dead ------|--|--------------------+  +-+ retry
//	                                          +--+ Use: a live session goes on with it
//
// A deleting record is claimed by one process at a time; a claim ends by its
// claimer or with the proof of his death. A name is free again only when its
// record is gone, and a record whose deletion may still be under way from an
// earlier try keeps its name for a quarantine. The death of an owner leaves
// ready machines alone for a grace, in awake time, in which a session
// that names one takes it over.
//
// # Two nets
//
// state.db lies in the runtime directory R and has meaning within one boot of
// the computer; it is never synced. Beside it each machine has a small synced
// file, the ledger, in the state directory S, which outlives logout, reboot
// and a broken state.db. A machine is in one of them from before its create
// call until its absence is confirmed.
//
//	R  $SMOL_MCP_RUNTIME_DIR, $XDG_RUNTIME_DIR/smol-mcp, /run/user/UID/smol-mcp or S/run/BOOT
//	├── state.db            opened, locked and closed again by each transaction
//	└── inst/FILE           locked by a process for its whole life
//	S  $XDG_STATE_HOME/smol-mcp/hosts/HASH of machine id and host name
//	├── ledger/UID.json     one for each machine
//	├── kept/HASH-UID.json  [Kept]: the principal whose a kept machine is; synced, the last of a name counts
//	├── installation        a random id: the mark of our machines in fleets that others use too
//	├── run/BOOT            R, where there is no better place
//	└── quarantine/         the last broken state.db files
//
// # state.db
//
// A value is a format byte (1), a CRC32C of key and JSON (big endian), and
// JSON, in which fields that this version does not know are kept. Times with
// Mono are nanoseconds of awake time since boot. Change this drawing, the
// version in bucket meta and the code together.
//
//	meta        schema               {v, minReader, minWriter}
//	            boot                 {bootId, machineId}
//	            epoch                uuid of this file's life
//	instances   ID                   instance: one life of a process
//	sessions    ID                   session: live, orphan or ended
//	machines    TARGET 0 ACCOUNT 0 NAME                Record
//	by_session  SESSION 0 machine key                  (empty) index of machines
//	due         MONO, 8 bytes big endian, machine key  (empty) what a sweep has to look at, and when
//	cursors     SESSION 0 MACHINE UID 0 STREAM         cursor: how far a subscriber has read
//	notices     sequence number      Notice: the last 256 things a person should know
package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/google/uuid"
)

// Options say where a store lies and whose it is. The zero value is usable.
type Options struct {
	RuntimeDir string        // R, overriding the search; absolute
	StateDir   string        // in place of XDG's state home; for tests
	Kind       string        // what this process is: stdio, http or gc
	Version    string        // of this program
	CrashGrace time.Duration // for machines of a crashed session; 0 is [DefaultGrace], negative none
	Wait       time.Duration // longest wait for the lock of state.db; 0 is [DefaultWait]
	ReadOnly   bool          // look, make nothing, write nothing, mend nothing
	Host       *Host         // nil: this computer; tests pretend to be another
	Log        *slog.Logger
}

// The defaults of [Options].
const (
	DefaultGrace = 10 * time.Minute
	DefaultWait  = 5 * time.Second
)

// Store is this process's access to the records of this user on this computer.
// All methods may be called from many goroutines.
type Store struct {
	opts Options
	id   string // of this instance, a process life
	host *Host

	// places, found at the first use
	placeMu sync.Mutex
	place   place
	root    *os.Root // R
	rootIs  fs.FileInfo
	ledger  *os.Root // S/ledger; nil until the first intent

	queue queue

	// of the committing goroutine alone
	locking    fs.FileInfo // the state.db that is locked
	verified   fs.FileInfo // the one that was checked as a whole
	lived      time.Time   // when our lock file was looked at, and where
	livedIn    *os.Root
	epoch      string // of the state.db that holds what is ours
	nextEpoch  string
	nextName   string
	registered string // lifeName that our row names
	checked    checked

	self func() instance // this process, without its file

	mu       sync.Mutex
	life     *os.File            // our locked file in inst/, nil before the first write
	lifeName string              // its name in inst/
	mine     map[string]*Session // sessions of this instance that wrote something
	held     map[string]holding  // by uid, what this process deletes
	flushed  time.Time           // cursors

	settle settleWindow

	trustName bool // tests leave out the look whether state.db was swapped
}

// New returns a store that has done nothing yet: the first call that needs the
// disk looks for it.
func New(opts Options) *Store {
	if opts.CrashGrace == 0 {
		opts.CrashGrace = DefaultGrace
	}
	if opts.Wait == 0 {
		opts.Wait = DefaultWait
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	host := opts.Host
	if host == nil {
		host = ThisHost()
	}
	return &Store{
		opts: opts,
		id:   newID(),
		host: host,
		self: sync.OnceValue(opts.process),
		mine: make(map[string]*Session),
		held: make(map[string]holding),
	}
}

// newID returns an id that sorts by time.
func newID() string {
	id, err := uuid.NewV7()
	if err != nil { // no randomness: nothing that needs an id may go on
		panic(err)
	}
	return id.String()
}

// Dir returns the runtime directory, found, made and checked: it is private to
// this user, on a file system whose locks can be trusted, and not in the
// temporary directory. Sockets and logs of this user's engine may lie in it.
func (s *Store) Dir() (string, error) {
	p, err := s.find()
	return p.run, err
}

// StateDir returns a directory for what has to outlive boots, beside the ledger: private to
// this user and made, unless the store is read-only.
func (s *Store) StateDir() (string, error) {
	state, err := s.stateDir()
	if err != nil {
		return "", err
	}
	root, err := openPrivate(state, true, !s.opts.ReadOnly)
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrPlace, dbError(err))
	}
	return state, root.Close()
}

// Why says which rule chose [Store.Dir], or what kept every candidate from it.
func (s *Store) Why() string {
	p, err := s.find()
	if err != nil {
		return err.Error()
	}
	return p.why
}

// Find returns the record of a machine in any phase.
func (s *Store) Find(ctx context.Context, key Key) (Record, bool, error) {
	var rec Record
	var found bool
	err := s.view(ctx, func(t *tx) (err error) {
		rec, found, err = t.record(key)
		return err
	})
	if err != nil || !found {
		return Record{}, false, err
	}
	return s.judged(rec), true, nil
}

// Records returns all records in order of target, account and name.
func (s *Store) Records(ctx context.Context) ([]Record, error) {
	var recs []Record
	err := s.view(ctx, func(t *tx) (err error) {
		recs, err = t.records()
		return err
	})
	if err != nil {
		return nil, err
	}
	verdicts := make(map[string]verdict)
	for i := range recs {
		recs[i].owner = s.ownerOf(recs[i], verdicts)
	}
	return recs, nil
}

// known reports whether anything was ever recorded, without making a place
// for it.
func (s *Store) known() (bool, error) {
	if _, err := s.find(); err != nil {
		return false, err
	}
	s.placeMu.Lock()
	defer s.placeMu.Unlock()
	if s.root != nil {
		_, err := s.root.Lstat(dbName)
		if err == nil {
			return true, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return false, err
		}
	}
	entries, err := os.ReadDir(filepath.Join(s.place.state, "ledger"))
	return err == nil && len(entries) > 0, nil
}

// Notices returns what a person should know of, oldest first.
func (s *Store) Notices(ctx context.Context) ([]Notice, error) {
	var all []Notice
	err := s.view(ctx, func(t *tx) (err error) {
		all, err = t.notices()
		return err
	})
	return all, err
}

// Abort lets go of everything as the death of the process would: nothing is
// written, and what its sessions had is left for others to find.
func (s *Store) Abort() error {
	s.queue.close()
	s.mu.Lock()
	life := s.life
	s.life = nil
	s.mu.Unlock()
	if life == nil {
		return nil
	}
	return life.Close()
}

// Close lets go of everything. Sessions that were not ended stay as those of a
// crashed process.
func (s *Store) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeWait)
	defer cancel()
	if err := s.flush(ctx, true); err != nil {
		s.opts.Log.Warn("cursors are not written", "err", err)
	}
	s.leave()
	s.queue.close()
	s.placeMu.Lock()
	defer s.placeMu.Unlock()
	for _, r := range []*os.Root{s.root, s.ledger} {
		if r != nil {
			r.Close()
		}
	}
	s.root, s.ledger = nil, nil
	return nil
}

// jitter returns a random duration below d.
func jitter(d time.Duration) time.Duration { return time.Duration(rand.Int64N(int64(d) + 1)) }
