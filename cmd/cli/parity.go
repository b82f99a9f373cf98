package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"smol-mcp/fleet"
	"smol-mcp/store"
)

const parityHelp = `Without --cloud the running engine is asked, and started when none runs. With it
an OpenAPI document of smol cloud is read, as the published one at
https://smolmachines.com/openapi.json; no key is sent.

Exit code 0 means that every route this program needs is in the document and
every route in it is known; 1 that something is missing or unknown. Routes of the
cloud that are served and not in the document are told as undocumented.
`

func parityFlags() []option {
	return []option{optJSON, {"cloud", "FILE", "compare an OpenAPI document of smol cloud: a file or an https address"}}
}

// runParity compares the API of the running engine, or that of the cloud, with our
// table of it.
func runParity(c *call) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	compare, read := fleet.CheckParity, c.engineDocument
	if c.has("cloud") {
		compare, read = fleet.CheckCloudParity, c.cloudDocument
	}
	doc, err := read(ctx)
	if err != nil {
		return err
	}
	p, err := compare(doc)
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

// engineDocument asks the running engine for its OpenAPI document.
func (c *call) engineDocument(ctx context.Context) (doc []byte, err error) {
	r, err := resolve(os.LookupEnv, c.flags["config"])
	if err != nil {
		return nil, err
	}
	log, flush := newLog(c.stderr, r.LogFormat)
	defer flush()
	st := store.New(store.Options{RuntimeDir: r.RuntimeDir, Kind: "parity", Version: version, Log: log})
	engine, smolvm := localFleet(&r.Config, st, log)
	defer func() { err = errors.Join(err, smolvm.Close(), engine.Close(), st.Close()) }()
	return smolvm.OpenAPI(ctx)
}

// cloudDocument reads the document that --cloud names.
func (c *call) cloudDocument(ctx context.Context) ([]byte, error) {
	from := c.flags["cloud"]
	if !strings.HasPrefix(from, "https://") && !strings.HasPrefix(from, "http://") {
		return os.ReadFile(from)
	}
	if err := fleet.CheckCloudURL(from); err != nil {
		return nil, fmt.Errorf("%s: %w", from, err)
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, from, nil)
	if err != nil {
		return nil, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %s", from, res.Status)
	}
	return io.ReadAll(io.LimitReader(res.Body, maxDocument))
}

// maxDocument bounds an OpenAPI document in bytes.
const maxDocument = 16 << 20

func printParity(c *call, p fleet.Parity) error {
	if c.has("json") {
		enc := json.NewEncoder(c.stdout)
		enc.SetIndent("", "  ")
		return enc.Encode(p)
	}
	for _, group := range []struct {
		word   string
		routes []fleet.Route
	}{{"used", p.Used}, {"skipped", p.Skipped}, {"missing", p.Missing}, {"unknown", p.Unknown}, {"undocumented", p.Undocumented}} {
		for _, r := range group.routes {
			note := r.By
			if note == "" {
				note = r.Why
			}
			fmt.Fprintf(c.stdout, "%-12s %-6s %-45s %s\n", group.word, r.Method, r.Path, note)
		}
	}
	also := ""
	if n := len(p.Undocumented); n > 0 {
		also = fmt.Sprintf(", %d undocumented", n)
	}
	_, err := fmt.Fprintf(c.stdout, "%d used, %d skipped, %d missing, %d unknown%s\n", len(p.Used), len(p.Skipped), len(p.Missing), len(p.Unknown), also)
	return err
}
