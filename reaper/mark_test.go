package reaper_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"smol-mcp/fleet"
	"smol-mcp/reaper"
	"smol-mcp/store"
)

// marks is a fleet whose machines bear marks, by name.
type marks struct {
	mu    sync.Mutex
	owner map[string]string
}

func (m *marks) Get(_ context.Context, name string) (fleet.Machine, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	owner, found := m.owner[name]
	if !found {
		return fleet.Machine{}, notFound(name)
	}
	return fleet.Machine{ID: "id-" + name, Name: name, CreatedAt: time.Now(), Owner: owner}, nil
}

func (m *marks) Delete(_ context.Context, name string) (fleet.Deletion, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.owner, name)
	return fleet.Deletion{}, nil
}

// Two computers choose one name in one account, and the process that was refused it dies
// before it hears so: the machine is the other's. A name that was made up, a machine
// without a mark, and one that was seen to be made are ours.
func TestMarkedByAnother(t *testing.T) {
	p := newPlaces(t)
	st := p.open(t)
	s := st.NewSession("stdio", "test")
	f := &marks{owner: map[string]string{"mcp-theirs": "b", "mcp-ours": "a", "mcp-bare": "", "mcp-random": "b", "mcp-branch": "b"}}
	var recs []store.Record
	for name := range f.owner {
		w := store.Wish{Target: "cloud", Account: tenant, Name: name, Kind: store.Ephemeral, Chosen: name != "mcp-random"}
		if name == "mcp-branch" {
			w.Parent = "source"
		}
		rec, err := s.Intend(t.Context(), w)
		check(t, err)
		rec, _, err = s.Tombstone(t.Context(), rec.Key())
		check(t, err)
		recs = append(recs, rec)
	}
	r := reaper.New(st, map[string]reaper.Fleet{"cloud": f}, reaper.Options{
		Account:      func(context.Context, string) (string, error) { return tenant, nil },
		Installation: "a",
	})
	if err := r.Remove(t.Context(), recs...); fleet.CodeOf(err) != fleet.CodeConflict {
		t.Errorf("removed: %v", err)
	}
	if len(f.owner) != 1 || f.owner["mcp-theirs"] != "b" {
		t.Errorf("left: %v", f.owner)
	}
	left, err := st.Records(t.Context())
	check(t, err)
	if len(left) > 0 {
		t.Errorf("records: %+v", left)
	}
	check(t, st.Close())
}
