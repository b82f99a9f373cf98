package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Bounds of the clean-up. Clients give a server a few seconds between the end
// of input and SIGKILL, so most of it must be over much sooner; what is not
// done stays recorded for a later sweep.
const (
	endBudget     = 8 * time.Second // from the reason to end until the process exits
	sessionBudget = 7 * time.Second // of it for the machines of the session
	drainTime     = time.Second     // of it for the last answers, which may find nobody reading
)

// session is a [tools.Session].
type session interface {
	Server() *mcp.Server
	Close(context.Context) error
}

// life is a served session from its start to its clean-up. It ends at the
// first of: end of input, broken output, a signal, the parent's death.
type life struct {
	session   session
	transport *stdio
	closers   []closer // after the session, in this order
	signals   <-chan os.Signal
	orphaned  <-chan struct{} // closed when the parent is gone
	log       *slog.Logger
	budget    time.Duration // endBudget
	share     time.Duration // sessionBudget
}

// closer is a part that is closed after the session. Close may block; it is
// abandoned when the budget is over.
type closer struct {
	name  string
	close func() error
}

// run serves until there is a reason to end, cleans up, and returns the exit
// code.
func (l *life) run() (code int, err error) {
	ss, err := l.session.Server().Connect(context.Background(), l.transport, nil)
	if err != nil {
		return exitFailure, err
	}
	code = exitOK
	signalled := false
	select {
	case sig := <-l.signals:
		code, signalled = signalCode(sig), true
		l.log.Info("ending", "reason", sig.String())
	case <-l.orphaned:
		l.log.Info("ending", "reason", "the parent process is gone")
	case <-l.transport.Ended():
		if cause := l.transport.Cause(); !errors.Is(cause, io.EOF) {
			l.log.Info("ending", "reason", cause.Error())
		}
	}
	return cleanUp(l.signals, l.budget, code, signalled, func() error { return l.end(ss) })
}

// cleanUp runs end within the budget. A second signal other than SIGHUP quits without
// waiting. code is what the program would exit with if all went well.
func cleanUp(signals <-chan os.Signal, budget time.Duration, code int, signalled bool, end func() error) (int, error) {
	ended := make(chan error, 1)
	go func() { ended <- end() }() // abandoned when the budget is over: then the process ends
	over := time.NewTimer(budget)
	defer over.Stop()
	for {
		select {
		case err := <-ended:
			if err != nil && code == exitOK {
				code = exitFailure
			}
			return code, err
		case <-over.C:
			if code == exitOK {
				code = exitFailure
			}
			return code, errors.New("clean-up took too long; what is left is recorded and cleaned up later")
		case sig := <-signals:
			if signalled && sig != syscall.SIGHUP {
				return signalCode(sig), errors.New("quit without waiting for the clean-up; what is left is recorded and cleaned up later")
			}
			signalled = true
		}
	}
}

// end closes everything in order. Running calls are cancelled first, so their
// answers still go out.
func (l *life) end(ss *mcp.ServerSession) error {
	ctx, cancel := context.WithTimeout(context.Background(), l.share)
	defer cancel()
	errs := []error{l.session.Close(ctx)}
	drained := make(chan struct{})
	go func() { // not waited for any longer: a stuck output holds it, or a call that hears no cancel
		_ = ss.Close() // says only how the streams ended, which we know
		close(drained)
	}()
	select {
	case <-drained:
	case <-time.After(drainTime):
	}
	return errors.Join(append(errs, closeAll(l.closers))...)
}

// closeAll closes parts in their order, whatever fails.
func closeAll(closers []closer) error {
	var errs []error
	for _, c := range closers {
		if err := c.close(); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", c.name, err))
		}
	}
	return errors.Join(errs...)
}

func signalCode(sig os.Signal) int {
	if n, ok := sig.(syscall.Signal); ok {
		return exitSignal + int(n)
	}
	return exitFailure
}

// watchSignals reports the signals that end a server, and turns SIGPIPE into
// a plain error of the write. (Ignored it would stay so in child processes.)
// A SIGHUP that our parent ignores, as nohup does, stays ignored.
func watchSignals() (<-chan os.Signal, func()) {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) {
		signal.Notify(signals, syscall.SIGHUP)
	}
	pipes := make(chan os.Signal, 1)
	signal.Notify(pipes, syscall.SIGPIPE)
	return signals, func() {
		signal.Stop(signals)
		signal.Stop(pipes)
	}
}
