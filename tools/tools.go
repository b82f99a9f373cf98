// Package tools is the MCP face: the tools, their words, their schemas and
// their results. Start with [New], which makes the server of one session, then
// read table.go, which lists the tools; each has a file of its own.
package tools

import (
	"context"
	"errors"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"smol-mcp/fleet"
	"smol-mcp/store"
)

// Limits are the settings that tools obey. All are positive unless they say
// otherwise.
type Limits struct {
	MachinePrefix  string        // of generated names; never empty
	MemoryMB       int           // MiB, where create-machine names none
	CPUs           int           // where create-machine names none
	NetworkOpen    bool          // create-machine's default egress is open
	RunOnceOpen    bool          // run-once's default egress is open
	TTL            time.Duration // of ephemeral cloud machines
	AutoStop       time.Duration // of idle ephemeral cloud machines
	ExecTimeout    time.Duration // where run-command names none
	MaxExecTimeout time.Duration // ceiling of timeoutSecs
	Wait           time.Duration // how long run-command waits before it answers "running"; 0 is allowed
	MaxOutputBytes int           // per stream, per read-file page and per log page
	ReadyTimeout   time.Duration // from start to the workload's first answer
	LogsTail       int           // lines, 1..10000
	LogsPoll       time.Duration // between two looks at a followed log
	MountRoots     []string      // host directories below which mounts and image archives may lie; none: refused
	MaxMachines    int           // machines in the fleet at once, whoever made them; 0 no limit
}

// Options are what a session's server is made of.
type Options struct {
	Version string        // of this program
	Fleets  []fleet.Fleet // served, local first; at least one
	Store   *store.Store
	Remover Remover
	Account Accounts
	Limits  Limits
	Log     *slog.Logger

	// Installation is the mark of our machines in a fleet that others use too; empty when
	// it is not known, or there is no such fleet.
	Installation string

	// Of servers for several clients. Principal is whose session it is: machines that
	// are recorded for another are not there for it. The user of this computer is the
	// empty one, and sees all. Lease is the session that a machine passes to which several
	// sessions of the principal use; nil when there is none and it is not to make one.
	Principal string
	Permit    func() Permit // as it stands, asked at each call; nil: all is permitted
	Catalog   *Catalog      // of Limits; nil: one of its own
	Lease     func(make bool) *Session
}

// Accounts tells whose machines a fleet has, as a word for the records: those of
// another account or engine are not touched. It may ask the fleet, once; an error
// fails the calls that need it. Nil: there is one account, without a name.
type Accounts func(ctx context.Context, target string) (string, error)

// Remover deletes recorded machines; package reaper implements it.
type Remover interface {
	// Remove deletes the machines of recs, which the caller may delete, in
	// parallel, and records what came of it. What cannot be deleted before ctx
	// ends stays recorded for a later sweep. The error joins those of all.
	Remove(ctx context.Context, recs ...store.Record) error
}

// Session is one MCP session: a server and the machines that live as long as
// it does.
type Session struct {
	opts     Options
	records  *store.Session
	server   *mcp.Server
	sites    []*site // one for each of Options.Fleets, in their order
	choice   choice  // among them
	followed followers

	over    context.Context // ends with the session, and with it every call
	end     context.CancelCauseFunc
	calls   work // running calls
	listens work // calls that only wait for news
	cleanup work // rollbacks that outlive their call
	follows work // of logs
	asks    work // questions to the user
	waits   work // for commands whose call has stopped waiting
}

// A site is a fleet and what one session knows of its machines.
type site struct {
	fleet    fleet.Fleet
	contacts byMachine[contact]
	made     byMachine[origin]
	ends     byMachine[lifetime]
	finished byMachine[[]string]  // ids of commands that were told in full
	underway byMachine[deadlines] // of commands that run without a call
	attached byMachine[int]       // jobs that keep their requests open
	awaits   byMachine[*awaited]
	halting  byMachine[int] // calls that stop it
}

// New makes the server of one session. kind is "stdio", "http" or "stateless". Nothing is
// written or started before the first call of a tool.
func New(opts Options, kind string) *Session {
	if opts.Catalog == nil {
		opts.Catalog = NewCatalog(opts.Limits)
	}
	s := &Session{
		opts: opts, records: opts.Store.NewSessionOf(opts.Principal, kind, ""),
		calls: newWork(), listens: newWork(), cleanup: newWork(), follows: newWork(), asks: newWork(), waits: newWork(),
	}
	s.share()
	for _, f := range s.opts.Fleets {
		s.sites = append(s.sites, &site{fleet: f})
	}
	s.over, s.end = context.WithCancelCause(context.Background())
	s.server = s.newServer()
	return s
}

// Server is the session's MCP server, to be run on a transport.
func (s *Session) Server() *mcp.Server { return s.server }

// Busy reports whether a call runs, or a command goes on whose call has stopped
// waiting.
func (s *Session) Busy() bool { return s.calls.busy() || s.waits.busy() || s.commandsRun() }

// Owns reports whether the end of the session takes machines with it.
func (s *Session) Owns() bool { return s.records.Owns() }

// errSessionOver is the cause of the end of calls that their session outran.
var errSessionOver = errors.New("the session is over")

// Close ends the session: running calls are cancelled and waited for, and its
// ephemeral machines deleted in parallel until ctx ends. What is left by then is
// recorded for a later sweep.
func (s *Session) Close(ctx context.Context) error {
	clean, err := s.End(ctx)
	return errors.Join(err, clean(ctx))
}

// End is the part of Close that makes the end known: when it returns, running calls
// are cancelled, and it is on record that the session's ephemeral machines have
// to go. clean deletes them.
func (s *Session) End(ctx context.Context) (clean func(context.Context) error, err error) {
	s.end(errSessionOver)
	// A call that does not hear must not take the time of the machines.
	calls, cancel := context.WithTimeout(ctx, callsTimeout)
	defer cancel()
	s.calls.close(calls)
	s.asks.close(calls)
	s.listens.close(calls)
	s.follows.close(calls)
	s.waits.close(calls)
	s.cleanup.close(calls)
	// The mark must be written even when no time is left to act on it.
	mark, cancel := context.WithTimeout(context.WithoutCancel(ctx), markTimeout)
	defer cancel()
	recs, err := s.records.End(mark)
	return func(ctx context.Context) error { return s.deleteAll(ctx, recs) }, err
}

// deleteAll deletes the machines of an ended session.
func (s *Session) deleteAll(ctx context.Context, recs []store.Record) error {
	err := s.opts.Remover.Remove(ctx, recs...)
	if fleet.CodeOf(err) == fleet.CodeConflict {
		// A branch that is kept holds what it was made from. That is recorded, and nobody's failure.
		s.opts.Log.Warn("a machine stays until its branches are gone", "err", err)
		return nil
	}
	return err
}

// callsTimeout bounds how long the end of a session waits for its calls.
const callsTimeout = 2 * time.Second

// markTimeout bounds the writing of a record that must not be skipped.
const markTimeout = 2 * time.Second

// background runs clean-up that must happen although its call is over. Close
// waits for it. Of a session that is over, what it would clean up is recorded.
func (s *Session) background(ctx context.Context, limit time.Duration, clean func(ctx context.Context)) {
	if !s.cleanup.begin() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	go func() {
		defer s.cleanup.done()
		defer cancel()
		_ = s.guard(func() error { clean(ctx); return nil })
	}()
}

// guard makes a panic of work an error, where no caller of ours would recover it.
func (s *Session) guard(work func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			s.opts.Log.Error("panic", "panic", p, "stack", string(debug.Stack()))
			err = &fleet.Error{Code: fleet.CodeInternal, Op: "finish the call", Why: "the server failed inside; it goes on"}
		}
	}()
	return work()
}
