package cli

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// stubSession notes when it is closed, cancels its calls as the real one does,
// and then takes a while.
type stubSession struct {
	server *mcp.Server
	cancel context.CancelFunc
	takes  time.Duration
	err    error
	diary  *diary
}

func (s *stubSession) Server() *mcp.Server { return s.server }

func (s *stubSession) Close(ctx context.Context) error {
	s.cancel()
	s.diary.add("session")
	select {
	case <-time.After(s.takes):
		return s.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

type diary struct {
	mu    sync.Mutex
	lines []string
}

func (d *diary) add(line string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines = append(d.lines, line)
}

func (d *diary) String() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return strings.Join(d.lines, " ")
}

// stage is a life with everything around it in reach of a test.
type stage struct {
	*life
	*stubSession
	diary
	out      buffer
	feed     *io.PipeWriter
	signals  chan os.Signal
	orphaned chan struct{}
	stuck    chan struct{} // lets a stuckWriter go
}

// stuckWriter is an output that nobody reads.
type stuckWriter chan struct{}

func (w stuckWriter) Write(p []byte) (int, error) {
	<-w
	return len(p), nil
}

func newStage(t *testing.T) *stage {
	ctx, cancel := context.WithCancel(t.Context())
	s := &stage{signals: make(chan os.Signal, 4), orphaned: make(chan struct{}), stuck: make(chan struct{})}
	server := waiter()
	server.AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(call context.Context, method string, req mcp.Request) (mcp.Result, error) {
			call, stop := context.WithCancel(call)
			defer context.AfterFunc(ctx, stop)()
			return next(call, method, req)
		}
	})
	in, feed := io.Pipe()
	s.feed = feed
	s.stubSession = &stubSession{server: server, cancel: cancel, diary: &s.diary}
	note := func(name string) closer {
		return closer{name, func() error { s.diary.add(name); return nil }}
	}
	s.life = &life{
		session:   s.stubSession,
		transport: newStdio(in, &s.out, eofGrace),
		closers:   []closer{note("reaper"), note("engine"), note("store")},
		signals:   s.signals,
		orphaned:  s.orphaned,
		log:       slog.New(slog.DiscardHandler),
		budget:    endBudget,
		share:     sessionBudget,
	}
	t.Cleanup(func() { feed.Close() })
	return s
}

// say sends lines and waits until the server has nothing more to do.
func (s *stage) say(lines string) {
	go io.WriteString(s.feed, lines)
	synctest.Wait()
}

const inOrder = "session reaper engine store"

func TestLifeEnds(t *testing.T) {
	for name, test := range map[string]struct {
		end  func(*stage)
		code int
	}{
		"end of input":  {func(s *stage) { s.feed.Close() }, 0},
		"broken input":  {func(s *stage) { s.feed.CloseWithError(errBroken) }, 0},
		"broken output": {func(s *stage) { s.transport.out = brokenWriter{}; s.say(ping + "\n") }, 0},
		"parent gone":   {func(s *stage) { close(s.orphaned) }, 0},
		"SIGHUP":        {func(s *stage) { s.signals <- syscall.SIGHUP }, 129},
		"SIGINT":        {func(s *stage) { s.signals <- syscall.SIGINT }, 130},
		"SIGTERM":       {func(s *stage) { s.signals <- syscall.SIGTERM }, 143},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStage(t)
				s.takes = time.Second
				codes := make(chan int)
				start := time.Now()
				go func() {
					code, err := s.run()
					if err != nil {
						t.Error(err)
					}
					codes <- code
				}()
				s.say(hello)
				test.end(s)
				if code := <-codes; code != test.code {
					t.Errorf("exit code %d, want %d", code, test.code)
				}
				if got := s.diary.String(); got != inOrder {
					t.Errorf("closed: %s; want %s", got, inOrder)
				}
				if d := time.Since(start); d != time.Second {
					t.Errorf("took %v, want the second of the session", d)
				}
			})
		})
	}
}

// A running call is cancelled by the end, and its answer still goes out.
func TestLifeCancelsCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		s.takes = time.Second
		done := make(chan struct{})
		go func() { s.run(); close(done) }()
		s.say(hello + wait(1, 600, ""))
		s.signals <- syscall.SIGTERM
		<-done
		if out := s.out.String(); !strings.Contains(out, "cancelled") {
			t.Errorf("no answer to the cancelled call in %s", out)
		}
	})
}

// Nothing holds the process longer than its budget: not a session, not a
// call that hears no cancel, not an output that nobody reads, not a part that
// hangs.
func TestLifeBudget(t *testing.T) {
	for name, test := range map[string]struct {
		setUp func(*stage)
		want  time.Duration
		code  int
		diary string
	}{
		"slow session":  {func(s *stage) { s.takes = time.Hour }, sessionBudget, 143, inOrder},
		"deaf call":     {func(s *stage) { s.say(wait(1, 3600, `,"deaf":true`)) }, drainTime, 143, inOrder},
		"stuck output":  {func(s *stage) { s.transport.out = stuckWriter(s.stuck); s.say(ping + "\n") }, drainTime, 143, inOrder},
		"hanging part":  {func(s *stage) { s.closers[1].close = func() error { time.Sleep(time.Hour); return nil } }, endBudget, 143, "session reaper"},
		"failing parts": {func(s *stage) { s.err = errBroken }, 0, 143, inOrder},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStage(t)
				type end struct {
					code int
					err  error
				}
				ends := make(chan end)
				go func() {
					code, err := s.run()
					ends <- end{code, err}
				}()
				s.say(hello)
				test.setUp(s)
				start := time.Now()
				s.signals <- syscall.SIGTERM
				e := <-ends
				if d := time.Since(start); d != test.want {
					t.Errorf("took %v, want %v", d, test.want)
				}
				if e.code != test.code || (e.err == nil) != (test.want == drainTime) {
					t.Errorf("exit code %d, error %v", e.code, e.err)
				}
				if got := s.diary.String(); got != test.diary {
					t.Errorf("closed: %s; want %s", got, test.diary)
				}
				close(s.stuck)
				time.Sleep(2 * time.Hour) // let the abandoned ones go
			})
		})
	}
}

// Clean-up that failed after an orderly end is a failure.
func TestLifeFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		s.err = errBroken
		s.feed.Close()
		if code, err := s.run(); code != exitFailure || !errors.Is(err, errBroken) {
			t.Errorf("exit code %d, error %v", code, err)
		}
	})
}

// A second SIGINT or SIGTERM quits at once, a second SIGHUP does not; the
// first signal after another reason to end only says what is already done.
func TestLifeSecondSignal(t *testing.T) {
	for name, test := range map[string]struct {
		signals []os.Signal
		eof     bool
		want    time.Duration
		code    int
	}{
		"SIGINT twice":        {[]os.Signal{syscall.SIGINT, syscall.SIGINT}, false, 0, 130},
		"SIGTERM then SIGINT": {[]os.Signal{syscall.SIGTERM, syscall.SIGINT}, false, 0, 130},
		"SIGHUP twice":        {[]os.Signal{syscall.SIGHUP, syscall.SIGHUP}, false, 5 * time.Second, 129},
		"SIGTERM after EOF":   {[]os.Signal{syscall.SIGTERM}, true, 5 * time.Second, 0},
		"twice after EOF":     {[]os.Signal{syscall.SIGTERM, syscall.SIGTERM}, true, 0, 143},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStage(t)
				s.takes = 5 * time.Second
				start := time.Now()
				codes := make(chan int)
				go func() {
					code, _ := s.run()
					codes <- code
				}()
				s.say(hello)
				if test.eof {
					s.feed.Close()
					synctest.Wait()
				}
				for _, sig := range test.signals {
					s.signals <- sig
					synctest.Wait()
				}
				if code := <-codes; code != test.code {
					t.Errorf("exit code %d, want %d", code, test.code)
				}
				if d := time.Since(start); d != test.want {
					t.Errorf("took %v, want %v", d, test.want)
				}
				time.Sleep(time.Hour) // let the abandoned clean-up go
			})
		})
	}
}
