package tools

import (
	"context"
	"sync"
)

// work counts what runs until it is closed, after which nothing begins.
type work struct {
	mu      sync.Mutex
	running int
	closed  bool
	idle    chan struct{} // closed when closed and nothing runs
}

func newWork() work { return work{idle: make(chan struct{})} }

// begin reports whether something may begin.
func (w *work) begin() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return false
	}
	w.running++
	return true
}

func (w *work) done() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.running--; w.closed && w.running == 0 {
		close(w.idle)
	}
}

// busy reports whether something runs.
func (w *work) busy() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.running > 0
}

// close lets nothing begin any more, and waits for what runs, until ctx ends.
func (w *work) close(ctx context.Context) {
	w.mu.Lock()
	if !w.closed {
		w.closed = true
		if w.running == 0 {
			close(w.idle)
		}
	}
	w.mu.Unlock()
	select {
	case <-w.idle:
	case <-ctx.Done():
	}
}
