package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"smol-mcp/fleet"
	"smol-mcp/store"
)

const parityHelp = `The engine is started when none runs. Exit code 0 means that every route this
program needs is served and every served route is known; 1 that something is
missing or unknown.
`

// runParity compares the API of the running engine with our table of it.
func runParity(c *call) (err error) {
	r, err := resolve(os.LookupEnv, c.flags["config"])
	if err != nil {
		return err
	}
	log, flush := newLog(c.stderr, r.LogFormat)
	defer flush()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	st := store.New(store.Options{RuntimeDir: r.RuntimeDir, Kind: "parity", Version: version, Log: log})
	engine, smolvm := localFleet(&r.Config, st, log)
	defer func() { err = errors.Join(err, smolvm.Close(), engine.Close(), st.Close()) }()
	doc, err := smolvm.OpenAPI(ctx)
	if err != nil {
		return err
	}
	p, err := fleet.CheckParity(doc)
	if err != nil {
		return err
	}
	if err := printParity(c, p); err != nil {
		return err
	}
	if len(p.Missing)+len(p.Unknown) > 0 {
		return exitCode(exitFailure)
	}
	return nil
}

func printParity(c *call, p fleet.Parity) error {
	if c.has("json") {
		enc := json.NewEncoder(c.stdout)
		enc.SetIndent("", "  ")
		return enc.Encode(p)
	}
	for _, group := range []struct {
		word   string
		routes []fleet.Route
	}{{"used", p.Used}, {"skipped", p.Skipped}, {"missing", p.Missing}, {"unknown", p.Unknown}} {
		for _, r := range group.routes {
			note := r.By
			if note == "" {
				note = r.Why
			}
			fmt.Fprintf(c.stdout, "%-8s %-6s %-45s %s\n", group.word, r.Method, r.Path, note)
		}
	}
	_, err := fmt.Fprintf(c.stdout, "%d used, %d skipped, %d missing, %d unknown\n", len(p.Used), len(p.Skipped), len(p.Missing), len(p.Unknown))
	return err
}
