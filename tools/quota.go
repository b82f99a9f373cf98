package tools

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"smol-mcp/fleet"
	"smol-mcp/store"
)

// quotaTime bounds the look at what fills an account.
const quotaTime = 5 * time.Second

// quotaShown bounds how many machines an error names.
const quotaShown = 12

// overQuota adds to a refusal by an account's limits which machines of ours fill it,
// those that nobody uses any more first, since the agent can delete them. name is the
// machine that did not fit.
func (c *call) overQuota(ctx context.Context, name string, err error) error {
	var e *fleet.Error
	if !errors.As(err, &e) || e.Code != fleet.CodeQuota {
		return err
	}
	recs, recErr := c.recordsByName(ctx)
	machines, listErr := within(ctx, quotaTime, c.Session, c.fleet.List)
	if recErr != nil || listErr != nil {
		return err
	}
	machines = slices.DeleteFunc(machines, func(m fleet.Machine) bool { return m.Name == name })
	told := *e
	ours, others := c.sortForQuota(recs, machines)
	switch {
	case len(ours) > 0:
		told.Next = "delete what is no longer needed with delete-machine: " + strings.Join(ours[:min(len(ours), quotaShown)], ", ")
		if rest := len(ours) - quotaShown; rest > 0 {
			told.Next += fmt.Sprintf(" and %d more", rest)
		}
	default:
		told.Next = "no machine that is recorded here fills it"
	}
	if others > 0 {
		told.Next += fmt.Sprintf("; %d of the account are not recorded here: see list-machines, and ask the user before you delete one of them", others)
	}
	return &told
}

// sortForQuota names the machines that are on record here, leftovers first, and counts
// the others.
func (c *call) sortForQuota(recs map[string]*store.Record, machines []fleet.Machine) (ours []string, others int) {
	rank := map[store.Owner]int{store.NoOwner: 0, store.CrashedSession: 1, store.ThisSession: 2, store.AnotherSession: 3}
	type row struct {
		rank int
		text string
	}
	var rows []row
	for _, m := range machines {
		rec := recs[m.Name]
		if rec == nil {
			others++
			continue
		}
		owner := c.records.Owner(*rec)
		word := string(owner)
		if owner == store.NoOwner {
			word = "left over"
		}
		rows = append(rows, row{rank[owner], fmt.Sprintf("%s (%s, %s)", m.Name, word, m.State)})
	}
	slices.SortStableFunc(rows, func(a, b row) int { return a.rank - b.rank })
	for _, r := range rows {
		ours = append(ours, r.text)
	}
	return ours, others
}
