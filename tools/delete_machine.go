package tools

import (
	"context"

	"smol-mcp/fleet"
	"smol-mcp/store"
)

type deleteIn struct {
	Name string `json:"name"`
}

type deleteOut struct {
	Deleted     string `json:"deleted"`
	AlreadyGone bool   `json:"alreadyGone"`
	CostMicros  *int64 `json:"costMicros,omitempty"`
}

func deleteMachine() tool {
	return define(tool{
		name:  "delete-machine",
		title: "Delete machine",
		description: "Deletes a machine in any state with its disk and everything on it; this cannot be undone. Use it when you are done with a machine; to keep its disk use stop-machine. " +
			"It is reported only once the fleet confirms it. A machine that does not exist counts as deleted (alreadyGone). One with branches is refused with their names: delete those first. " +
			"Check the owner with get-machine unless you made it.",
		hints: hints{destructive: true, idempotent: true, openWorld: true},
		in:    arguments(nameArgument()),
		out: object(
			required("deleted", text("")),
			required("alreadyGone", flag("")),
			optional("costMicros", integer("Millionths of the currency.")),
		),
	}, (*call).delete)
}

// delete writes the wish down before it is sent, so that a crash in between does
// not leave the machine.
func (c *call) delete(ctx context.Context, in deleteIn) (deleteOut, error) {
	out := deleteOut{Deleted: in.Name}
	if err := fleet.CheckAnyName(in.Name); err != nil {
		return out, err
	}
	c.stage("deleting %s", in.Name)
	rec, recorded, err := store.Record{}, false, error(nil)
	if !c.hidden {
		rec, recorded, err = c.records.Tombstone(ctx, c.key(in.Name))
	}
	if err != nil {
		// The machine is the agent's to delete; a record that cannot be written is mended by the 404 of a later sweep.
		c.opts.Log.Warn("delete without a record", "machine", in.Name, "err", err)
	}
	c.forget(in.Name)
	done, err := c.drop(ctx, in.Name)
	switch out.AlreadyGone = fleet.CodeOf(err) == fleet.CodeNotFound; {
	case out.AlreadyGone && !recorded && c.recordedElsewhere(ctx):
		return out, err // it is not gone, only out of sight
	case err != nil && !out.AlreadyGone:
		return out, c.undeleted(ctx, rec, recorded, err)
	case err == nil:
		out.CostMicros = pointer(done.CostMicros)
	}
	if recorded {
		if err := c.opts.Remover.Remove(ctx, rec); err != nil {
			c.opts.Log.Warn("the record of a deleted machine stays for a sweep", "machine", in.Name, "err", err)
		}
	}
	return out, nil
}

// undeleted settles the record of a machine that was not deleted. After a refusal
// it stays as it was; after a failure the server goes on trying.
func (c *call) undeleted(ctx context.Context, rec store.Record, recorded bool, cause error) error {
	failure := *explain(cause)
	if !recorded {
		return &failure
	}
	if !failure.MaybeDone && isPermanent(cause) {
		if err := c.records.Restore(ctx, rec); err != nil {
			c.opts.Log.Warn("a refused deletion stays recorded", "machine", rec.Name, "err", err)
		}
		return &failure
	}
	c.background(ctx, rollbackTimeout, func(ctx context.Context) { _ = c.opts.Remover.Remove(ctx, rec) })
	failure.Why = sentence(failure.Why) + " The wish is recorded, and the server goes on trying"
	return &failure
}
