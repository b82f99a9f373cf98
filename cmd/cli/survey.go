package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"smol-mcp/store"
)

// survey looks at the records for a person: a runtime directory that is not there yet has to
// be one that can be made, and a deletion is under way only while its process lives.
func survey(ctx context.Context, st *store.Store) (store.Survey, error) {
	sv, err := st.Survey(ctx)
	if err != nil {
		return sv, err
	}
	if !there(sv) {
		if err := canMake(sv.Dir); err != nil {
			return sv, fmt.Errorf("%w: %s: %w; choose another with SMOL_MCP_RUNTIME_DIR", store.ErrPlace, sv.Why, err)
		}
	}
	tellEnded(sv)
	return sv, nil
}

// tellEnded says of deletions whose process has ended that it did, and who goes on.
func tellEnded(sv store.Survey) {
	for i, m := range sv.Machines {
		ended := slices.ContainsFunc(sv.Processes, func(p store.Process) bool { return p.ID == m.Record.Claimer && p.Life == "dead" })
		if m.Fate == store.FateClaimed && ended {
			sv.Machines[i].Reason = fmt.Sprintf("process %s was deleting it; the next server, or smol-mcp gc, goes on", m.Record.Claimer)
		}
	}
}

// there reports whether the runtime directory was made.
func there(sv store.Survey) bool {
	_, err := os.Lstat(sv.Dir)
	return !errors.Is(err, fs.ErrNotExist)
}

// canMake says why a directory that is missing could not be made. It makes nothing.
func canMake(dir string) error {
	for up := filepath.Dir(dir); ; up = filepath.Dir(up) {
		info, err := os.Stat(up)
		switch {
		case errors.Is(err, fs.ErrNotExist) && up != filepath.Dir(up):
			continue
		case err == nil && !info.IsDir():
			err = errors.New("it is not a directory")
		case err == nil:
			err = canMakeIn(up)
		}
		if err != nil {
			return fmt.Errorf("%s cannot be made in %s: %w", dir, up, plain(err))
		}
		return nil
	}
}
