package reaper_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/rpc"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"smol-mcp/fleet"
)

// world is a fleet in memory, in which a test sees and arranges everything. Other
// processes reach it over a socket.
type world struct {
	mu       sync.Mutex
	machines map[string]machine
	calls    []string // "create mcp-a", "delete mcp-a 200", ...
	times    []string // when each request was carried out
	serial   int
	ids      bool         // machines have ids that are not their names
	requests atomic.Int64 // under way
	calm     atomic.Bool  // the hooks are off

	// before is called for each request, without the lock; what it returns is
	// the answer. after is called when the work was done, and can hide that.
	before, after func(op, name string) error
}

type machine struct {
	Serial  int
	Created time.Time
	Parent  string
}

func newWorld() *world { return &world{machines: make(map[string]machine)} }

func hook(fn func(op, name string) error, op, name string) error {
	if fn == nil {
		return nil
	}
	return fn(op, name)
}

func (w *world) do(op, name string, work func() error) error {
	came := time.Now()
	w.requests.Add(1)
	defer w.requests.Add(-1)
	if err := hook(w.before, op, name); err != nil && !w.calm.Load() {
		return err
	}
	w.mu.Lock()
	err := work()
	w.calls = append(w.calls, fmt.Sprintf("%s %s %v", op, name, fleet.CodeOf(err)))
	w.times = append(w.times, fmt.Sprintf("%s %s %s %v, came %s", time.Now().Format("05.000"), op, name, fleet.CodeOf(err), came.Format("05.000")))
	w.mu.Unlock()
	if lost := hook(w.after, op, name); lost != nil && !w.calm.Load() {
		return lost
	}
	return err
}

// rest ends all faults and waits until what dead senders have sent is carried
// out.
func (w *world) rest() {
	w.calm.Store(true)
	for quiet := 0; quiet < 20; quiet++ {
		time.Sleep(10 * time.Millisecond) // in which a request that has arrived is begun
		if w.requests.Load() > 0 {
			quiet = 0
		}
	}
}

func notFound(name string) error {
	return fleet.Errorf(fleet.CodeNotFound, "machine "+name, "not found")
}

func (w *world) create(name, parent string) (m fleet.Machine, err error) {
	err = w.do("create", name, func() error {
		if _, ok := w.machines[name]; ok {
			return fleet.Errorf(fleet.CodeConflict, "create "+name, "it exists")
		}
		w.serial++
		// one made later is told apart by its time, in whole seconds
		made := machine{w.serial, time.Now().Truncate(time.Second).Add(time.Duration(10*w.serial) * time.Second), parent}
		w.machines[name] = made
		m = fleet.Machine{ID: w.idOf(name, made), Name: name, CreatedAt: made.Created}
		return nil
	})
	return m, err
}

func (w *world) idOf(name string, m machine) string {
	if w.ids {
		return fmt.Sprintf("mach-%d", m.Serial)
	}
	return name
}

// named returns the name of the machine that ref stands for, an id or a name.
func (w *world) named(ref string) string {
	for name, m := range w.machines {
		if w.ids && w.idOf(name, m) == ref {
			return name
		}
	}
	return ref
}

func (w *world) Get(ctx context.Context, ref string) (m fleet.Machine, err error) {
	err = w.do("get", ref, func() error {
		name := w.named(ref)
		found, ok := w.machines[name]
		if !ok {
			return notFound(ref)
		}
		m = fleet.Machine{ID: w.idOf(name, found), Name: name, State: fleet.Running, CreatedAt: found.Created}
		return nil
	})
	return m, err
}

func (w *world) Delete(ctx context.Context, ref string) (fleet.Deletion, error) {
	if err := ctx.Err(); err != nil {
		return fleet.Deletion{}, err
	}
	return fleet.Deletion{}, w.do("delete", ref, func() error {
		name := w.named(ref)
		if _, ok := w.machines[name]; !ok {
			return notFound(name)
		}
		for child, m := range w.machines {
			if m.Parent == name {
				return fleet.Errorf(fleet.CodeConflict, "delete "+name, "it has the branch %s", child)
			}
		}
		delete(w.machines, name)
		return nil
	})
}

func (w *world) names() map[string]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := make(map[string]int)
	for name, m := range w.machines {
		all[name] = m.Serial
	}
	return all
}

// The same over a socket.

// Request and Reply are what workers and the world say to each other.
type (
	Request struct{ Op, Name, Parent string }
	Reply   struct {
		Machine   fleet.Machine
		Code      fleet.Code
		Why       string
		MaybeDone bool
	}
)

// Server is the world as net/rpc wants it.
type Server struct{ w *world }

// Do carries out a request.
func (s *Server) Do(req Request, rep *Reply) error {
	var err error
	switch req.Op {
	case "create":
		rep.Machine, err = s.w.create(req.Name, req.Parent)
	case "get":
		rep.Machine, err = s.w.Get(context.Background(), req.Name)
	case "delete":
		_, err = s.w.Delete(context.Background(), req.Name)
	}
	if err != nil {
		rep.Code, rep.Why, rep.MaybeDone = fleet.CodeOf(err), err.Error(), fleet.MaybeDone(err)
	}
	return nil
}

// serve makes the world reachable and returns its socket.
func (w *world) serve(t testing.TB) string {
	t.Helper()
	sock := filepath.Join(t.TempDir(), "w")
	l, err := net.Listen("unix", sock)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	srv := rpc.NewServer()
	if err := srv.Register(&Server{w}); err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil { // closed
				return
			}
			go srv.ServeConn(c)
		}
	}()
	return sock
}

// remote is the world as another process sees it.
type remote struct {
	client *rpc.Client
	point  func(string) // a failpoint before and after each request that changes something
	byID   bool         // only ids are sent to be deleted
}

func dialWorld(sock string, point func(string)) (*remote, error) {
	c, err := rpc.Dial("unix", sock)
	return &remote{c, point, os.Getenv(targetEnv) != ""}, err
}

func (r *remote) do(ctx context.Context, op, name, parent string) (fleet.Machine, error) {
	if op != "get" {
		r.point(op + "-before")
	}
	var rep Reply
	call := r.client.Go("Server.Do", Request{op, name, parent}, &rep, make(chan *rpc.Call, 1))
	select {
	case <-ctx.Done():
		return fleet.Machine{}, &fleet.Error{Code: fleet.CodeTimeout, Op: op + " " + name, MaybeDone: true, Err: ctx.Err()}
	case <-call.Done:
	}
	if op != "get" {
		r.point(op + "-after")
	}
	if call.Error != nil {
		return fleet.Machine{}, &fleet.Error{Code: fleet.CodeUnreachable, Op: op + " " + name, MaybeDone: true, Err: call.Error}
	}
	if rep.Code != "" {
		return fleet.Machine{}, &fleet.Error{Code: rep.Code, Op: op + " " + name, Why: rep.Why, MaybeDone: rep.MaybeDone}
	}
	return rep.Machine, nil
}

func (r *remote) Get(ctx context.Context, name string) (fleet.Machine, error) {
	return r.do(ctx, "get", name, "")
}

func (r *remote) Delete(ctx context.Context, ref string) (fleet.Deletion, error) {
	if r.byID { // as the cloud does: a late request cannot meet another machine of that name
		m, err := r.Get(ctx, ref)
		if err != nil {
			return fleet.Deletion{}, err
		}
		ref = m.ID
	}
	_, err := r.do(ctx, "delete", ref, "")
	return fleet.Deletion{}, err
}

var errLost = &fleet.Error{Code: fleet.CodeUnreachable, Op: "request", Why: "connection reset", MaybeDone: true}

var errServer = errors.Join(&fleet.Error{Code: fleet.CodeInternal, Op: "request", Why: "500"})
