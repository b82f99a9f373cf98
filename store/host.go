package store

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"sync"
	"time"
)

// Host is the computer as the store sees it. Tests make their own.
type Host struct {
	BootID    string               // of this boot; empty when unknown
	MachineID string               // of the installation; empty when unknown
	Name      string               // host name
	Awake     func() time.Duration // since boot, not counting suspension; the same for all processes
	Suspended func() time.Duration // since boot, in suspension; may be nil
}

// ThisHost reads what the system says about this computer.
func ThisHost() *Host {
	name, _ := os.Hostname() // a part of a hash: empty does no harm
	return &Host{BootID: bootID(), MachineID: machineID(), Name: name, Awake: awake, Suspended: suspended}
}

// hash names the directory of this computer's records in a home that may be
// shared between computers.
func (h *Host) hash() string {
	sum := sha256.Sum256([]byte(h.MachineID + "\x00" + h.Name))
	return hex.EncodeToString(sum[:4])
}

// now is the awake time in nanoseconds; never zero, which means "no time".
func (h *Host) now() int64 { return max(1, int64(h.Awake())) }

// settleWindow holds sweeps back for a while after the computer woke up, since
// all that waits for something has waited in vain.
type settleWindow struct {
	mu        sync.Mutex
	started   bool
	suspended time.Duration
	until     int64
}

// settleTime is how long after a resume nothing is reaped.
const settleTime = 30 * time.Second

// closed reports whether the computer was resumed a moment ago.
func (w *settleWindow) closed(h *Host) bool {
	if h.Suspended == nil {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	now, s := h.now(), h.Suspended()
	if w.started && s-w.suspended > 5*time.Second {
		w.until = now + int64(settleTime)
	}
	w.started, w.suspended = true, s
	return now < w.until
}
