package tools

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"smol-mcp/fleet"
	"smol-mcp/store"
)

// owners tells which machines of the fleet belong to which principals, by name, and
// which kept ones are gone by other means than a call here: they are not in all, which is what
// the fleet had before.
func (p private) owners(ctx context.Context, all []fleet.Machine) (owners map[string]string, gone []store.Kept, err error) {
	here, err := p.key(ctx, "")
	if err != nil {
		return nil, nil, err
	}
	recs, err := p.s.opts.Store.Records(ctx) // before what is kept; see conceals
	if err != nil {
		return nil, nil, err
	}
	kept, err := p.s.opts.Store.Kept()
	if err != nil {
		return nil, nil, err
	}
	there := map[string]bool{}
	for _, m := range all {
		there[m.Name] = true
	}
	owners = map[string]string{}
	for _, k := range kept {
		if k.Target == here.Target && k.Account == here.Account {
			owners[k.Name] = k.Principal
			if !there[k.Name] && !k.Pending() {
				gone = append(gone, k)
			}
		}
	}
	for _, rec := range recs {
		if rec.Target == here.Target && rec.Account == here.Account && rec.Phase != store.Gone {
			owners[rec.Name] = rec.Principal()
			gone = slices.DeleteFunc(gone, func(k store.Kept) bool { return k.Name == rec.Name })
		}
	}
	return owners, gone, nil
}

// forgottenAtOnce bounds the questions of one list after machines that it misses.
const forgottenAtOnce = 4

// forgetKept removes what is written down of whose machines were that are gone, so that
// it says nothing of later ones of their names. That a list misses them is not proof enough.
func (p private) forgetKept(ctx context.Context, gone []store.Kept) {
	for _, k := range gone[:min(len(gone), forgottenAtOnce)] {
		if _, err := p.Fleet.Get(ctx, k.Name); fleet.CodeOf(err) != fleet.CodeNotFound {
			continue
		}
		if err := p.s.opts.Store.Unkeep(k); err != nil {
			p.s.opts.Log.Warn("whose a machine was that is gone is still written down", "machine", k.Name, "err", err)
		}
	}
}

// drop deletes a machine in the fleet, and then what is written down of whose it is.
func (c *call) drop(ctx context.Context, name string) (fleet.Deletion, error) {
	kept, found, err := c.opts.Store.KeptBy(c.key(name)) // first: one of that name may follow at once
	if err != nil {
		c.opts.Log.Warn("whose a machine is stays written down", "machine", name, "err", err)
	}
	done, err := c.fleet.Delete(ctx, name)
	// Elsewhere "not there" may be the word of something in between.
	gone := err == nil || c.fleet.Target() == localTarget && fleet.CodeOf(err) == fleet.CodeNotFound
	if found && gone && (c.opts.Principal == "" || c.opts.Principal == kept.Principal) {
		if err := c.opts.Store.Unkeep(kept); err != nil {
			c.opts.Log.Warn("whose a machine was that is gone is still written down", "machine", name, "err", err)
		}
	}
	return done, err
}

// checkKept refuses the name of a machine that is kept for another principal: with a wish
// on record it would be this one's until the fleet refuses it. On this computer [call.checkFree]
// has looked.
func (c *call) checkKept(ctx context.Context, wish store.Wish) error {
	if c.opts.Principal == "" || wish.Target == localTarget {
		return nil
	}
	kept, found, err := c.opts.Store.KeptBy(wish.Key())
	if err != nil || !found || kept.Principal == c.opts.Principal {
		return err
	}
	return c.checkFree(ctx, wish.Name)
}

// checkOwn counts the machines of the principal that were wished for before rec: those on
// record, and those that are kept.
func (c *call) checkOwn(ctx context.Context, rec store.Record) error {
	limit := c.permit().Machines
	if limit == 0 {
		return nil
	}
	recs, err := c.opts.Store.Records(ctx)
	if err != nil {
		return err
	}
	all, err := c.opts.Store.Kept()
	if err != nil {
		return err
	}
	kept := map[store.Key]store.Kept{}
	for _, k := range all {
		kept[k.Key()] = k // the last counts
	}
	maps.DeleteFunc(kept, func(_ store.Key, k store.Kept) bool { return k.Principal != c.opts.Principal || k.UID >= rec.UID })
	var names []string
	for _, r := range recs {
		if r.Phase != store.Gone {
			delete(kept, r.Key())
		}
		if (r.Phase == store.Creating || r.Phase == store.Ready) && r.Principal() == c.opts.Principal && r.UID < rec.UID {
			names = append(names, r.Name)
		}
	}
	if len(kept) > 0 && len(names)+len(kept) >= limit {
		if err := c.leaveOutGone(ctx, kept); err != nil {
			return err
		}
	}
	for key := range kept {
		names = append(names, key.Name)
	}
	slices.Sort(names)
	if len(names) < limit {
		return nil
	}
	return &fleet.Error{Code: fleet.CodeQuota, Op: "create machine " + rec.Name,
		Why:  fmt.Sprintf("this client's token allows %d machines at once, and there are %s", limit, strings.Join(names[:min(len(names), 20)], ", ")),
		Next: "delete one that is no longer needed with delete-machine"}
}

// leaveOutGone takes out of kept what the call's fleet does not have any more, since other
// programs have deleted it.
func (c *call) leaveOutGone(ctx context.Context, kept map[store.Key]store.Kept) error {
	machines, err := whole(c.fleet).List(ctx)
	if err != nil {
		return err
	}
	there := map[store.Key]bool{}
	for _, m := range machines {
		there[c.key(m.Name)] = true
	}
	maps.DeleteFunc(kept, func(key store.Key, _ store.Kept) bool { return key == c.key(key.Name) && !there[key] })
	return nil
}
