package fleet_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"smol-mcp/fleet"
	"smol-mcp/fleet/fleettest"
)

// clock is a client's time: a wait takes none, is written down, and sets it ahead.
type clock struct {
	mu    sync.Mutex
	time  time.Time
	waits []time.Duration
	meant func(d time.Duration) // called during each wait
}

func newClock() *clock { return &clock{time: time.Unix(1_800_000_000, 0)} }

func (k *clock) now() time.Time {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.time
}

func (k *clock) ahead(d time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.time = k.time.Add(d)
}

func (k *clock) pause(ctx context.Context, d time.Duration) error {
	k.mu.Lock()
	k.time, k.waits = k.time.Add(d), append(k.waits, d)
	meant := k.meant
	k.mu.Unlock()
	if meant != nil {
		meant(d)
	}
	return ctx.Err()
}

// taken returns the waits so far and forgets them.
func (k *clock) taken() []time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	waits := k.waits
	k.waits = nil
	return waits
}

// by sets a client's time.
func by(k *clock) func(*fleet.CloudOptions) {
	return func(o *fleet.CloudOptions) { o.Now, o.Pause = k.now, k.pause }
}

// from sets a client's source of keys.
func from(source *keySource) func(*fleet.CloudOptions) {
	return func(o *fleet.CloudOptions) { o.Token = source.get }
}

// keySource is a source whose key can change.
type keySource struct {
	mu    sync.Mutex
	token string
}

func (s *keySource) get(context.Context) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.token, nil
}

func (s *keySource) set(token string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.token = token
}

// want fails unless err has the code, says whether it may have been done, and has
// all the words.
func want(t *testing.T, err error, code fleet.Code, maybe bool, words ...string) {
	t.Helper()
	var e *fleet.Error
	if !errors.As(err, &e) || e.Code != code || e.MaybeDone != maybe {
		t.Errorf("got %s %v (maybe done %v), want %s (%v)", fleet.CodeOf(err), err, fleet.MaybeDone(err), code, maybe)
		return
	}
	for _, w := range words {
		if !strings.Contains(e.Error()+" "+e.Next, w) {
			t.Errorf("%q and %q do not say %q", e.Error(), e.Next, w)
		}
	}
}

// vm is a wish for a machine that costs little and ends by itself.
func vm(name string) fleet.Spec {
	return fleet.Spec{Name: name, Image: "alpine:3.20", CPUs: 1, MemoryMB: 512, TTL: time.Hour, AutoStop: 15 * time.Minute}
}

// made creates a machine and returns its name.
func made(t *testing.T, f fleet.Fleet, name string) string {
	t.Helper()
	if _, err := f.Create(t.Context(), vm(name)); err != nil {
		t.Fatal(err)
	}
	return name
}

// sent returns the requests of step, as "METHOD path" without the machine's id.
func sent(server *fleettest.CloudFake, step func()) []string {
	before := len(server.Requests())
	step()
	var out []string
	for _, r := range server.Requests()[before:] {
		parts := strings.Split(r.Path, "/")
		for i, p := range parts {
			if strings.HasPrefix(p, "mach-") {
				parts[i] = "ID"
			}
		}
		out = append(out, r.Method+" "+strings.TrimPrefix(strings.Join(parts, "/"), "/v1"))
	}
	return out
}

// wantSent fails unless step sends exactly these requests.
func wantSent(t *testing.T, server *fleettest.CloudFake, step func(), requests ...string) {
	t.Helper()
	if got := sent(server, step); !slices.Equal(got, requests) {
		t.Errorf("sent %q, want %q", got, requests)
	}
}

var run = fleet.Command{Argv: []string{"true"}, Timeout: time.Minute}
