package fleet

import (
	"context"
	"net"
	"net/http"
	"net/url"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// Dialer connects to whatever answers the smolvm API. [Engine.Dial] is one. An
// [*Error] it returns reaches the caller as it is.
type Dialer func(ctx context.Context) (net.Conn, error)

// SmolvmOptions tune a [Smolvm]. The zero value is fine.
type SmolvmOptions struct {
	DialWait time.Duration // bound of one Dial, an engine's start included; 0 is 2 minutes
}

// Smolvm is the local fleet: a client of the smolvm HTTP API. It changes
// nothing by itself and repeats nothing; [Retry] does that where it is safe.
type Smolvm struct {
	wire   wire
	guests *gate
	hostOS string

	pool  *http.Transport
	life  context.Context // ends at Close
	end   context.CancelFunc
	dials sync.WaitGroup
	made  atomic.Int64 // connections dialled so far
	open  atomic.Int64 // those of them that are not closed

	served served
}

// What one request may take, from its connection to the last byte of its answer.
const (
	healthWait = 5 * time.Second
	readWait   = 60 * time.Second
	logsWait   = 15 * time.Second
	createWait = 60 * time.Second
	startWait  = 300 * time.Second
	stopWait   = 120 * time.Second
	fileWait   = 120 * time.Second // and a second more for each MiB
	pullWait   = 600 * time.Second
	execSlack  = 15 * time.Second // beyond the command's own timeout
)

// guestWidth is how many operations may work in one machine at once, under
// smolvm's eight guest connections so that its own probes find one.
const guestWidth = 6

// guestLong is how many of them may be commands and pulls, which can take long.
const guestLong = 4

// NewSmolvm returns the local fleet behind dial. Nothing is dialled before the
// first call.
func NewSmolvm(dial Dialer, opts SmolvmOptions) *Smolvm {
	if opts.DialWait <= 0 {
		opts.DialWait = 2 * time.Minute
	}
	s := &Smolvm{guests: newGate(guestWidth, guestLong), hostOS: runtime.GOOS, served: newServed()}
	s.life, s.end = context.WithCancel(context.Background())
	s.pool = &http.Transport{
		DialContext:            s.dialer(dial, opts.DialWait),
		DisableCompression:     true, // a file's bytes are wanted as they are
		IdleConnTimeout:        90 * time.Second,
		MaxIdleConnsPerHost:    16,
		MaxResponseHeaderBytes: 64 << 10,
	}
	s.wire = wire{transport: s.pool, base: "http://smolvm", dialWait: opts.DialWait, denied: CodeUnavailable}
	return s
}

// dialer gives dial what the transport takes from it: the transport dials on
// when the request that wanted the connection is gone, so the end of a dial is
// its own bound or Close.
func (s *Smolvm) dialer(dial Dialer, wait time.Duration) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, _, _ string) (net.Conn, error) {
		s.dials.Add(1)
		defer s.dials.Done()
		ctx, cancel := context.WithTimeout(ctx, wait)
		defer cancel()
		defer context.AfterFunc(s.life, cancel)()
		conn, err := dial(ctx)
		if err != nil {
			return nil, dialError{err}
		}
		s.made.Add(1)
		s.open.Add(1)
		return &countedConn{Conn: conn, open: &s.open}, nil
	}
}

// countedConn counts as open until it is closed, and counts the bytes that have
// left through it.
type countedConn struct {
	net.Conn
	open  *atomic.Int64
	once  sync.Once
	wrote atomic.Int64
}

func (c *countedConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.wrote.Add(int64(n))
	return n, err
}

func (c *countedConn) Close() error {
	c.once.Do(func() { c.open.Add(-1) })
	return c.Conn.Close()
}

// Target returns "local".
func (s *Smolvm) Target() string { return "local" }

// Close ends the dials that are going on and drops idle connections. Whoever
// owns the engine lets go of it afterwards.
func (s *Smolvm) Close() error {
	s.end()
	s.dials.Wait()
	s.pool.CloseIdleConnections()
	return nil
}

const machinesPath = "/api/v1/machines"

// machinePath is the path of a machine, whose name has been checked, and of what
// is below it.
func machinePath(name, below string) string { return machinesPath + "/" + url.PathEscape(name) + below }
