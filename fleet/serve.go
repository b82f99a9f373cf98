package fleet

import (
	"context"
	"log/slog"
	"net"
	"time"
)

// EngineOptions say which process serves the local fleet, and how to get it.
type EngineOptions struct {
	Kind         string                 // auto, smolvm or qemu
	Smolvm       string                 // program; with a slash a path, else looked up on PATH
	MinVersion   string                 // oldest smolvm to accept, as 1.14.0; empty accepts any
	URL          string                 // unix:///abs.sock or http://127.0.0.1:port of a running one; empty: find or start it
	Dir          func() (string, error) // runtime directory, private to this user; called at the first Dial
	StartTimeout time.Duration          // from spawn to the second healthy answer
	Log          *slog.Logger
}

// Engine finds, starts, shares and stops the process that answers the smolvm
// API on this computer. Nothing is spawned before the first Dial.
type Engine struct{ opts EngineOptions }

// NewEngine returns an engine that has done nothing yet.
func NewEngine(opts EngineOptions) *Engine { return &Engine{opts: opts} }

// Dial connects to the engine and finds or starts it first where needed. Errors
// are *Error with CodeUnavailable.
func (e *Engine) Dial(ctx context.Context) (net.Conn, error) { panic("being written") }

// Close lets go of the engine; the last process to do so stops it. Machines go on.
func (e *Engine) Close() error { return nil }
