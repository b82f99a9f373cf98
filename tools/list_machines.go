package tools

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"smol-mcp/fleet"
	"smol-mcp/store"
)

type listIn struct {
	All *bool `json:"all"`
}

type listOut struct {
	Machines []machine `json:"machines"`
	Problems []problem `json:"problems"`
}

// A problem is what kept a list from being whole.
type problem struct {
	Target string `json:"target"`
	Error  string `json:"error"`
}

func listMachines() tool {
	return define(tool{
		name:  "list-machines",
		title: "List machines",
		description: "Lists all machines of the fleet with state, size, egress and owner, in order of name. Use it to find a name or to see what is left running; " +
			"for one machine use get-machine. Machines of other sessions and programs are shown too, with their owner. " +
			"What could not be listed is named in problems; the call fails only when nothing could.",
		hints:      hints{readOnly: true, idempotent: true, openWorld: true},
		everywhere: true,
		in: arguments(
			optional("all", standard(flag("false leaves out machines that this session does not own."), true)),
		),
		out: object(
			required("machines", list("", machineSchema())),
			required("problems", list("target and error of what is missing; empty when the list is whole.", plainObject(""))),
		),
	}, (*call).list)
}

// listTime bounds how long one of several fleets may keep the others' machines back.
const listTime = 20 * time.Second

// list shows the machines of one fleet, or of all that the session may use.
func (c *call) list(ctx context.Context, in listIn) (listOut, error) {
	if c.site != nil {
		return c.listHere(ctx, in)
	}
	served := c.served()
	if len(served) == 1 {
		here, err := c.at(ctx, served[0])
		if err != nil {
			return listOut{}, err
		}
		return here.listHere(ctx, in)
	}
	lists, failed := make([]listOut, len(served)), make([]error, len(served))
	var looks sync.WaitGroup
	for i, one := range served {
		looks.Go(func() {
			lists[i], failed[i] = within(ctx, listTime, c.Session, func(ctx context.Context) (listOut, error) {
				there, err := c.at(ctx, one)
				if err != nil {
					return listOut{}, err
				}
				return there.listHere(ctx, in)
			})
		})
	}
	looks.Wait()
	return joinLists(served, lists, failed)
}

// joinLists makes one list of those of several fleets. It fails only when all did.
func joinLists(served []*site, lists []listOut, failed []error) (listOut, error) {
	out := listOut{Machines: []machine{}, Problems: []problem{}}
	for i, one := range served {
		out.Machines = append(out.Machines, lists[i].Machines...)
		out.Problems = append(out.Problems, lists[i].Problems...)
		if err := failed[i]; err != nil {
			e := explain(err)
			out.Problems = append(out.Problems, problem{one.fleet.Target(), string(e.Code) + ": " + sentence(e.Error()) + " " + sentence(nextStep(e))})
		}
	}
	slices.SortStableFunc(out.Machines, func(a, b machine) int { return strings.Compare(a.Name, b.Name) })
	if !slices.Contains(failed, nil) {
		return out, allFailed(failed, out.Problems)
	}
	return out, nil
}

// allFailed is the error of a list to which no fleet answered: with the kind and the
// remedy of the first, and the words of all.
func allFailed(failed []error, problems []problem) error {
	told := fleet.Error{Code: explain(failed[0]).Code, Op: "list machines", Next: nextStep(explain(failed[0])), Err: errors.Join(failed...)}
	var words []string
	for _, p := range problems {
		words = append(words, p.Target+": "+p.Error)
	}
	told.Why = fleet.Bound(strings.Join(words, " "), fleet.MaxWhy)
	return &told
}

// listHere shows the machines of the call's fleet.
func (c *call) listHere(ctx context.Context, in listIn) (listOut, error) {
	machines, err := c.fleet.List(ctx)
	if err != nil {
		return listOut{}, err
	}
	out := listOut{Machines: []machine{}, Problems: []problem{}}
	recs, err := c.recordsByName(ctx)
	if err != nil {
		out.Problems = append(out.Problems, problem{c.fleet.Target(), "owners are not shown: " + explain(err).Error()})
	}
	for _, m := range machines {
		rec := recs[m.Name]
		delete(recs, m.Name)
		v := c.show(ctx, m, rec)
		if err != nil {
			v.Owner = ownerUnknown
		}
		if in.All == nil || *in.All || v.Owner == string(store.ThisSession) {
			out.Machines = append(out.Machines, v)
		}
	}
	if missing := readyNames(recs); len(missing) > 0 {
		out.Problems = append(out.Problems, problem{c.fleet.Target(),
			"recorded but not listed by the fleet: " + strings.Join(missing, ", ") + "; they may be gone, or the engine may have lost sight of them"})
	}
	return out, nil
}

// recordsByName returns the records of the call's fleet, but for those of others that
// the principal does not see.
func (c *call) recordsByName(ctx context.Context) (map[string]*store.Record, error) {
	recs, err := c.allRecords(ctx)
	maps.DeleteFunc(recs, func(_ string, rec *store.Record) bool { return c.hides(*rec) })
	return recs, err
}

// allRecords returns the records of the call's fleet, whoever they are of.
func (c *call) allRecords(ctx context.Context) (map[string]*store.Record, error) {
	recs, err := c.opts.Store.Records(ctx)
	byName := make(map[string]*store.Record, len(recs))
	for i := range recs {
		if recs[i].Key() == c.key(recs[i].Name) {
			byName[recs[i].Name] = &recs[i]
		}
	}
	return byName, err
}

// readyNames returns the names of the records that say a machine exists.
func readyNames(recs map[string]*store.Record) []string {
	var names []string
	for name, rec := range recs {
		if rec.Phase == store.Ready {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
