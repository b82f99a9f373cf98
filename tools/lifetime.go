package tools

import (
	"errors"
	"fmt"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"smol-mcp/fleet"
	"smol-mcp/store"
)

// A lifetime is when a fleet deletes a machine by itself, whatever it does then.
type lifetime struct{ begin, end time.Time }

// warnTime is how long before its end a machine's results warn of it; a tenth of its
// life, where that is longer.
const warnTime = 10 * time.Minute

// saw remembers the end that a fleet has set to a machine.
func (c *call) saw(m fleet.Machine) {
	if !m.ExpiresAt.IsZero() {
		c.ends.change(m.Name, func(lifetime) lifetime { return lifetime{m.CreatedAt, m.ExpiresAt} })
	}
}

// isNear reports whether the end is near: not before half of the life is over.
func (l lifetime) isNear(now time.Time) bool {
	life := l.end.Sub(l.begin)
	return !l.end.IsZero() && l.end.Sub(now) <= min(max(warnTime, life/10), life/2)
}

// warning is a line behind the result of a call about a machine whose end is near.
func (c *call) warning() []mcp.Content {
	if c.site == nil || c.named == "" {
		return nil
	}
	now := time.Now()
	if l := c.ends.of(c.named); l.isNear(now) && now.Before(l.end) {
		left := l.end.Sub(now).Round(time.Minute)
		return []mcp.Content{&mcp.TextContent{Text: fmt.Sprintf(
			"Warning: the cloud deletes %s with all that is on it at %s, in about %d min, whatever it is doing. Nothing extends that: fetch what you need with read-file now, and go on in a new machine.",
			c.named, l.end.UTC().Format(time.RFC3339), max(1, int(left.Minutes())))}}
	}
	return nil
}

// outlived explains that a machine is not found since its time was over.
func (c *call) outlived(err error) error {
	var e *fleet.Error
	if c.site == nil || c.named == "" || !errors.As(err, &e) || e.Code != fleet.CodeNotFound {
		return err
	}
	l := c.ends.of(c.named)
	if l.end.IsZero() || time.Now().Before(l.end) {
		return err
	}
	told := *e
	told.Why = sentence(e.Why) + " Its time to live was over at " + l.end.UTC().Format(time.RFC3339) + ", so the cloud deleted it"
	told.Next = "make a new one with create-machine; SMOL_MCP_EPHEMERAL_TTL_SECS sets how long they live"
	return &told
}

// endNote says where the end of a branch, which it has from its source, is not what its
// name promises. Only fleets elsewhere set ends.
func (c *call) endNote(m fleet.Machine) string {
	kept := c.lifeOf(m.Name) == store.Persistent
	switch {
	case c.fleet.Target() == localTarget || kept == m.ExpiresAt.IsZero():
		return ""
	case kept:
		return m.Name + " is not kept for long: it has the end of its source, " + m.ExpiresAt.UTC().Format(time.RFC3339)
	}
	return "the cloud has set no end to " + m.Name + ", so only this server deletes it: do not leave it behind"
}
