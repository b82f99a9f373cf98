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
	until time.Time     // nothing goes out before, since the service said so
	hold  time.Duration // which was so long; 0 after a success
	next  time.Time     // the next request goes out then, by the gap between them
	gap   time.Duration // 0 none
}

// wait returns when a request may go out, or why ctx ended.
func (l *limiter) wait(ctx context.Context) error {
	for ctx.Err() == nil {
		left := l.take()
		if left <= 0 {
			return nil
		}
		if err := l.pause(ctx, left); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// take lets a request out, or says how long to wait before asking again.
func (l *limiter) take() (left time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	if left = max(l.until.Sub(now), l.next.Sub(now)); left <= 0 {
		l.next = now.Add(l.gap)
	}
	return left
}

// refused notes a 429 that asks for a wait of after, or for none in particular.
func (l *limiter) refused(after time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	switch {
	case l.until.After(now): // it had gone out before the last refusal came
		after = max(after, l.until.Sub(now))
	case after <= 0:
		after = max(2*l.hold, firstHold)
	}
	l.hold = min(after, longestHold)
	l.until = now.Add(l.hold)
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
