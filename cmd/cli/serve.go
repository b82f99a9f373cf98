package cli

import (
	"fmt"
	"log/slog"
	"os"
	"time"

	"smol-mcp/reaper"
	"smol-mcp/store"
	"smol-mcp/tools"
)

// parentPoll is how often a vanished parent is looked for.
const parentPoll = 2 * time.Second

// runServe is the command without a name: one session over standard input and
// output.
func runServe(c *call) error {
	r, err := resolve(os.LookupEnv, c.flags["config"])
	if err != nil {
		return err
	}
	if isTerminal(c.stdin) {
		fmt.Fprint(c.stderr, terminalNote)
	}
	log, flush := newLog(c.stderr, r.LogFormat)
	defer flush()
	signals, stopSignals := watchSignals()
	defer stopSignals()
	orphaned, stopWatch := watchParent(parentPoll)
	defer stopWatch()
	p := wire(&r.Config, "stdio", log)
	p.reaper.Start()
	l := &life{
		session:   tools.New(p.options, "stdio"),
		transport: newStdio(c.stdin, c.stdout, eofGrace),
		closers:   p.closers,
		signals:   signals,
		orphaned:  orphaned,
		log:       log,
		budget:    endBudget,
		share:     sessionBudget,
	}
	code, err := l.run()
	if err != nil {
		log.Error("clean-up", "error", err)
	}
	return exitCode(code)
}

// parts are what sessions of this process share.
type parts struct {
	options tools.Options
	reaper  *reaper.Reaper
	closers []closer
}

// wire makes the parts from the settings, for a process of a kind, which is stdio or
// http. The store opens, the engine starts and the cloud is asked when a call needs them.
func wire(c *Config, kind string, log *slog.Logger) *parts {
	st := store.New(store.Options{RuntimeDir: c.RuntimeDir, Kind: kind, Version: version, CrashGrace: grace(c), Log: log})
	p := newPlaces(c, os.LookupEnv, st, log)
	rp := reaper.New(st, p.forReaper(), reaper.Options{Served: p.forLeftovers(), Account: p.account, Installation: p.owner, Log: log})
	return &parts{
		options: tools.Options{
			Version: version,
			Fleets:  p.fleets,
			Store:   st,
			Remover: rp,
			Account: p.account,
			Limits:  limits(c),
			Catalog: tools.NewCatalog(limits(c)),
			Log:     warnings(log),

			Installation: p.owner,
		},
		reaper:  rp,
		closers: append(append([]closer{{"reaper", func() error { rp.Close(); return nil }}}, p.closers...), closer{"store", st.Close}),
	}
}

func limits(c *Config) tools.Limits {
	return tools.Limits{
		MachinePrefix:  c.MachinePrefix,
		MemoryMB:       c.MemoryMB,
		CPUs:           c.CPUs,
		NetworkOpen:    c.NetworkDefault == "open",
		RunOnceOpen:    c.RunOnceNetwork == "open",
		TTL:            secs(c.EphemeralTTLSecs),
		AutoStop:       secs(c.EphemeralIdleSecs),
		ExecTimeout:    secs(c.ExecTimeoutSecs),
		MaxExecTimeout: secs(c.MaxExecSecs),
		Wait:           secs(c.WaitSecs),
		MaxOutputBytes: c.MaxOutputBytes,
		ReadyTimeout:   secs(c.ReadyTimeoutSecs),
		LogsTail:       c.LogsTail,
		LogsPoll:       secs(c.LogsPollSecs),
		MountRoots:     c.MountRoots,
		MaxMachines:    c.MaxMachines,
	}
}

// grace is how long machines of a crashed session are kept; negative for not at all.
func grace(c *Config) time.Duration {
	if c.CrashGraceSecs == 0 {
		return -1
	}
	return secs(c.CrashGraceSecs)
}

func secs(n int) time.Duration { return time.Duration(n) * time.Second }

const terminalNote = `smol-mcp: this is an MCP server; it waits for a client to speak JSON-RPC on standard input
smol-mcp: hint: a client starts it by itself, for example: claude mcp add smol -- smol-mcp
smol-mcp: hint: smol-mcp --help explains more; Ctrl-C quits
`

// isTerminal reports whether somebody may be typing on f: it is a character
// device other than the null device.
func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	if err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return false
	}
	null, err := os.Stat(os.DevNull)
	return err != nil || !os.SameFile(info, null)
}
