package tools

import (
	"context"

	"smol-mcp/fleet"
)

// Review asks the machines whether the commands still run that [Session.Busy] counts: one
// that nobody looks at would else count until its time is over, which may be a day. It
// starts no machine, and what cannot be asked stays counted.
func (s *Session) Review(ctx context.Context) {
	if !s.calls.begin() {
		return
	}
	defer s.calls.done()
	for _, one := range s.sites {
		for _, name := range one.underway.names() {
			c, err := (&call{Session: s, stage: func(string, ...any) {}}).at(ctx, one)
			if err != nil {
				break // nothing of this fleet can be asked
			}
			_ = s.guard(func() error { c.review(ctx, name); return nil })
		}
	}
}

// review drops the commands of a machine that do not run any more.
func (c *call) review(ctx context.Context, name string) {
	m, err := c.fleet.Get(ctx, name)
	switch {
	case fleet.CodeOf(err) == fleet.CodeNotFound || err == nil && m.State == fleet.Stopped:
		c.underway.take(name)
		return
	case err != nil || m.State != fleet.Running:
		return
	}
	all, _ := c.commands(ctx, name)
	c.underway.change(name, func(d deadlines) deadlines {
		for _, l := range all {
			if l.State != "running" {
				d = d.without(l.CommandID)
			}
		}
		return d
	})
}

// names are the machines of which something is remembered.
func (b *byMachine[T]) names() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []string
	for name := range b.held {
		all = append(all, name)
	}
	return all
}
