package fleettest

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// What a fake cloud's tenants may have unless told otherwise.
const (
	cloudMaxMachines = 20
	cloudMaxRunning  = 10
)

// CloudKey is a key of a fake cloud.
type CloudKey struct {
	Tenant string
	Scopes []string // admin when empty
	State  string   // empty for a good one; expired, revoked
}

// cloudTenant is an account of the fake. The server's mutex guards it.
type cloudTenant struct {
	maxMachines, maxRunning int
	broke                   bool // creates are answered with 402

	rate  int // requests in per; 0 none counted
	per   time.Duration
	since time.Time // begin of the period
	spent int
}

// tenant returns an account, made at its first use. s.mu is held.
func (s *cloudServer) tenant(id string) *cloudTenant {
	t := s.tenants[id]
	if t == nil {
		t = &cloudTenant{maxMachines: cloudMaxMachines, maxRunning: cloudMaxRunning}
		s.tenants[id] = t
	}
	return t
}

// admit checks the credential of a call and its account's rate, in the words of the
// service: none at all and an unknown one are answered differently.
func (s *cloudServer) admit(r *cloudCall) *reply {
	s.mu.Lock()
	defer s.mu.Unlock()
	token, given := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !given {
		return &reply{status: http.StatusUnauthorized}
	}
	key, known := s.keys[token]
	switch {
	case !known:
		return refuse(401, "unknown_key", "unknown API key")
	case key.State == "expired":
		return refuse(401, "expired_key", "API key has expired")
	case key.State != "":
		return refuse(401, key.State+"_key", "API key has been %s", key.State)
	}
	r.key = key
	return s.count(r, s.tenant(key.Tenant))
}

// count takes a request off the account's allowance. s.mu is held.
func (s *cloudServer) count(r *cloudCall, t *cloudTenant) *reply {
	if t.rate == 0 {
		return nil
	}
	now := s.now()
	if now.Sub(t.since) >= t.per {
		t.since, t.spent = now, 0
	}
	left := t.rate - t.spent
	r.out.Set("X-Ratelimit-Remaining", strconv.Itoa(max(left-1, 0)))
	if left <= 0 {
		r.out.Set("Retry-After", strconv.Itoa(int((t.since.Add(t.per).Sub(now)+time.Second-1)/time.Second)))
		return s.refuse(429, "rate limit exceeded")
	}
	t.spent++
	return nil
}

// allow checks that the key has a scope.
func (s *cloudServer) allow(r *cloudCall, scope string) *reply {
	if scope == "" || len(r.key.Scopes) == 0 || slices.Contains(r.key.Scopes, "admin") || slices.Contains(r.key.Scopes, scope) {
		return nil
	}
	return s.refuse(403, "missing scope: %s", scope)
}

func (s *cloudServer) me(r *cloudCall) reply {
	scopes := r.key.Scopes
	if len(scopes) == 0 {
		scopes = []string{"admin"}
	}
	return jsonReply(map[string]any{
		"subject": "key-" + r.key.Tenant, "scopes": scopes, "tenantId": r.key.Tenant, "tenantName": r.key.Tenant + "@example.com",
		"tenantStatus": "active", "registryNamespace": "tenants/" + r.key.Tenant,
	})
}

func (s *cloudServer) account(r *cloudCall) reply {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tenant(r.key.Tenant)
	return jsonReply(map[string]any{
		"tenantId": r.key.Tenant, "status": "active", "effectiveMaxMachines": t.maxMachines, "effectiveMaxCpus": 8, "effectiveMaxMemoryMb": 32768,
		"plan": map[string]any{"name": "Standard", "maxMachines": t.maxMachines, "maxConcurrentMachines": t.maxRunning},
	})
}
