package cli

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"smol-mcp/store"
)

// engineData is the directory of machines that an engine of ours takes for itself alone. Its
// file lock is held by whoever has it.
func engineData(env lookup) string {
	data, _ := env("XDG_DATA_HOME")
	if data == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return ""
		}
		data = filepath.Join(home, ".local", "share")
	}
	return filepath.Join(data, "smol-engine")
}

// endingTime is how long an engine that is about to end may keep its lock.
const endingTime = 2 * time.Second

// examineLock looks whether an engine that is not the one of this runtime directory has the
// machines: then ours could not start. It starts none, and leaves the lock as it is.
func examineLock(ctx context.Context, c *Config, st *store.Store) []finding {
	data := engineData(os.LookupEnv)
	if c.LocalURL != "" || data == "" {
		return nil
	}
	ours, smolvm := localFleet(c, st, slog.New(slog.DiscardHandler))
	defer ours.Close()
	defer smolvm.Close()
	ctx, cancel := context.WithTimeout(ctx, endingTime)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		if ours.Served() || !locked(filepath.Join(data, "lock")) {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return []finding{{"data_locked", "error", "no engine can be started: another smol-engine has " + data,
				"it serves sessions with another runtime directory, or was started by hand",
				"give these sessions the same XDG_RUNTIME_DIR or SMOL_MCP_RUNTIME_DIR (smol-mcp status shows which is used), end the others, or set another XDG_DATA_HOME"}}
		}
	}
}
