package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"smol-mcp/fleet"
	"smol-mcp/store"
)

// strays deletes machines that have a name of ours and no record.
func (g *collector) strays(ctx context.Context, sv store.Survey, age time.Duration) error {
	for target, f := range g.fleets {
		if want := g.flags["target"]; want != "" && want != target {
			continue
		}
		machines, err := f.List(ctx)
		if err != nil {
			return err
		}
		found := slices.DeleteFunc(machines, func(m fleet.Machine) bool {
			recorded := slices.ContainsFunc(sv.Machines, func(s store.Standing) bool {
				return s.Record.Target == target && s.Record.Name == m.Name
			})
			young := m.CreatedAt.IsZero() || time.Since(m.CreatedAt) < age
			if recorded || young || !strings.HasPrefix(m.Name, g.config.MachinePrefix) {
				return true
			}
			// An account may be shared: there only our mark makes a machine ours.
			foreign := target == "cloud" && (m.Owner == "" || m.Owner != g.places.owner)
			if foreign {
				g.tell("%s %s: kept, another installation made it", target, m.Name)
			}
			return foreign
		})
		if len(found) == 0 {
			continue
		}
		agreed, err := g.agreed(target, found)
		if err != nil {
			return err
		}
		for _, m := range found {
			g.stray(ctx, f, m, agreed)
		}
	}
	return nil
}

func (g *collector) stray(ctx context.Context, f fleet.Fleet, m fleet.Machine, agreed bool) {
	a := gcAction{
		Target: f.Target(), Name: m.Name, State: string(m.State), Owner: gcOwner{Alive: "none"},
		Action: string(store.FateDelete), Reason: "no record knows it; it was made " + m.CreatedAt.UTC().Format(time.RFC3339),
	}
	switch {
	case !agreed:
		a.Action = string(store.FateKeep)
	case !g.report.DryRun:
		a.Result = store.Deleted.String()
		if _, err := f.Delete(ctx, m.ID); fleet.CodeOf(err) == fleet.CodeNotFound {
			a.Result = store.Absent.String()
		} else if err != nil {
			a.Result, a.Reason, g.failed = store.Failed.String(), fleet.Bound(err.Error(), fleet.MaxWhy), true
		}
		g.tell("%s %s: stray, %s", a.Target, a.Name, a.Result)
	}
	g.report.Actions = append(g.report.Actions, a)
}

// agreed asks whether the strays that were found may go.
func (g *collector) agreed(target string, found []fleet.Machine) (bool, error) {
	if g.has("yes") || g.report.DryRun {
		return true, nil
	}
	if !isTerminal(g.stdin) {
		return false, &usageError{"gc: --strays deletes machines that no record knows, and nobody can be asked", "--dry-run shows them, --yes deletes them"}
	}
	fmt.Fprintf(g.stderr, "smol-mcp: machines of %s that no record knows:\n", target)
	for _, m := range found {
		fmt.Fprintf(g.stderr, "  %s, %s, made %s\n", m.Name, m.State, m.CreatedAt.Format(time.DateTime))
	}
	fmt.Fprintf(g.stderr, "smol-mcp: delete these %d with all that is on them? [y/N] ", len(found))
	answer, err := bufio.NewReader(g.stdin).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return false, err
	}
	answer = strings.ToLower(strings.TrimSpace(answer))
	return answer == "y" || answer == "yes", nil
}
