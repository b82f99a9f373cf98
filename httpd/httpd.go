// Package httpd serves MCP sessions over Streamable HTTP, in all its revisions,
// to the holders of tokens. It knows nothing of machines: what a session does is
// behind [Session]. Start with [New]; [Server.Handler] is what an http.Server
// of [Listener.Serve] is given.
//
// A request passes, in this order,
//
//	token      authorize   401, and nothing else is looked at before
//	Host       checkHost   403
//	Origin     checkHost   403
//	path       route       404; /healthz ends here
//	body       readBody    400, 408, 413, 415
//	session    sessions    404, 429
//
// and then one of two handlers of the SDK: one for the revisions that open a
// session with a handshake, where each session has a server of its own, and
// one for the revisions without sessions, where all requests of a principal share
// one server, its lease.
package httpd

import (
	"context"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// FirstModern is the first revision of the protocol without sessions.
const FirstModern = "2026-07-28"

// Session is what one client, or one principal, has open.
type Session interface {
	// Server is its MCP server.
	Server() *mcp.Server

	// Target is where calls are carried out that do not say where; empty when they have to.
	Target() string

	// Busy reports whether something of it runs that must not be cut short.
	Busy() bool

	// Review makes sure that what Busy counts still runs. It may take seconds, and it is
	// asked when nobody has used the session for a while.
	Review(ctx context.Context)

	// Owns reports whether its end would take something away.
	Owns() bool

	// End cancels what runs and makes the end known; the function it returns, which is
	// never nil, clears up. Ending twice does nothing the second time.
	End(ctx context.Context) (clean func(context.Context) error, err error)
}

// Opening is what a session is made of.
type Opening struct {
	Token Token
	Kind  string // "http", or "stateless" for a principal's lease

	// Current is the token with its limits as they stand when it is called; never nil.
	Current func() Token

	// Lease is the session that outlives those of one principal: the one without
	// a handshake. It returns nil when there is none and it is not to make one.
	// It is nil for the lease itself.
	Lease func(make bool) Session
}

// Options say what is served to whom. Zero durations and numbers mean the
// defaults below.
type Options struct {
	Path    string   // of the MCP endpoint, as /mcp
	Hosts   []string // Host headers that are accepted, each with or without a port; nil: any
	Origins []string // Origin headers that are accepted beside the server's own
	Tokens  *Tokens
	Open    func(Opening) (Session, error) // cheap; an error refuses the client and says why
	Version string                         // of this program, for /healthz
	Log     *slog.Logger

	Idle        time.Duration // after which a session ends that nobody uses
	MaxSessions int           // of one principal
	MaxRequests int           // of one principal at once
	MaxBody     int64         // bytes
	MaxBodies   int64         // bytes of all requests of one principal at once
	BodyTime    time.Duration // for the next piece of a body to come
	KeepAlive   time.Duration // between signs of life on a silent stream
	WriteTime   time.Duration // for a client to take what is sent
	FailDelay   time.Duration // before a wrong token is answered
	CleanTime   time.Duration // for what an ended session leaves
}

// The defaults of [Options].
const (
	DefaultIdle        = 30 * time.Minute
	DefaultMaxSessions = 1000
	DefaultMaxRequests = 1024
	DefaultMaxBody     = 16 << 20
	DefaultMaxBodies   = 128 << 20
	DefaultBodyTime    = 20 * time.Second
	DefaultKeepAlive   = 15 * time.Second
	DefaultWriteTime   = 30 * time.Second
	DefaultFailDelay   = 250 * time.Millisecond
	DefaultCleanTime   = 150 * time.Second
)

// reviewTime bounds a [Session.Review].
const reviewTime = 30 * time.Second

// maxClearing is of how many sessions at once the leftovers are cleared up.
const maxClearing = 8

func (o *Options) fill() {
	set(&o.Idle, DefaultIdle)
	set(&o.MaxSessions, DefaultMaxSessions)
	set(&o.MaxRequests, DefaultMaxRequests)
	set(&o.MaxBody, DefaultMaxBody)
	set(&o.MaxBodies, DefaultMaxBodies)
	set(&o.BodyTime, DefaultBodyTime)
	set(&o.KeepAlive, DefaultKeepAlive)
	set(&o.WriteTime, DefaultWriteTime)
	set(&o.FailDelay, DefaultFailDelay)
	set(&o.CleanTime, DefaultCleanTime)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
}

func set[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Server is the sessions of all clients. Close ends it.
type Server struct {
	opts      Options
	sessions  sessions
	handshake http.Handler
	modern    http.Handler
	refused   chan struct{} // places of those who wait for the answer to a wrong token
	clearing  chan struct{} // places of sessions whose leftovers are cleared up
	refusals  brake
	began     time.Time

	ending sync.WaitGroup // of sessions
	stop   context.CancelFunc
	sweeps sync.WaitGroup
}

// New returns a server that ends idle sessions until it is closed.
func New(opts Options) *Server {
	opts.fill()
	s := &Server{opts: opts, refused: make(chan struct{}, maxRefused), clearing: make(chan struct{}, maxClearing), began: time.Now()}
	s.sessions = newSessions(s)
	quiet := slog.New(atLeastWarn{opts.Log.Handler()})
	s.handshake = mcp.NewStreamableHTTPHandler(serverOf, &mcp.StreamableHTTPOptions{
		Logger: quiet, MaxRequestBodyBytes: -1, DisableLocalhostProtection: true, // both are done here
	})
	s.modern = mcp.NewStreamableHTTPHandler(serverOf, &mcp.StreamableHTTPOptions{
		Logger: quiet, MaxRequestBodyBytes: -1, DisableLocalhostProtection: true,
		Stateless: true, PropagateRequestCancellation: true,
	})
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	s.sweeps.Go(func() { s.sweep(ctx) })
	return s
}

// sweep ends idle sessions until ctx ends.
func (s *Server) sweep(ctx context.Context) {
	tick := time.NewTicker(max(10*time.Millisecond, min(s.opts.Idle/8, 10*time.Second)))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		s.opts.Tokens.refresh(s.opts.Log)
		due, doubtful := s.sessions.due(time.Now())
		for _, e := range doubtful {
			go func() { // counted as it was found
				defer s.ending.Done()
				ctx, cancel := context.WithTimeout(ctx, reviewTime)
				defer cancel()
				e.session.Review(ctx)
			}()
		}
		for _, e := range due {
			go func() { // counted as it was taken out
				_ = s.end(context.Background(), e) // it tells the log
			}()
		}
	}
}

// Close refuses new requests and ends all sessions: what they own is marked first,
// all at once, and then cleared up until ctx ends. What is left by then is for
// others to find. It reports what went wrong.
func (s *Server) Close(ctx context.Context) error {
	s.stop()
	s.sweeps.Wait()
	done := make(chan error, 1)
	go func() { done <- s.endAll(ctx) }() // not waited for any longer than ctx: handlers may be deaf
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

type bindingKey struct{}

// A binding is the server that a request is for. The SDK asks for it twice with
// nothing but the request in hand, so it travels in the request's context.
type binding struct{ server func() *mcp.Server }

func bind(r *http.Request, server func() *mcp.Server) *http.Request {
	return r.WithContext(context.WithValue(r.Context(), bindingKey{}, &binding{server}))
}

func serverOf(r *http.Request) *mcp.Server {
	if b, ok := r.Context().Value(bindingKey{}).(*binding); ok {
		return b.server()
	}
	return nil
}

// atLeastWarn is a log without what is below a warning: the SDK tells every step.
type atLeastWarn struct{ slog.Handler }

func (h atLeastWarn) Enabled(ctx context.Context, l slog.Level) bool {
	return l >= slog.LevelWarn && h.Handler.Enabled(ctx, l)
}

func (h atLeastWarn) WithAttrs(a []slog.Attr) slog.Handler {
	return atLeastWarn{h.Handler.WithAttrs(a)}
}

func (h atLeastWarn) WithGroup(name string) slog.Handler {
	return atLeastWarn{h.Handler.WithGroup(name)}
}
