//go:build unix

package store_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"smol-mcp/store"
)

// keeper makes machines to be kept in an engine that is a directory. It gives up
// those that are there. Of a name with a full stop it does no more than record the wish.
func keeper(p places, in *bufio.Scanner) error {
	s := p.store().NewSessionOf(os.Getenv("SMOL_MCP_TEST_PRINCIPAL"), "http", "")
	ctx := context.Background()
	for in.Scan() {
		name, wished := strings.CutSuffix(in.Text(), ".")
		rec, err := s.Intend(ctx, toKeep(name))
		if errors.As(err, new(*store.ExistsError)) {
			fmt.Println("taken")
			continue
		}
		if err != nil {
			return err
		}
		var answer string
		switch {
		case wished:
			answer = "wished"
		case os.Mkdir(filepath.Join(p.state, name), 0o700) == nil:
			answer, err = "made", s.Confirm(ctx, rec, "", rec.Created)
		default:
			answer, err = "refused", s.Abandon(ctx, rec)
		}
		if err != nil {
			return err
		}
		fmt.Println(answer)
	}
	return in.Err()
}

// Two processes make a machine of one name for two principals at once: it belongs to
// the one whose it is, also when they have no records in common.
func TestKeptRace(t *testing.T) {
	for _, together := range []bool{true, false} {
		t.Run(fmt.Sprintf("together=%v", together), func(t *testing.T) {
			p := fastPlaces(t)
			check(t, os.MkdirAll(p.state, 0o700))
			q := p
			if !together {
				q.run += "-2"
			}
			principals := []string{"a", "b"}
			both := []*process{p.start(t, "keeper", "SMOL_MCP_TEST_PRINCIPAL=a"), q.start(t, "keeper", "SMOL_MCP_TEST_PRINCIPAL=b")}
			st := p.open(t)
			for i := range 60 {
				name := fmt.Sprintf("m%d", i)
				for _, one := range both {
					_, err := fmt.Fprintln(one.in, name)
					check(t, err)
				}
				var made []string
				for j, one := range both {
					if one.hear(t) == "made" {
						made = append(made, principals[j])
					}
				}
				if got := keptBy(t, st, name); len(made) != 1 || got != made[0] {
					t.Fatalf("%s is made by %v and belongs to %q", name, made, got)
				}
			}
			if all, err := st.Kept(); err != nil || len(all) != 60 {
				t.Errorf("%d files, %v", len(all), err)
			}
		})
	}
}

// A process is killed between its wish and the request: what is left means nothing, and
// hides the machine that somebody else makes then from nobody.
func TestKeptKilled(t *testing.T) {
	p := newPlaces(t)
	check(t, os.MkdirAll(p.state, 0o700))
	a := p.start(t, "keeper", "SMOL_MCP_TEST_PRINCIPAL=a")
	if got := a.say(t, "x."); got != "wished" {
		t.Fatal(got)
	}
	a.kill()
	st := p.open(t)
	if got := keptBy(t, st, "x"); got != "a" {
		t.Errorf("it belongs to %q", got)
	}
	b := st.NewSessionOf("b", "http", "")
	if _, err := b.Intend(t.Context(), toKeep("x")); !errors.As(err, new(*store.ExistsError)) {
		t.Errorf("while the request may be under way: %v", err)
	}
	check(t, st.Close())
	check(t, os.RemoveAll(p.run))
	later := *store.ThisHost()
	later.BootID = "later"
	st = p.open(t, onHost(&later))
	b = st.NewSessionOf("b", "http", "")
	if got := keptBy(t, st, "x"); got != "a" { // it may exist
		t.Errorf("after a boot it belongs to %q", got)
	}
	ready(t, b, toKeep("x"))
	if got := keptBy(t, st, "x"); got != "b" || len(p.kept(t)) != 1 {
		t.Errorf("it belongs to %q, files %v", got, p.kept(t))
	}
}
