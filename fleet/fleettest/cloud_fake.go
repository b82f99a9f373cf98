package fleettest

import (
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// CloudToken is a key that every fake cloud knows, of the tenant CloudTenant.
const (
	CloudToken  = "smk_c0ffee0ddba11ad5c0ffee0ddba11ad5"
	CloudTenant = "tenant-a"
)

// CloudFault is something that goes wrong, see [SmolvmFault].
type CloudFault = SmolvmFault

// CloudFake is a fake smol cloud within the test's process.
type CloudFake struct {
	server *cloudServer
	http   *httptest.Server
}

// StartCloud starts a fake smol cloud for the time of the test, which fails when a
// client sends what the service does not know, or what no client may send.
// Without static busybox it can do all but start machines.
func StartCloud(t testing.TB, opts CloudOptions) *CloudFake {
	t.Helper()
	if opts.Data == "" {
		opts.Data = filepath.Join(t.TempDir(), "cloud")
	}
	server, err := newCloudServer(opts)
	if err != nil {
		t.Fatal(err)
	}
	f := &CloudFake{server: server, http: httptest.NewUnstartedServer(server)}
	f.http.Config.ErrorLog = newHTTPServer(nil).ErrorLog
	f.http.Start()
	f.AddKey(CloudToken, CloudKey{Tenant: CloudTenant})
	t.Cleanup(func() {
		err := server.close()
		f.http.CloseClientConnections()
		f.http.Close()
		if err != nil {
			t.Error(err)
		}
		for _, v := range f.Violations() {
			t.Error("the fake cloud was sent: " + v)
		}
	})
	return f
}

// URL is where the service answers.
func (f *CloudFake) URL() string { return f.http.URL }

// AddKey makes a key known, or changes it.
func (f *CloudFake) AddKey(token string, key CloudKey) {
	f.server.mu.Lock()
	defer f.server.mu.Unlock()
	f.server.keys[token] = key
}

// RevokeKey ends a key.
func (f *CloudFake) RevokeKey(token string) {
	f.server.mu.Lock()
	defer f.server.mu.Unlock()
	key := f.server.keys[token]
	key.State = "revoked"
	f.server.keys[token] = key
}

// Plan sets how many machines a tenant may have, and how many of them may run.
func (f *CloudFake) Plan(tenant string, machines, running int) {
	f.server.mu.Lock()
	defer f.server.mu.Unlock()
	t := f.server.tenant(tenant)
	t.maxMachines, t.maxRunning = machines, running
}

// Broke sets whether a tenant's budget is used up.
func (f *CloudFake) Broke(tenant string, broke bool) {
	f.server.mu.Lock()
	defer f.server.mu.Unlock()
	f.server.tenant(tenant).broke = broke
}

// Rate sets how many requests a tenant may send in a time of the fake's clock; 0 for
// any number.
func (f *CloudFake) Rate(tenant string, n int, per time.Duration) {
	f.server.mu.Lock()
	defer f.server.mu.Unlock()
	t := f.server.tenant(tenant)
	t.rate, t.per, t.since, t.spent = n, per, time.Time{}, 0
}

// Advance sets the fake's clock ahead, and does what the time brings.
func (f *CloudFake) Advance(d time.Duration) {
	f.server.advance(d)
}

func (s *cloudServer) advance(d time.Duration) {
	s.mu.Lock()
	s.ahead += d
	s.mu.Unlock()
	s.sweep()
}

// Now is the fake's time.
func (f *CloudFake) Now() time.Time {
	f.server.mu.Lock()
	defer f.server.mu.Unlock()
	return f.server.now()
}

// Fault adds a fault. Its requests are counted from now on.
func (f *CloudFake) Fault(fault CloudFault) { f.server.faults.add(fault) }

// ClearFaults forgets the faults of Fault.
func (f *CloudFake) ClearFaults() { f.server.faults.clear() }

// Requests returns the requests so far, in order of arrival.
func (f *CloudFake) Requests() []SmolvmRequest { return f.server.requests.all() }

// Count returns how many requests of a method had a path that ends in end; empty
// ones match all.
func (f *CloudFake) Count(method, end string) int {
	n := 0
	for _, r := range f.Requests() {
		if (method == "" || r.Method == method) && strings.HasSuffix(r.Path, end) {
			n++
		}
	}
	return n
}

// Violations returns what clients sent that the service does not know.
func (f *CloudFake) Violations() []string {
	f.server.mu.Lock()
	defer f.server.mu.Unlock()
	return append([]string(nil), f.server.violations...)
}

// CloudState is what a fake cloud knows of a machine.
type CloudState struct {
	ID, Name, Tenant, State string
	Env                     map[string]string
}

// Machines returns all machines of all tenants, by name.
func (f *CloudFake) Machines() map[string]CloudState { return f.server.states() }

func (s *cloudServer) states() map[string]CloudState {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make(map[string]CloudState)
	for _, m := range s.machines {
		all[m.wish.Name] = CloudState{ID: m.id, Name: m.wish.Name, Tenant: m.tenant, State: m.state, Env: m.wish.Env}
	}
	return all
}

// Guest returns the guest of a machine that was started; nil when there is none.
func (f *CloudFake) Guest(name string) *Guest {
	f.server.mu.Lock()
	defer f.server.mu.Unlock()
	for _, m := range f.server.machines {
		if m.wish.Name == name {
			return m.guest
		}
	}
	return nil
}

// Event adds to the history of a machine.
func (f *CloudFake) Event(name, level, text string) {
	f.server.mu.Lock()
	defer f.server.mu.Unlock()
	for _, m := range f.server.machines {
		if m.wish.Name == name {
			f.server.event(m, level, text)
		}
	}
}

// Forget drops the oldest n events of a machine, as the service does some day.
func (f *CloudFake) Forget(name string, n int) {
	f.server.mu.Lock()
	defer f.server.mu.Unlock()
	for _, m := range f.server.machines {
		if m.wish.Name == name {
			m.events = m.events[n:]
		}
	}
}

// Put makes a machine as another client would: not started, and without any mark
// but what body says, which is a create's.
func (f *CloudFake) Put(tenant, body string) error {
	r := &cloudCall{Request: &http.Request{}, key: CloudKey{Tenant: tenant}, body: []byte(body), out: http.Header{}}
	if re := f.server.create(r); re.status != http.StatusCreated {
		return &wordedError{string(re.body), nil}
	}
	return nil
}
