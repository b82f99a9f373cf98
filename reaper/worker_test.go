//go:build failpoints && unix

package reaper_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"time"

	"smol-mcp/fleet"
	"smol-mcp/reaper"
	"smol-mcp/store"
)

// work is what a process does whose role is not that of the test.
func work(role string) error {
	w, err := dialWorld(os.Getenv("SMOL_MCP_TEST_WORLD"), store.Failpoint)
	if err != nil {
		return err
	}
	grace := time.Duration(-1)
	if d, err := time.ParseDuration(os.Getenv("SMOL_MCP_TEST_GRACE")); err == nil {
		grace = d
	}
	st := store.New(store.Options{
		RuntimeDir: os.Getenv("SMOL_MCP_TEST_RUN"), StateDir: os.Getenv("SMOL_MCP_TEST_STATE"),
		Kind: "stdio", Version: "test", CrashGrace: grace,
	})
	r := reaperOf(st, w, os.Getenv(targetEnv) != "")
	switch role {
	case "life":
		return life(st, r, w)
	case "sweeper":
		_, err := r.Sweep(context.Background())
		return err
	case "mender":
		return mend(st)
	case "orphan":
		_, err := makeOne(context.Background(), st.NewSession("stdio", "orphan"), w, soon("mcp-orphan", store.Ephemeral), "")
		return err // and dies without a word
	}
	seed, err := strconv.ParseUint(os.Getenv("SMOL_MCP_TEST_SEED"), 10, 64)
	if err != nil {
		return err
	}
	s := &server{st: st, r: r, w: w, rand: rand.New(rand.NewPCG(seed, 1)), noIntent: os.Getenv("SMOL_MCP_TEST_NO_INTENT") != ""}
	return s.run(context.Background())
}

// mend comes by all that builds or replaces files.
func mend(st *store.Store) error {
	ctx := context.Background()
	s := st.NewSession("stdio", "mender")
	rec, err := s.Intend(ctx, soon("mcp-mender", store.Once))
	if err != nil {
		return err
	}
	if err := s.Abandon(ctx, rec); err != nil {
		return err
	}
	_, _, err = st.Compact(ctx)
	return err
}

func (r *remote) create(name, parent string) (fleet.Machine, error) {
	ctx, cancel := context.WithTimeout(context.Background(), createTime)
	defer cancel()
	return r.do(ctx, "create", name, parent)
}

// createTime is after how long a worker's create call cannot make a machine
// any more.
const createTime = 400 * time.Millisecond

func soon(name string, kind store.Kind) store.Wish {
	w := wish(name, kind)
	w.Deadline = createTime + 100*time.Millisecond
	return w
}

// life goes once through all that a session can do.
func life(st *store.Store, r *reaper.Reaper, w *remote) error {
	ctx := context.Background()
	s := st.NewSession("stdio", "life")
	// what a crashed session left
	if _, _, err := s.Use(ctx, local("mcp-orphan")); err != nil {
		return err
	}
	parent, err := makeOne(ctx, s, w, soon("mcp-a", store.Ephemeral), "")
	if err != nil {
		return err
	}
	branch := soon("mcp-branch", store.Ephemeral)
	branch.Parent = parent.UID
	if _, err := makeOne(ctx, s, w, branch, "mcp-a"); err != nil {
		return err
	}
	if _, err := makeOne(ctx, s, w, soon("kept", store.Persistent), ""); err != nil {
		return err
	}
	if _, err := makeOne(ctx, s, w, soon("mcp-once", store.Once), ""); err != nil {
		return err
	}
	// a create that the fleet refuses
	refused, err := s.Intend(ctx, soon("mcp-refused", store.Ephemeral))
	if err != nil {
		return err
	}
	if err := s.Abandon(ctx, refused); err != nil {
		return err
	}
	rec, ok, err := s.Tombstone(ctx, local("mcp-once"))
	if err != nil || !ok {
		return fmt.Errorf("tombstone: %v %w", ok, err)
	}
	if err := r.Remove(ctx, rec); err != nil {
		return err
	}
	if _, err := r.Sweep(ctx); err != nil {
		return err
	}
	recs, err := s.End(ctx)
	if err != nil {
		return err
	}
	if err := r.Remove(ctx, recs...); err != nil {
		return err
	}
	return st.Close()
}

// server is one process of the soak: it makes, uses and deletes machines for a
// while, sweeps, and looks whether its own are there.
type server struct {
	st       *store.Store
	r        *reaper.Reaper
	w        *remote
	rand     *rand.Rand
	noIntent bool // the negative control: record after the create

	s    *store.Session
	mine map[string]int64 // machines of the session, by when the fleet made them
	n    int
}

func (s *server) run(ctx context.Context) error {
	end := time.Now().Add(time.Duration(500+s.rand.IntN(4000)) * time.Millisecond)
	stop, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(func() {
		for stop.Err() == nil {
			s.r.Sweep(stop) // what it cannot do is another sweep's
			time.Sleep(time.Duration(100+rand.IntN(100)) * time.Millisecond)
		}
	})
	s.begin()
	for time.Now().Before(end) {
		if err := s.step(ctx); err != nil {
			return err
		}
		time.Sleep(time.Duration(s.rand.IntN(20)) * time.Millisecond)
	}
	cancel()
	wg.Wait()
	s.endSession(ctx)
	return s.st.Close()
}

func (s *server) begin() {
	s.s = s.st.NewSession("stdio", "soak")
	s.mine = make(map[string]int64)
}

// step does one thing that a client can ask for. Failures of the fleet are part
// of life; a machine of a live session that is gone is not.
func (s *server) step(ctx context.Context) error {
	switch k := s.rand.IntN(20); {
	case k < 7:
		s.make(ctx)
	case k < 10:
		s.delete(ctx)
	case k < 12:
		s.adopt(ctx)
	case k == 12:
		s.endSession(ctx)
		s.begin()
	default:
		return s.look(ctx)
	}
	return nil
}

func (s *server) make(ctx context.Context) {
	s.n++
	name := "mcp-" + s.s.ID()[24:] + strconv.Itoa(s.n)
	if s.rand.IntN(3) == 0 { // a name that a user chose, and others choose too
		name = "mcp-" + strconv.Itoa(s.rand.IntN(8))
	}
	kind := store.Ephemeral
	if s.rand.IntN(8) == 0 {
		kind = store.Once
	}
	if s.noIntent {
		m, err := s.w.create(name, "")
		if err != nil {
			return
		}
		if rec, err := s.s.Intend(ctx, soon(name, kind)); err == nil && s.s.Confirm(ctx, rec, m.ID, m.CreatedAt) == nil {
			s.mine[name] = m.CreatedAt.Unix()
		}
		return
	}
	rec, err := s.s.Intend(ctx, soon(name, kind))
	if err != nil {
		return
	}
	m, err := s.w.create(name, "")
	switch {
	case err == nil:
		if s.s.Confirm(ctx, rec, m.ID, m.CreatedAt) == nil {
			s.mine[name] = m.CreatedAt.Unix()
		}
	case fleet.MaybeDone(err):
		s.remove(ctx, rec.Key())
	default:
		s.s.Abandon(ctx, rec)
	}
}

func (s *server) delete(ctx context.Context) {
	for name := range s.mine {
		s.remove(ctx, local(name))
		return
	}
}

func (s *server) remove(ctx context.Context, key store.Key) {
	delete(s.mine, key.Name)
	rec, ok, err := s.s.Tombstone(ctx, key)
	if err != nil || !ok {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	s.r.Remove(ctx, rec)
}

func (s *server) adopt(ctx context.Context) {
	recs, err := s.st.Records(ctx)
	if err != nil {
		return
	}
	for _, r := range recs {
		if s.s.Owner(r) != store.CrashedSession || r.Phase != store.Ready {
			continue
		}
		got, ok, err := s.s.Use(ctx, r.Key())
		if err != nil || !ok || s.s.Owner(got) != store.ThisSession {
			return
		}
		s.mine[got.Name] = got.FleetCreated.Unix()
		fmt.Println("adopted", got.Name)
		return
	}
}

func (s *server) endSession(ctx context.Context) {
	clear(s.mine)
	recs, err := s.s.End(ctx)
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	s.r.Remove(ctx, recs...)
}

// harm is what a server says when a machine of its live session is gone.
type harm struct{ Name, Why string }

var errHarmed = errors.New("a live session lost a machine")

// look checks that the session's machines are there, and are the same.
func (s *server) look(ctx context.Context) error {
	for name, created := range s.mine {
		m, err := s.w.Get(ctx, name)
		why := ""
		if fleet.CodeOf(err) == fleet.CodeNotFound {
			why = "not found"
		} else if err == nil && m.CreatedAt.Unix() != created {
			why = "it is another one"
		}
		if why == "" {
			continue
		}
		json.NewEncoder(os.Stdout).Encode(harm{name, why})
		return errHarmed
	}
	return nil
}
