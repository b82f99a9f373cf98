package tools

import (
	"context"
	"crypto/rand"
	"time"

	"smol-mcp/fleet"
	"smol-mcp/store"
)

// A machine is what results say about one.
type machine struct {
	ID        string  `json:"id"`
	Name      string  `json:"name"`
	Target    string  `json:"target"`
	State     string  `json:"state"`
	StateWord string  `json:"stateWord,omitempty"`
	CPUs      int     `json:"cpus"`
	MemoryMB  int     `json:"memoryMb"`
	Network   string  `json:"network"`
	CreatedAt int64   `json:"createdAt"` // epoch seconds; 0 when the fleet does not say
	Image     *string `json:"image"`
	PID       *int    `json:"pid"`
	URL       *string `json:"url"`
	Ephemeral bool    `json:"ephemeral"`
	Owner     string  `json:"owner"`
	ExpiresAt *int64  `json:"expiresAt"`
	Engine    string  `json:"engine"`
	Isolation string  `json:"isolation"`
}

// An origin is what a machine was made with and fleets do not tell: smolvm before
// September 2026 does not report the image, and whether a machine
// may be branched has to be said at each start. Machines that are kept have no record.
type origin struct {
	image      string
	branchable bool
}

// show joins what the fleet says of a machine with what the records say. rec is
// nil for a machine without one.
func (c *call) show(ctx context.Context, m fleet.Machine, rec *store.Record) machine {
	c.saw(m)
	v := machine{
		ID: m.ID, Name: m.Name, Target: c.fleet.Target(), State: string(m.State), CPUs: m.CPUs, MemoryMB: m.MemoryMB,
		Network: m.Network, Owner: string(store.NoOwner),
		PID: pointer(m.PID), URL: pointer(m.URL), Image: pointer(m.Image),
	}
	if m.State == fleet.Unknown {
		v.StateWord = m.Word
	}
	if !m.CreatedAt.IsZero() {
		v.CreatedAt = m.CreatedAt.Unix()
	}
	if !m.ExpiresAt.IsZero() {
		v.ExpiresAt = pointer(m.ExpiresAt.Unix())
	}
	if v.Image == nil {
		v.Image = pointer(c.made.of(m.Name).image)
	}
	if rec != nil {
		if rec.Phase == store.Deleting {
			v.ExpiresAt = pointer(time.Now().Unix())
		}
		if left, ok := rec.Left(); ok && (m.ExpiresAt.IsZero() || left < time.Until(m.ExpiresAt)) {
			v.ExpiresAt = pointer(time.Now().Add(left).Unix())
		}
		v.Ephemeral = rec.Kind != store.Persistent
		v.Owner = string(c.records.Owner(*rec))
		if v.Image == nil {
			v.Image = pointer(rec.Image)
		}
	}
	if rec == nil && m.Owner != "" && m.Owner != c.opts.Installation {
		v.Owner = string(store.AnotherSession) // of another computer, whose records we do not see
	}
	if info, err := c.fleet.Info(ctx); err == nil {
		v.Engine, v.Isolation = info.Engine, info.Isolation
	}
	return v
}

// showOne is show for a machine whose record is still to be looked up, which
// costs nothing for this session's own.
func (c *call) showOne(ctx context.Context, m fleet.Machine) machine {
	rec, found, err := c.records.Use(ctx, c.key(m.Name))
	switch {
	case err != nil:
		v := c.show(ctx, m, nil)
		v.Owner = ownerUnknown
		return v
	case !found:
		return c.show(ctx, m, nil)
	}
	return c.show(ctx, m, &rec)
}

// ownerUnknown is the owner of a machine while the records cannot be read.
const ownerUnknown = "unknown"

// accountOf tells whose machines a fleet has.
func (s *Session) accountOf(ctx context.Context, one *site) (string, error) {
	if s.opts.Account == nil {
		return "", nil
	}
	return s.opts.Account(ctx, one.fleet.Target())
}

// keyOf is the key of the record of a fleet's machine.
func (s *Session) keyOf(ctx context.Context, one *site, name string) (store.Key, error) {
	account, err := s.accountOf(ctx, one)
	return store.Key{Target: one.fleet.Target(), Account: account, Name: name}, err
}

// forget drops what this session knew of a machine that goes.
func (c *call) forget(name string) {
	c.contacts.take(name)
	c.finished.take(name)
	c.underway.take(name)
	c.awaits.take(name)
	c.made.take(name)
	c.ends.take(name)
}

// key is the key of the record of a machine of the call's fleet.
func (c *call) key(name string) store.Key {
	return store.Key{Target: c.fleet.Target(), Account: c.account, Name: name}
}

// pointer is nil for a zero value, which a result shows as null.
func pointer[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

// madeUpName is a name for a machine that nobody named: the prefix, word, and 12 random
// characters. In a fleet that other computers use too the first four of them are of the
// installation's mark, so that people see which machines come from where.
func (c *call) madeUpName(word string) string {
	prefix, mark := c.opts.Limits.MachinePrefix+word, ""
	if c.fleet.Target() != localTarget {
		mark = c.opts.Installation[:min(4, len(c.opts.Installation))]
	}
	return randomName(prefix+mark, 12-len(mark))
}

// randomName is prefix and n characters of a-z and 0-9.
func randomName(prefix string, n int) string {
	const letters = "abcdefghijklmnopqrstuvwxyz0123456789"
	b := make([]byte, n)
	if _, err := rand.Read(b); err != nil {
		panic("tools: the system gives no random bytes: " + err.Error())
	}
	for i := range b {
		b[i] = letters[int(b[i])%len(letters)]
	}
	return prefix + string(b)
}
