package tools

import (
	"maps"
	"time"
)

// deadlines are the ends of time of commands that run without a call, by their ids. A
// command that ends by itself is forgotten when somebody looks, else when its time is over.
type deadlines map[string]time.Time

// with returns the deadlines with one more, or another one, and without those that are over.
func (d deadlines) with(id string, end time.Time) deadlines {
	left := deadlines{id: end}
	for other, at := range d {
		if other != id && time.Now().Before(at) {
			left[other] = at
		}
	}
	return left
}

// without returns the deadlines of the other commands.
func (d deadlines) without(id string) deadlines {
	left := maps.Clone(d)
	delete(left, id)
	return left
}

// commandsRun reports whether a command may run whose call has stopped waiting.
func (s *Session) commandsRun() bool {
	now := time.Now()
	for _, one := range s.sites {
		if one.underway.any(func(d deadlines) bool {
			for _, end := range d {
				if now.Before(end) {
					return true
				}
			}
			return false
		}) {
			return true
		}
	}
	return false
}

// noteStanding keeps what a look has shown of a command.
func (c *call) noteStanding(name string, e ending, left time.Duration) {
	c.underway.change(name, func(d deadlines) deadlines {
		if e.running {
			return d.with(e.id, time.Now().Add(left))
		}
		return d.without(e.id)
	})
}
