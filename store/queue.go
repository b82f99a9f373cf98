package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	bolt "go.etcd.io/bbolt"
)

// maxBatch bounds how many operations share one transaction.
const maxBatch = 64

// op is one operation on its way through the queue.
type op struct {
	fn    func(*tx) error
	file  func(*os.File, *os.Root) error // in place of fn: works on the locked file itself
	write bool
	err   error
	done  chan struct{}
	state atomic.Int32
}

// The states of an op. Whoever moves it away from queued decides its fate.
const (
	opQueued int32 = iota
	opTaken
	opAbandoned
)

// queue hands the operations of this process, in batches, to one goroutine,
// which runs while there are any. It is the only one that ever blocks on the
// lock of state.db; callers that tire of waiting just leave.
type queue struct {
	mu      sync.Mutex
	ops     []*op
	running bool
	closed  bool
	wake    chan struct{} // says that there are more
	idle    chan struct{} // closed when the goroutine ends
	lock    *os.File      // what it waits for the lock of
}

// view runs fn, which only reads, in a transaction.
func (s *Store) view(ctx context.Context, fn func(*tx) error) error { return s.do(ctx, false, fn) }

// update runs fn in a transaction. fn may run more than once, so it must do no more than
// read and write through its tx and assign results. When update returns an error, fn's writes
// were not made; only after a crash nobody can know.
func (s *Store) update(ctx context.Context, fn func(*tx) error) error { return s.do(ctx, true, fn) }

func (s *Store) do(ctx context.Context, write bool, fn func(*tx) error) error {
	return s.enqueue(ctx, &op{fn: fn, write: write})
}

// locked runs fn on state.db itself, with R, while its lock is held.
func (s *Store) locked(ctx context.Context, fn func(*os.File, *os.Root) error) error {
	return s.enqueue(ctx, &op{file: fn})
}

func (s *Store) enqueue(ctx context.Context, o *op) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	o.done = make(chan struct{})
	if !s.queue.add(o, s.commitLoop) {
		return ErrClosed
	}
	wait := time.NewTimer(s.opts.Wait)
	defer wait.Stop()
	var cause error
	select {
	case <-o.done:
		return o.err
	case <-ctx.Done():
		cause = ctx.Err()
	case <-wait.C:
		cause = fmt.Errorf("waited %v", s.opts.Wait)
	}
	if o.state.CompareAndSwap(opQueued, opAbandoned) {
		return s.queue.busy(cause)
	}
	<-o.done // it is being carried out, which is a matter of milliseconds
	return o.err
}

// add queues o and starts loop when it does not run.
func (q *queue) add(o *op, loop func()) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return false
	}
	q.ops = append(q.ops, o)
	if !q.running {
		q.running, q.idle, q.wake = true, make(chan struct{}), make(chan struct{}, 1)
		go loop()
	}
	q.rouse()
	return true
}

// rouse makes the goroutine look at the queue.
func (q *queue) rouse() {
	select {
	case q.wake <- struct{}{}:
	default: // it will
	}
}

// linger is how long the goroutine waits for more: a new one has to grow its
// stack anew.
const linger = 50 * time.Millisecond

// more reports whether there is work; if not, the loop is over.
func (q *queue) more(timer *time.Timer) bool {
	timer.Reset(linger)
	for over := false; ; {
		q.mu.Lock()
		if len(q.ops) > 0 {
			q.mu.Unlock()
			return true
		}
		if over || q.closed {
			break
		}
		q.mu.Unlock()
		select {
		case <-q.wake:
		case <-timer.C:
			over = true
		}
	}
	defer q.mu.Unlock()
	q.running = false
	close(q.idle)
	return false
}

// take returns the next operations that still have a caller. One that works on
// the file comes alone.
func (q *queue) take() []*op {
	q.mu.Lock()
	defer q.mu.Unlock()
	var batch []*op
	n := 0
	for _, o := range q.ops {
		if len(batch) == maxBatch || len(batch) > 0 && (o.file != nil || batch[0].file != nil) {
			break
		}
		n++
		if o.state.CompareAndSwap(opQueued, opTaken) {
			batch = append(batch, o)
		}
	}
	q.ops = append([]*op(nil), q.ops[n:]...)
	return batch
}

// waiting says which lock is being waited for.
func (q *queue) waiting(f *os.File) {
	q.mu.Lock()
	q.lock = f
	q.mu.Unlock()
}

// busy says who holds the lock.
func (q *queue) busy(cause error) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	var holder string
	if q.lock != nil {
		holder = lockHolder(q.lock)
	}
	if holder == "" {
		return fmt.Errorf("%w: %w", ErrBusy, cause)
	}
	return fmt.Errorf("%w (held by %s): %w", ErrBusy, holder, cause)
}

// closeWait bounds how long close waits for a lock that another process holds.
const closeWait = time.Second

func (q *queue) close() {
	q.mu.Lock()
	q.closed = true
	running, idle := q.running, q.idle
	if running {
		q.rouse()
	}
	for _, o := range q.ops {
		if o.state.CompareAndSwap(opQueued, opAbandoned) {
			o.err = ErrClosed
			close(o.done)
		}
	}
	q.mu.Unlock()
	if running {
		select {
		case <-idle:
		case <-time.After(closeWait):
		}
	}
}

// commitLoop carries out what is queued until nothing is.
func (s *Store) commitLoop() {
	timer := time.NewTimer(linger)
	defer timer.Stop()
	for s.queue.more(timer) {
		s.commit()
	}
}

// commit carries out one batch, on a new file if the old one is of no use.
func (s *Store) commit() {
	var batch []*op
	err := s.attempt(&batch)
	for n := range maxMends {
		if !mendable(err) || s.opts.ReadOnly {
			break
		}
		if err = s.mend(err, n > 0); err == nil {
			err = s.attempt(&batch)
		}
	}
	if err != nil && batch == nil { // the file could not even be opened
		batch = s.queue.take()
	}
	for _, o := range batch {
		if err != nil {
			o.err = err
		}
		close(o.done)
	}
}

// maxMends bounds how often one batch builds the file anew.
const maxMends = 2

// attempt runs a batch, and takes one from the queue when it holds the lock: who
// left meanwhile is not in it.
func (s *Store) attempt(batch *[]*op) error {
	f, root, err := s.openLocked()
	if err != nil {
		return err
	}
	if *batch == nil {
		if *batch = s.queue.take(); *batch == nil {
			return f.Close()
		}
	}
	err = s.lifeAgain(root)
	if err == nil && !s.isVerified() {
		if _, err = verify(f); err == nil {
			s.verified, err = f.Stat()
		}
	}
	if err != nil {
		f.Close()
		return err
	}
	if work := (*batch)[0].file; work != nil {
		defer f.Close()
		return work(f, root)
	}
	return withDB(f, func(db *bolt.DB) error { return s.runBatch(db, *batch) })
}

// isVerified reports whether the locked file was looked at as a whole already.
func (s *Store) isVerified() bool {
	return s.verified != nil && os.SameFile(s.verified, s.locking)
}

// runBatch runs the operations in one transaction. One that fails is taken out
// and the rest runs again, so that nobody suffers for another's error.
func (s *Store) runBatch(db *bolt.DB, batch []*op) error {
	write := false
	for _, o := range batch {
		write = write || o.write
	}
	for live := batch; len(live) > 0; {
		failed := -1
		var lost bool
		run := db.View
		if write {
			run = db.Update
		}
		err := run(func(btx *bolt.Tx) (err error) {
			t := &tx{Tx: btx, host: s.host}
			if lost, err = s.begin(t, write); err != nil {
				return err
			}
			failed, err = runOps(t, live)
			return err
		})
		switch {
		case errors.Is(err, errWriteFirst):
			write = true
		case !errors.Is(err, errOpFailed):
			if err == nil && lost {
				s.epoch, s.registered = s.nextEpoch, s.nextName
			}
			return err
		case write: // the others again, without it
			live = append(live[:failed:failed], live[failed+1:]...)
		default: // nothing to undo: go on behind it
			live = live[failed+1:]
		}
	}
	return nil
}

// begin checks the file and, when it is another one than the last time, writes
// what this process owns into it before anything else happens.
func (s *Store) begin(t *tx, write bool) (lost bool, err error) {
	epoch, err := t.check(write, &s.checked)
	if err != nil {
		return false, err
	}
	s.mu.Lock()
	entered, name := s.life != nil, s.lifeName
	s.mu.Unlock()
	if !entered || epoch == s.epoch && name == s.registered {
		return false, nil
	}
	if !write {
		return false, errWriteFirst
	}
	s.nextEpoch, s.nextName = epoch, name
	return true, s.again(t)
}

var errWriteFirst = errors.New("something has to be written first")

// runOps runs operations until one fails, and returns which.
func runOps(t *tx, ops []*op) (int, error) {
	for i, o := range ops {
		if o.err = runOp(o, t); o.err != nil {
			return i, errOpFailed
		}
	}
	failpoint("db-commit")
	return -1, nil
}

var errOpFailed = errors.New("an operation failed")

// runOp keeps a panic of one operation from the others. A fault is not a
// panic of the operation but of the file, and goes on.
func runOp(o *op, t *tx) (err error) {
	defer func() {
		r := recover()
		if r == nil {
			return
		}
		if _, fault := r.(interface{ Addr() uintptr }); fault {
			panic(r)
		}
		err = fmt.Errorf("panic in a store operation: %v", r)
	}()
	return o.fn(t)
}
