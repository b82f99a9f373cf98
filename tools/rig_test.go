package tools_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"smol-mcp/fleet"
	"smol-mcp/fleet/fleettest"
	"smol-mcp/reaper"
	"smol-mcp/store"
	"smol-mcp/tools"
)

// A rig is a session with a client, over a fleet in memory whose machines are
// real guests.
type rig struct {
	t       testing.TB
	memory  *fleettest.Memory
	fleet   fleet.Fleet          // memory, unless the test wants another
	cloud   *fleettest.Memory    // nil: not served, or over the wire
	wire    *fleettest.CloudFake // behind the cloud's client; nil: the cloud is in memory
	tenant  atomic.Value         // tenant: whose key the cloud is used with
	store   *store.Store
	session *tools.Session
	client  *mcp.ClientSession
	options tools.Options
	dir     string     // of the records
	said    syncBuffer // the log
	mu      sync.Mutex // guards schemas
	schemas map[string]*jsonschema.Resolved
}

// tenant is what the cloud says of the key in use.
type tenant struct {
	account string
	err     error
}

// rigOptions change what a rig is made of.
type rigOptions struct {
	memory   fleettest.MemoryOptions
	guest    fleettest.GuestOptions
	limits   func(*tools.Limits)
	protocol string
	client   *mcp.ClientOptions
	dir      string // of the records; empty: a new one
	account  string
	mark     string                                // of the installation
	level    slog.Level                            // of what is logged
	mode     string                                // both or cloud; empty: local
	wire     bool                                  // the cloud is the client over a fake service
	key      func(context.Context) (string, error) // for it; nil: the one that it knows
	smolvm   bool                                  // over the smolvm client and a fake server instead of a fleet in memory
}

func newRig(t testing.TB, o rigOptions) *rig {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("guests are chroots, which only linux has")
	}
	if o.memory.Exec == nil && o.memory.Guest == nil {
		o.memory.Guest = fleettest.Guests(t, o.guest)
	}
	r := &rig{t: t, memory: fleettest.NewMemory(o.memory)}
	r.fleet = r.memory
	if o.wire {
		r.wire = fleettest.StartCloud(t, fleettest.CloudOptions{})
	}
	if o.smolvm {
		client := fleet.NewSmolvm(fleettest.StartSmolvm(t, fleettest.SmolvmOptions{}).Dial, fleet.SmolvmOptions{})
		t.Cleanup(func() { _ = client.Close() })
		r.fleet = client
	}
	if o.mode != "" && !o.wire {
		cloud := o.memory
		cloud.Target, cloud.Info = "cloud", &fleet.Info{Engine: "cloud", Version: "1", Isolation: "hardware VM", Can: fleet.Features{Branch: true, BranchRunning: true, HostPull: true, Suspend: true}}
		r.cloud = fleettest.NewMemory(cloud)
	}
	r.tenant.Store(tenant{account: "t1"})
	r.options = r.process(o)
	r.store = r.options.Store
	r.session, r.client = r.connect(o)
	return r
}

// process makes what sessions of one process share, over the rig's fleet.
func (r *rig) process(o rigOptions) tools.Options {
	dir := o.dir
	if dir == "" {
		dir = r.t.TempDir()
	}
	r.dir = dir
	log := slog.New(slog.NewTextHandler(logWriter{r.t, &r.said}, &slog.HandlerOptions{Level: o.level}))
	st := store.New(store.Options{RuntimeDir: filepath.Join(dir, "run"), StateDir: filepath.Join(dir, "state"), Kind: "stdio", Log: log})
	account := func(_ context.Context, target string) (string, error) {
		if target == "local" {
			return o.account, nil
		}
		now := r.tenant.Load().(tenant)
		return now.account, now.err
	}
	var there fleet.Fleet = r.cloud
	if o.wire {
		cloud := r.overWire(o, st, log)
		there = cloud
		account = func(ctx context.Context, target string) (string, error) {
			if target == "local" {
				return o.account, nil
			}
			return cloud.Account(ctx)
		}
	}
	fleets := []fleet.Fleet{r.fleet}
	switch o.mode {
	case "both":
		fleets = append(fleets, there)
	case "cloud":
		fleets = []fleet.Fleet{there}
	}
	served := map[string]reaper.Fleet{}
	for _, f := range fleets {
		served[f.Target()] = f
	}
	reap := reaper.New(st, served, reaper.Options{Account: account, Log: log})
	r.t.Cleanup(func() {
		reap.Close()
		_ = st.Close()
	})
	limits := tools.Limits{
		MachinePrefix: "mcp-", MemoryMB: 2048, CPUs: 2, TTL: time.Hour, AutoStop: 15 * time.Minute,
		ExecTimeout: 2 * time.Minute, MaxExecTimeout: 15 * time.Minute, Wait: 45 * time.Second,
		MaxOutputBytes: 65536, ReadyTimeout: 20 * time.Second, LogsTail: 100, LogsPoll: 10 * time.Millisecond,
	}
	if o.limits != nil {
		o.limits(&limits)
	}
	return tools.Options{Version: "0.0.0-test", Fleets: fleets, Store: st, Remover: reap, Account: account, Installation: o.mark, Limits: limits, Log: log}
}

// overWire is the cloud's client, over the rig's fake service.
func (r *rig) overWire(o rigOptions, st *store.Store, log *slog.Logger) *fleet.Cloud {
	key := o.key
	if key == nil {
		key = func(context.Context) (string, error) { return fleettest.CloudToken, nil }
	}
	cloud := fleet.NewCloud(fleet.CloudOptions{
		URL: r.wire.URL(), Token: key, Owner: "installation", Dir: st.StateDir, Log: log,
		Pause: func(ctx context.Context, d time.Duration) error {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(min(d, 5*time.Millisecond)):
				return nil
			}
		},
	})
	r.t.Cleanup(func() { _ = cloud.Close() })
	return cloud
}

func (r *rig) connect(o rigOptions) (*tools.Session, *mcp.ClientSession) {
	r.t.Helper()
	s := tools.New(r.options, "stdio")
	near, far := mcp.NewInMemoryTransports()
	if _, err := s.Server().Connect(context.Background(), near, nil); err != nil {
		r.t.Fatal(err)
	}
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, o.client)
	cs, err := client.Connect(r.t.Context(), far, &mcp.ClientSessionOptions{ProtocolVersion: o.protocol})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = s.Close(ctx)
		_ = cs.Close()
	})
	return s, cs
}

// call calls a tool and decodes its result; the test fails on an error result.
func (r *rig) call(tool string, arguments map[string]any) map[string]any {
	r.t.Helper()
	res := r.try(tool, arguments)
	if res.IsError {
		r.t.Fatalf("%s %v: %s", tool, arguments, words(res))
	}
	return decoded(r.t, res)
}

// refused calls a tool and returns the text of the error result that must come.
func (r *rig) refused(tool string, arguments map[string]any) string {
	r.t.Helper()
	res := r.try(tool, arguments)
	if !res.IsError {
		r.t.Fatalf("%s %v: want an error, got %s", tool, arguments, words(res))
	}
	if res.StructuredContent != nil {
		r.t.Errorf("%s: an error result carries structured content", tool)
	}
	return words(res)
}

func (r *rig) try(tool string, arguments map[string]any) *mcp.CallToolResult {
	r.t.Helper()
	res, err := r.client.CallTool(r.t.Context(), &mcp.CallToolParams{Name: tool, Arguments: arguments})
	if err != nil {
		r.t.Fatalf("%s %v: %v", tool, arguments, err)
	}
	if !res.IsError {
		r.conforms(tool, res)
	}
	return res
}

// conforms checks a result against what the tool promises: its output schema,
// and the same JSON as text.
func (r *rig) conforms(tool string, res *mcp.CallToolResult) {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.schemas == nil {
		r.schemas = map[string]*jsonschema.Resolved{}
		list, err := r.client.ListTools(r.t.Context(), nil)
		if err != nil {
			r.t.Fatal(err)
		}
		for _, tool := range list.Tools {
			resolved, err := parsed(r.t, tool.OutputSchema).Resolve(nil)
			if err != nil {
				r.t.Fatal(err)
			}
			r.schemas[tool.Name] = resolved
		}
	}
	if err := r.schemas[tool].Validate(res.StructuredContent); err != nil {
		r.t.Errorf("%s: the result breaks its schema: %v", tool, err)
	}
	if !reflect.DeepEqual(res.StructuredContent, any(decoded(r.t, res))) {
		r.t.Errorf("%s: text and structured content differ", tool)
	}
}

// machine creates a machine and returns its name.
func (r *rig) machine(arguments map[string]any) string {
	r.t.Helper()
	all := map[string]any{"image": "alpine:3.20"}
	for k, v := range arguments {
		all[k] = v
	}
	return r.call("create-machine", all)["machine"].(map[string]any)["name"].(string)
}

// exists makes a machine in the fleet behind the session's back.
func (r *rig) exists(name string) {
	r.t.Helper()
	if _, err := r.memory.Create(r.t.Context(), fleet.Spec{Name: name, Image: "alpine:3.20"}); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) run(machine, command string) map[string]any {
	r.t.Helper()
	return r.call("run-command", map[string]any{"name": machine, "command": command})
}

func decoded(t testing.TB, res *mcp.CallToolResult) map[string]any {
	t.Helper()
	var out map[string]any
	if err := json.Unmarshal([]byte(res.Content[0].(*mcp.TextContent).Text), &out); err != nil {
		t.Fatalf("the text is no JSON: %v", err)
	}
	return out
}

func words(res *mcp.CallToolResult) string {
	var b strings.Builder
	for _, c := range res.Content {
		if t, ok := c.(*mcp.TextContent); ok {
			b.WriteString(t.Text)
		}
	}
	return b.String()
}

// names are the machines that the fleet has.
func (r *rig) names() []string {
	var all []string
	for _, m := range r.memory.Machines() {
		all = append(all, m.Name)
	}
	return all
}

// eventually waits until true is reported, and fails the test after 10 s.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !holds(); {
		if time.Now().After(end) {
			t.Fatalf("never came true: %s", what)
		}
		time.Sleep(5 * time.Millisecond) // between two looks
	}
}

// logWriter shows the log with the test's, and keeps it.
type logWriter struct {
	t    testing.TB
	said *syncBuffer
}

func (w logWriter) Write(p []byte) (int, error) {
	w.t.Logf("%s", strings.TrimSpace(string(p)))
	return w.said.Write(p)
}

// syncBuffer is a buffer that many may write to.
type syncBuffer struct {
	mu  sync.Mutex
	all []byte
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.all = append(b.all, p...)
	return len(p), nil
}

// String returns what was written.
func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return string(b.all)
}
