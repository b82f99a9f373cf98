package tools

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"smol-mcp/fleet"
	"smol-mcp/store"
)

// intend records the wish for a machine, and takes it back when there are as many
// machines as the settings allow. The record comes first, so that of several
// wishes at once, also of several processes, no more come true than there is room for.
func (c *call) intend(ctx context.Context, wish store.Wish) (store.Record, error) {
	if err := c.checkKept(ctx, wish); err != nil {
		return store.Record{}, err
	}
	rec, err := c.records.Intend(ctx, wish)
	if err != nil {
		return rec, err
	}
	if err := c.checkOwn(ctx, rec); err != nil {
		return rec, c.takeBack(ctx, rec, err)
	}
	if c.opts.Limits.MaxMachines == 0 {
		return rec, nil
	}
	if err := c.checkRoom(ctx, rec); err != nil {
		return rec, c.takeBack(ctx, rec, err)
	}
	return rec, nil
}

// checkRoom counts the machines before rec: all that the fleet shows, whoever made
// them, and those that were wished for earlier.
func (c *call) checkRoom(ctx context.Context, rec store.Record) error {
	// The records come first: what is confirmed between the two looks is in the list.
	recs, err := c.allRecords(ctx)
	if err != nil {
		return err
	}
	machines, err := whole(c.fleet).List(ctx)
	if err != nil {
		return err
	}
	before := map[string]bool{}
	for _, m := range machines {
		before[m.Name] = true
	}
	for name, other := range recs {
		if other.Phase == store.Deleting || other.Phase == store.Gone {
			continue // it counts as long as the fleet shows it
		}
		before[name] = other.UID < rec.UID // ids of records are in the order of their wishes
	}
	var names []string
	for name, counts := range before {
		if counts {
			names = append(names, name)
		}
	}
	limit := c.opts.Limits.MaxMachines
	if len(names) < limit {
		return nil
	}
	slices.Sort(names)
	there := strings.Join(names[:min(len(names), 20)], ", ")
	if c.opts.Principal != "" { // some may be another's
		there = "as many"
	}
	return &fleet.Error{Code: fleet.CodeQuota, Op: "create machine " + rec.Name,
		Why:  fmt.Sprintf("SMOL_MCP_MAX_MACHINES allows %d, and there are %s", limit, there),
		Next: "delete one that is no longer needed with delete-machine"}
}
