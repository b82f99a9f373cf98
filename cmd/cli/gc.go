package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"smol-mcp/fleet"
	"smol-mcp/reaper"
	"smol-mcp/store"
)

const gcHelp = `Servers do this by themselves every ten seconds; gc does it when none runs, and
may run beside them. It deletes machines whose session has ended and those of a
crashed session that nobody came back to in time. It never deletes what belongs
to a live session, nor machines to be kept. It starts the engine when there is
something to delete.

With --strays it also deletes machines that only by their name look like ours and
that no record knows, when they are older than --older-than, as 24h; in the cloud
only those that this installation has marked. It asks first; --yes answers for you.

Exit codes:
  0  nothing is left to be done now
  1  failure
  2  something is left: it is blocked, not deleted yet, or being deleted by
     another process; also wrong usage
  3  the records stayed locked by another process
`

// Exit codes of gc.
const (
	exitLeft = 2
	exitBusy = 3
)

// gcWait is how long gc waits for the lock of the records.
const gcWait = 30 * time.Second

func gcFlags() []option {
	return []option{
		{"dry-run", "", "say what would be done, and change nothing"},
		optJSON,
		{"target", "TARGET", "only machines of this target"},
		{"now", "", "do not wait for crashed sessions to come back"},
		{"strays", "", "also delete unrecorded machines that look like ours"},
		{"older-than", "DURATION", "with --strays: only those older than this"},
		{"yes", "", "with --strays: do not ask"},
		{"verify", "", "check the whole state file"},
		{"compact", "", "make the state file as small as it can be"},
	}
}

// gcReport is what gc --json prints.
type gcReport struct {
	Schema     int            `json:"schema"`
	BootID     string         `json:"boot_id"`
	RuntimeDir string         `json:"runtime_dir"`
	DryRun     bool           `json:"dry_run"`
	Actions    []gcAction     `json:"actions"`
	Left       map[string]int `json:"left"` // by fate
	Faults     []string       `json:"faults"`
	Notices    []store.Notice `json:"notices"`
}

type gcAction struct {
	Target string  `json:"target"`
	Name   string  `json:"name"`
	UID    string  `json:"uid,omitempty"` // empty: it had no record
	State  string  `json:"state"`
	Owner  gcOwner `json:"owner"`
	Action string  `json:"action"`
	Reason string  `json:"reason"`
	Result string  `json:"result,omitempty"`
}

type gcOwner struct {
	Instance string `json:"instance,omitempty"`
	Session  string `json:"session,omitempty"`
	Alive    string `json:"alive"` // alive, dead, ended, unproven, or none
	Proof    string `json:"proof,omitempty"`
}

// collector is one run of gc.
type collector struct {
	*call
	config *Config
	st     *store.Store
	places *places
	fleets map[string]fleet.Fleet
	report gcReport
	failed bool // a deletion failed, or the file is damaged
}

func runGC(c *call) (err error) {
	age, err := gcUsage(c)
	if err != nil {
		return err
	}
	r, err := resolve(os.LookupEnv, c.flags["config"])
	if err != nil {
		return err
	}
	log, flush := newLog(c.stderr, r.LogFormat)
	defer flush()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	st := store.New(store.Options{
		RuntimeDir: r.RuntimeDir, Kind: "gc", Version: version, Wait: gcWait, Log: log,
		CrashGrace: grace(&r.Config), ReadOnly: c.has("dry-run"),
	})
	p := newPlaces(&r.Config, os.LookupEnv, st, log)
	defer func() { err = errors.Join(err, p.close(), st.Close()) }()
	g := &collector{call: c, config: &r.Config, st: st, places: p, fleets: map[string]fleet.Fleet{}}
	for _, f := range p.fleets {
		g.fleets[f.Target()] = f
	}
	g.report = gcReport{Schema: 1, DryRun: c.has("dry-run"), Actions: []gcAction{}, Left: map[string]int{}, Faults: []string{}, Notices: []store.Notice{}}
	if t := c.flags["target"]; t != "" && g.fleets[t] == nil {
		return &usageError{fmt.Sprintf("gc: target %q is not served", t), "SMOL_MCP_TARGETS and SMOL_CLOUD_TOKEN decide what is"}
	}
	if err := g.run(ctx, age); errors.Is(err, store.ErrBusy) {
		say(c.stderr, err.Error(), "the process that is named holds the lock; nothing was changed")
		return exitCode(exitBusy)
	} else if err != nil {
		return err
	}
	return g.print()
}

// gcUsage refuses flags that make no sense together.
func gcUsage(c *call) (age time.Duration, err error) {
	if c.has("older-than") != c.has("strays") {
		return 0, &usageError{"gc: --strays and --older-than go together", "as smol-mcp gc --strays --older-than 24h"}
	}
	if c.has("yes") && !c.has("strays") {
		return 0, &usageError{"gc: --yes answers the question of --strays, and nothing else is asked", "leave it out, or as smol-mcp gc --strays --older-than 24h --yes"}
	}
	if c.has("strays") {
		if age, err = time.ParseDuration(c.flags["older-than"]); err != nil || age <= 0 {
			return 0, &usageError{fmt.Sprintf("gc: --older-than %q is not a duration", c.flags["older-than"]), "as 24h or 90m"}
		}
	}
	return age, nil
}

func (g *collector) run(ctx context.Context, age time.Duration) error {
	if g.has("verify") {
		faults, err := g.st.Verify(ctx)
		if err != nil {
			return err
		}
		g.report.Faults = append(g.report.Faults, faults...)
		g.failed = len(faults) > 0
	}
	if !g.report.DryRun {
		if err := g.collect(ctx); err != nil {
			return err
		}
	}
	sv, err := survey(ctx, g.st)
	if err != nil {
		return err
	}
	g.report.BootID, g.report.RuntimeDir, g.report.Notices = sv.BootID, sv.Dir, sv.Notices
	for _, m := range sv.Machines {
		if t := g.flags["target"]; t != "" && m.Record.Target != t {
			continue
		}
		g.report.Left[string(m.Fate)]++
		if m.Fate == store.FateDelete && g.fleets[m.Record.Target] == nil && !g.report.DryRun {
			g.tell("%s %s: not deleted, since %s is not served (SMOL_MCP_TARGETS and SMOL_CLOUD_TOKEN decide)", m.Record.Target, m.Record.Name, m.Record.Target)
		}
		if g.report.DryRun {
			g.report.Actions = append(g.report.Actions, planned(m))
		}
	}
	if g.has("strays") {
		if err := g.strays(ctx, sv, age); err != nil {
			return err
		}
	}
	return g.tend(ctx, sv)
}

// tend says what was checked of the state file, and compacts it.
func (g *collector) tend(ctx context.Context, sv store.Survey) error {
	if (g.has("verify") || g.has("compact")) && sv.Size == 0 {
		g.tell("state file: there is none yet")
		return nil
	}
	if g.has("verify") && len(g.report.Faults) == 0 { // else they are told at the end
		g.tell("state file: no fault in its %d bytes, every page and every row was read", sv.Size)
	}
	switch {
	case !g.has("compact"):
		return nil
	case g.report.DryRun:
		g.tell("state file: would be compacted; it has %d bytes", sv.Size)
		return nil
	}
	before, after, err := g.st.Compact(ctx)
	if err != nil {
		return err
	}
	g.tell("state file: compacted to %d bytes from %d", after, before)
	return nil
}

// collect deletes what records say has to go.
func (g *collector) collect(ctx context.Context) error {
	fleets := make(map[string]reaper.Fleet)
	for t, f := range g.fleets {
		if want := g.flags["target"]; want == "" || want == t {
			fleets[t] = f
		}
	}
	actions, err := reaper.New(g.st, fleets, reaper.Options{Account: g.places.account, Installation: g.places.owner}).Collect(ctx, g.has("now"))
	for _, a := range actions {
		done := gcAction{
			Target: a.Record.Target, Name: a.Record.Name, UID: a.Record.UID, State: string(a.Record.Phase),
			Owner:  owner(a.Record),
			Action: string(store.FateDelete), Reason: "its owner has ended, or it was asked for", Result: a.Result.String(),
		}
		if a.Err != nil {
			done.Reason = fleet.Bound(a.Err.Error(), fleet.MaxWhy)
		}
		g.report.Actions = append(g.report.Actions, done)
		g.tell("%s %s: %s", done.Target, done.Name, outcome(a))
	}
	return err
}

func outcome(a reaper.Action) string {
	switch {
	case a.Err != nil:
		return a.Result.String() + ": " + fleet.Bound(a.Err.Error(), fleet.MaxWhy)
	case a.Left:
		return a.Result.String() + ", but its creation may still be under way"
	}
	return a.Result.String()
}

func owner(r store.Record) gcOwner {
	return gcOwner{Instance: r.Instance, Session: r.Session, Alive: r.OwnerLife(), Proof: r.Proof()}
}

func planned(m store.Standing) gcAction {
	return gcAction{
		Target: m.Record.Target, Name: m.Record.Name, UID: m.Record.UID, State: string(m.Record.Phase),
		Owner: owner(m.Record), Action: string(m.Fate), Reason: m.Reason,
	}
}

// tell reports progress to people.
func (g *collector) tell(format string, args ...any) {
	if !g.has("json") {
		fmt.Fprintf(g.stdout, format+"\n", args...)
	}
}

// print prints the report and decides on the exit code.
func (g *collector) print() error {
	if g.has("json") {
		enc := json.NewEncoder(g.stdout)
		enc.SetIndent("", "  ")
		if err := enc.Encode(g.report); err != nil {
			return err
		}
	} else {
		g.summary()
	}
	left := g.report.Left
	switch {
	case len(g.report.Faults) > 0:
		return exitCode(exitFailure)
	case g.report.DryRun:
		return nil
	case g.failed || left[string(store.FateBlocked)]+left[string(store.FateClaimed)]+left[string(store.FateDelete)]+g.unfinished() > 0:
		return exitCode(exitLeft)
	}
	return nil
}

// unfinished counts deletions that were tried and have to be tried again.
func (g *collector) unfinished() (n int) {
	for _, a := range g.report.Actions {
		if a.Result == store.Failed.String() || a.Result == store.Blocked.String() {
			n++
		}
	}
	return n
}

func (g *collector) summary() {
	for _, f := range g.report.Faults {
		g.tell("state file: %s", f)
	}
	if g.report.DryRun {
		for _, a := range g.report.Actions {
			g.tell("%s %s: %s; %s", a.Target, a.Name, a.Action, a.Reason)
		}
	}
	var parts []string
	for _, f := range []store.Fate{store.FateKeep, store.FateWait, store.FateDelete, store.FateClaimed, store.FateBlocked, store.FateForget} {
		n, to := g.report.Left[string(f)], "to "
		if f == store.FateClaimed || f == store.FateBlocked {
			to = "" // these words say how it stands
		}
		if n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s%s", n, to, f))
		}
	}
	if len(parts) == 0 {
		parts = []string{"none"}
	}
	g.tell("records left: %s", strings.Join(parts, ", "))
}
