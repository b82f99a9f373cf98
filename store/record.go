package store

import (
	"strings"
	"time"
)

// Key names a machine: the fleet's word, the account's fingerprint (empty on
// local) and the machine's name.
type Key struct {
	Target  string
	Account string
	Name    string
}

func (k Key) bytes() []byte {
	return []byte(k.Target + "\x00" + k.Account + "\x00" + k.Name)
}

func parseKey(b []byte) (Key, bool) {
	p := strings.Split(string(b), "\x00")
	if len(p) != 3 {
		return Key{}, false
	}
	return Key{p[0], p[1], p[2]}, true
}

// Kind says how long a machine is meant to live.
type Kind string

// The kinds.
const (
	Once       Kind = "once"       // for one command; never taken over
	Ephemeral  Kind = "ephemeral"  // as long as its session
	Persistent Kind = "persistent" // until a user deletes it; recorded only while it is created
)

// Phase is where a record is in its life; the package comment draws it.
type Phase string

// The phases.
const (
	Creating Phase = "creating" // the fleet may have been asked for it
	Ready    Phase = "ready"    // the fleet has it
	Deleting Phase = "deleting" // it has to go
	Gone     Phase = "gone"     // it is gone; only the name is kept for a while
)

// Wish is what a session wants to have created.
type Wish struct {
	Target   string
	Account  string
	Name     string
	Kind     Kind
	Parent   string        // UID of the record this is a branch of
	Image    string        // remembered, since a fleet may not tell
	Network  string        // the same
	Chosen   bool          // a person or agent chose the name, so others may have it too
	Deadline time.Duration // how long after it was sent the create call may still make the machine; 0: 15 minutes
}

// Key is the key of the record that the wish becomes.
func (w Wish) Key() Key { return Key{w.Target, w.Account, w.Name} }

// createDeadline is long enough for a pull inside a create call.
const createDeadline = 15 * time.Minute

// Record is what is written down about one machine. Secrets and environments
// are never in it.
type Record struct {
	UID     string `json:"uid"` // of this record; a later one of the same name has another
	Target  string `json:"target"`
	Account string `json:"account,omitempty"`
	Name    string `json:"name"`
	Kind    Kind   `json:"kind"`
	Phase   Phase  `json:"phase"`

	Session  string `json:"session,omitempty"`  // the owner
	Instance string `json:"instance,omitempty"` // the process of the owner
	Parent   string `json:"parent,omitempty"`   // UID of the record this is a branch of

	Image        string    `json:"image,omitempty"`
	Network      string    `json:"network,omitempty"`
	Chosen       bool      `json:"chosen,omitempty"` // the name was chosen, so others may have it too
	FleetID      string    `json:"fleetId,omitempty"`
	FleetCreated time.Time `json:"fleetCreated,omitzero"` // the fleet's word for when; tells two machines of one name apart
	Created      time.Time `json:"created"`               // wall clock, to be shown only

	CreateFor int64 `json:"createNanos,omitempty"`  // how long a create call may take effect after it was sent
	Deadline  int64 `json:"deadlineMono,omitempty"` // until then an absent machine may still appear; 0 once confirmed

	Due      int64  `json:"dueMono,omitempty"` // when a sweep has to look; 0: never
	Claimer  string `json:"claimer,omitempty"` // instance that deletes it now
	Claimed  int64  `json:"claimedMono,omitempty"`
	Stolen   bool   `json:"stolen,omitempty"` // a claim was ended by its claimer's death
	Attempts int    `json:"attempts,omitempty"`
	Blocked  bool   `json:"blocked,omitempty"` // only a person can help
	Error    string `json:"error,omitempty"`   // of the last try to delete it

	// filled in when read
	sess  session
	inst  instance
	owner ownerState
	now   int64

	claimerDead bool // its claimer's death is proven
}

// Key is the record's key.
func (r Record) Key() Key { return Key{r.Target, r.Account, r.Name} }

// localTarget is the fleet of this computer.
const localTarget = "local"

// remote reports whether the machine is elsewhere: then a create call may outlive a boot
// of this computer, and what is deleted is told by an id that is never used again.
func (r Record) remote() bool { return r.Target != localTarget }

// unsent starts the wait for a machine that may still appear, when the owner is
// known to send no create call any more: he gave up, ended or died. He may have been
// stopped since his intent, and sent it a moment ago.
func (r *Record) unsent(now int64) {
	if r.Confirmed() {
		return
	}
	if r.CreateFor == 0 { // written by a version that did not say
		r.CreateFor = int64(createDeadline)
	}
	r.Deadline = now + r.CreateFor
}

// Principal is whose session owns it: sessions of another one must not see it.
func (r Record) Principal() string { return r.sess.Principal }

// Confirmed reports whether the fleet said that it made the machine.
func (r Record) Confirmed() bool { return r.Deadline == 0 }

// Owner is whose a machine is, as a session sees it.
type Owner string

// The owners.
const (
	ThisSession    Owner = "this-session"
	AnotherSession Owner = "another-session"
	CrashedSession Owner = "crashed-session" // can be taken over by naming it
	NoOwner        Owner = "none"            // not recorded, or left by a session that ended
)

// ownerState is what is known of a record's owner at the moment it was read.
type ownerState int

const (
	ownerUnknown ownerState = iota // no proof: to be treated as alive
	ownerLive
	ownerDead
	ownerEnded
)

// Left returns how long a crashed session's machine is still kept, in awake
// time, and false for any other record.
func (r Record) Left() (time.Duration, bool) {
	if r.owner != ownerDead || r.Phase != Ready {
		return 0, false
	}
	if r.Kind == Once {
		return 0, true
	}
	grace := r.sess.Grace
	if r.sess.OrphanMono > 0 {
		grace -= max(0, r.now-r.sess.OrphanMono)
	}
	return max(0, time.Duration(grace)), true
}

// adoptable reports whether a live session of principal may go on with it.
func (r Record) adoptable(principal string) bool {
	return r.Phase == Ready && r.Kind == Ephemeral && r.sess.Principal == principal
}

// session is a row of bucket sessions. It is there from the session's first
// wish until it has no machines and has ended.
type session struct {
	Instance   string `json:"instance"`
	Kind       string `json:"kind"`
	Principal  string `json:"principal,omitempty"`
	Client     string `json:"client,omitempty"`
	State      string `json:"state"`
	OrphanMono int64  `json:"orphanMono,omitempty"` // first proof of its process's death
	Grace      int64  `json:"grace"`                // nanoseconds
}

// The states of a session row.
const (
	sessionLive   = "live"
	sessionOrphan = "orphan"
	sessionEnded  = "ended"
)

// instance is a row of bucket instances: one life of a process.
type instance struct {
	Version     string    `json:"version,omitempty"`
	Kind        string    `json:"kind,omitempty"`
	File        string    `json:"file"` // in inst/
	Lock        string    `json:"lock"` // identity of that file on its device
	PID         int       `json:"pid"`
	Ticks       uint64    `json:"ticks,omitempty"` // when the pid was started
	PIDNS       string    `json:"pidns,omitempty"` // in which namespace pid means something
	Started     time.Time `json:"started"`         // wall clock, to be shown only
	MissingMono int64     `json:"missingMono,omitempty"`
	Dead        bool      `json:"dead,omitempty"` // proven once, true for ever
}
