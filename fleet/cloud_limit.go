package fleet

import (
	"context"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// Bounds of the waits that the service's rate limit causes.
const (
	firstHold    = time.Second      // after a 429 that names no time; doubled each time
	longestHold  = 30 * time.Second // whatever the service asks for
	lowRemaining = 100              // requests left of the period, from where on we go slower
	slowGap      = 100 * time.Millisecond
	slowestGap   = 500 * time.Millisecond // with few left
)

// limiter holds back all requests of the process to one tenant's account, since
// the service counts them together: after one was refused, none goes out for a
// while, and the next ones one by one.
type limiter struct {
	now   func() time.Time
	pause func(context.Context, time.Duration) error

	mu    sync.Mutex
	until time.Time     // nothing goes out before
	gap   time.Duration // between one request and the next; 0 none
	hold  time.Duration // of the last refusal; 0 after a success
}

// wait returns when a request may go out, or why ctx ended.
func (l *limiter) wait(ctx context.Context) error {
	for ctx.Err() == nil {
		l.mu.Lock()
		left := l.until.Sub(l.now())
		if left <= 0 {
			if l.gap > 0 {
				l.until = l.now().Add(l.gap)
			}
			l.mu.Unlock()
			return nil
		}
		l.mu.Unlock()
		if err := l.pause(ctx, left); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// refused notes a 429 that asks for a wait of after, or for none in particular.
func (l *limiter) refused(after time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if until := l.until; until.After(l.now()) && l.hold > 0 {
		after = max(after, until.Sub(l.now())) // of a request that went out before the last refusal
	} else if after <= 0 {
		after = max(2*l.hold, firstHold)
	}
	l.hold = min(after, longestHold)
	l.until = l.now().Add(l.hold)
	l.gap = slowGap
}

// passed notes an answer that was no 429, and how many requests it says are left.
func (l *limiter) passed(h http.Header) {
	left, err := strconv.Atoi(h.Get("X-Ratelimit-Remaining"))
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hold = 0
	switch {
	case err != nil || left >= lowRemaining:
		l.gap = 0
	case left < lowRemaining/5:
		l.gap = slowestGap
	default:
		l.gap = slowGap
	}
}
