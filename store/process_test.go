//go:build unix

package store_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"smol-mcp/store"
)

// TestMain makes the test binary another process when a test asks for one.
func TestMain(m *testing.M) {
	role := os.Getenv("SMOL_MCP_TEST_ROLE")
	if role == "" {
		os.Exit(m.Run())
	}
	p := places{os.Getenv("SMOL_MCP_TEST_RUN"), os.Getenv("SMOL_MCP_TEST_STATE")}
	if err := roles[role](p, bufio.NewScanner(os.Stdin)); err != nil {
		fmt.Fprintln(os.Stderr, role+":", err)
		os.Exit(1)
	}
}

// roles are what other processes do. They read commands and answer each with a
// line.
var roles = map[string]func(p places, in *bufio.Scanner) error{
	"counter": counter,
	"keeper":  keeper,
	"starter": starter,
	"holder":  holder,
	"owner":   owner,
	"forker":  forker,
	"where":   where,
	"pacer":   pacer,
}

func (p places) store() *store.Store {
	return store.New(store.Options{RuntimeDir: p.run, StateDir: p.state, Kind: "test", Version: "test"})
}

// process is a role that is being played.
type process struct {
	*exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

func (p places) start(t testing.TB, role string, env ...string) *process {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0", "SMOL_MCP_TEST_ROLE="+role, "SMOL_MCP_TEST_RUN="+p.run, "SMOL_MCP_TEST_STATE="+p.state)
	cmd.Env = append(cmd.Env, env...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	check(t, err)
	out, err := cmd.StdoutPipe()
	check(t, err)
	check(t, cmd.Start())
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	return &process{cmd, in, bufio.NewScanner(out)}
}

// say sends a command and returns the answer.
func (p *process) say(t testing.TB, format string, args ...any) string {
	t.Helper()
	if _, err := fmt.Fprintf(p.in, format+"\n", args...); err != nil {
		t.Fatal(err)
	}
	return p.hear(t)
}

func (p *process) hear(t testing.TB) string {
	t.Helper()
	if !p.out.Scan() {
		t.Fatalf("the process said nothing: %v", p.out.Err())
	}
	return p.out.Text()
}

// kill ends the process with SIGKILL and returns what it had said.
func (p *process) kill() []string {
	p.Process.Kill()
	var lines []string
	for p.out.Scan() {
		lines = append(lines, p.out.Text())
	}
	p.Wait()
	return lines
}

// counter counts as fast as it can, with as many goroutines as asked for, and
// says each number it knows to be written.
func counter(p places, _ *bufio.Scanner) error {
	st := p.store()
	n := 1
	fmt.Sscan(os.Getenv("SMOL_MCP_TEST_N"), &n)
	name := os.Getenv("SMOL_MCP_TEST_NAME")
	var mu sync.Mutex
	errs := make(chan error)
	for range n {
		go func() {
			for {
				c, err := st.Count(context.Background(), name)
				if err != nil {
					errs <- err
					return
				}
				mu.Lock()
				fmt.Println(c)
				mu.Unlock()
			}
		}()
	}
	return <-errs
}

// T1, T2: a writer is killed at any moment. The file stays sound, and nothing
// it was told is written is lost. With a queue of 32 as many may be written that it
// did not hear of.
func TestKillWriters(t *testing.T) {
	for _, c := range []struct {
		name        string
		fast        bool
		queue       int
		kills, less int
	}{
		{"tmpfs", true, 1, 1500, 150},
		{"tmpfs, group commit", true, 32, 500, 50},
		{"disk", false, 1, 300, 30},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPlaces(t)
			if c.fast {
				p = fastPlaces(t)
			}
			kills := c.kills
			if testing.Short() {
				kills = c.less
			}
			killWriters(t, p, c.queue, kills)
		})
	}
}

const writers = 4

func killWriters(t *testing.T, p places, queue, kills int) {
	var wg sync.WaitGroup
	var unheard int
	var mu sync.Mutex
	for w := range writers {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(w), 7))
			st := p.store()
			defer st.Close()
			for n := range kills / writers {
				name := fmt.Sprintf("%d-%d", w, n)
				proc := p.start(t, "counter", "SMOL_MCP_TEST_NAME="+name, fmt.Sprintf("SMOL_MCP_TEST_N=%d", queue))
				proc.hear(t)
				time.Sleep(time.Duration(rnd.IntN(8000)) * time.Microsecond) // the moment of death
				heard := 1 + len(proc.kill())
				written, err := st.Counted(t.Context(), name)
				if err != nil || written < heard || written > heard+queue {
					t.Errorf("%s: heard of %d, written %d, %v", name, heard, written, err)
					return
				}
				if err := store.CheckFile(p.db()); err != nil {
					t.Errorf("after %s: %v", name, err)
					return
				}
				mu.Lock()
				unheard += written - heard
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	t.Logf("%d kills, %d transactions written but not heard of", kills, unheard)
}

// starter makes a record in each place it is told.
func starter(_ places, in *bufio.Scanner) error {
	for in.Scan() {
		dir, name, _ := strings.Cut(in.Text(), " ")
		st := places{dir + "/run", dir + "/state"}.store()
		s := st.NewSession("stdio", "starter")
		if _, err := s.Intend(context.Background(), wish(name)); err != nil {
			return err
		}
		fmt.Println("done")
		if err := st.Close(); err != nil {
			return err
		}
	}
	return in.Err()
}

// T7: sixteen processes start at once where there is nothing yet.
func TestFirstStartRace(t *testing.T) {
	const procs = 16
	rounds := 60
	if testing.Short() {
		rounds = 10
	}
	var all []*process
	for range procs {
		all = append(all, newPlaces(t).start(t, "starter"))
	}
	for range rounds {
		dir := t.TempDir()
		p := places{dir + "/run", dir + "/state"}
		for i, proc := range all {
			_, err := fmt.Fprintf(proc.in, "%s mcp-%d\n", dir, i)
			check(t, err)
		}
		for _, proc := range all {
			proc.hear(t)
		}
		recs, err := p.open(t).Records(t.Context())
		if err != nil || len(recs) != procs {
			t.Fatalf("%d records, %v", len(recs), err)
		}
		check(t, store.CheckFile(p.db()))
	}
}

// holder stays in the middle of a transaction until it is told to go on.
func holder(p places, in *bufio.Scanner) error {
	st := p.store()
	_, err := st.Do(context.Background(), "held", func() error {
		fmt.Println("in")
		in.Scan()
		return nil
	})
	fmt.Println("out")
	return err
}

// T20, F15: who holds the lock is named, nobody waits for longer than he wants
// to, and waiting costs one thread however many wait.
func TestStoppedHolder(t *testing.T) {
	p := newPlaces(t)
	st := p.open(t, func(o *store.Options) { o.Wait = 300 * time.Millisecond })
	_, err := st.Count(t.Context(), "x")
	check(t, err)
	proc := p.start(t, "holder")
	if proc.hear(t) != "in" {
		t.Fatal("not in")
	}
	check(t, proc.Process.Signal(stopSignal))
	start := time.Now()
	_, err = st.Count(t.Context(), "x")
	if d := time.Since(start); d > time.Second {
		t.Errorf("waited %v", d)
	}
	want := fmt.Sprintf("pid %d, state T", proc.Process.Pid)
	if !isBusy(err) || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want one that says %q", err, want)
	}
	before := threads(t)
	var wg sync.WaitGroup
	for range 1000 {
		wg.Go(func() {
			if _, err := st.Count(t.Context(), "x"); !isBusy(err) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if after := threads(t); after > before+8 {
		t.Errorf("%d threads before 1000 calls, %d after", before, after)
	}
	check(t, proc.Process.Signal(contSignal))
	if got := proc.say(t, "go on"); got != "out" {
		t.Fatal(got)
	}
	if n, err := st.Count(t.Context(), "x"); err != nil || n != 2 {
		t.Errorf("after it went on: %d %v", n, err)
	}
}

// forker makes a machine and starts children without end, so that it is always
// between a fork and an exec.
func forker(p places, _ *bufio.Scanner) error {
	s := p.store().NewSession("stdio", "forker")
	rec, err := s.Intend(context.Background(), wish(os.Getenv("SMOL_MCP_TEST_NAME")))
	if err != nil {
		return err
	}
	if err := s.Confirm(context.Background(), rec, rec.Name, time.Unix(1_700_000_000, 0)); err != nil {
		return err
	}
	fmt.Println("made")
	errs := make(chan error)
	for range 3 {
		go func() {
			for {
				if err := exec.Command("true").Run(); err != nil {
					errs <- err
				}
			}
		}()
	}
	return <-errs
}

// owner makes a machine, starts a child that outlives it, and waits.
func owner(p places, in *bufio.Scanner) error {
	s := p.store().NewSession("stdio", "owner")
	rec, err := s.Intend(context.Background(), wish("mcp-a"))
	if err != nil {
		return err
	}
	if err := s.Confirm(context.Background(), rec, "mcp-a", time.Unix(1_700_000_000, 0)); err != nil {
		return err
	}
	child := exec.Command("sleep", "60")
	if err := child.Start(); err != nil {
		return err
	}
	fmt.Println(child.Process.Pid)
	for in.Scan() { // a call of its client
		if _, ok, err := s.Use(context.Background(), local("mcp-b")); err != nil || ok {
			return fmt.Errorf("%v %w", ok, err)
		}
		fmt.Println("ok")
	}
	return in.Err()
}

func newScanner(r io.Reader) *bufio.Scanner { return bufio.NewScanner(r) }
