package tools

import (
	"context"
	"errors"

	"smol-mcp/fleet"
	"smol-mcp/store"
)

// elsewhere explains that a machine is not found since it is on record for another
// account of the cloud, or for another engine, than this server works with. What is
// there cannot be seen from here, and most likely still runs.
func (c *call) elsewhere(ctx context.Context, err error) error {
	var e *fleet.Error
	if c.site == nil || c.named == "" || !errors.As(err, &e) || e.Code != fleet.CodeNotFound || !c.recordedElsewhere(ctx) {
		return err
	}
	place, setting := "account", "the key that it was made with"
	if c.fleet.Target() == localTarget {
		place, setting = "engine", "the settings that it was made with"
	}
	told := *e
	told.Why = sentence(e.Why) + " A machine of this name is on record for another " + place + ", which this server does not see; it may well be there"
	told.Next = "ask the user to start the server with " + setting
	return &told
}

// recordedElsewhere reports whether the machine that the call names is on record for
// another account or engine, and not for the call's own.
func (c *call) recordedElsewhere(ctx context.Context) bool {
	recs, err := c.opts.Store.Records(ctx)
	if err != nil {
		return false
	}
	there := false
	for _, rec := range recs {
		if rec.Name != c.named || rec.Target != c.fleet.Target() || rec.Phase == store.Gone || c.hides(rec) {
			continue
		}
		if rec.Account == c.account {
			return false
		}
		there = true
	}
	return there
}
