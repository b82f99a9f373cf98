//go:build unix

package machine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// holder is who has the lock of a directory, as it stands in the file. It is true only
// while the lock is held.
type holder struct {
	PID    int    `json:"pid"`
	Listen string `json:"listen"` // unix://PATH or PATH
}

// lockWait is how long the lock of an engine that is ending is waited for: it notices
// within a second that its socket is gone.
const lockWait = 5 * time.Second

// lockFile takes the lock that a file stands for, for as long as it is open, and says in
// the file whose it is.
func lockFile(ctx context.Context, path string, us holder) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, lockWait)
	defer cancel()
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			us.write(f)
		} else if errors.Is(err, syscall.EWOULDBLOCK) {
			timer := time.NewTimer(50 * time.Millisecond)
			select {
			case <-timer.C:
				continue
			case <-ctx.Done():
				timer.Stop()
				err = inUse(path)
			}
		}
		if err != nil {
			f.Close()
			return nil, err
		}
		return f, nil
	}
}

// write puts the holder into the file of its lock. On a full disk it names nobody.
func (h holder) write(f *os.File) {
	if path := strings.TrimPrefix(h.Listen, "unix://"); path != "" {
		if abs, err := filepath.Abs(path); err == nil { // readers are elsewhere
			h.Listen = "unix://" + abs
		}
	}
	text, _ := json.Marshal(h)
	n, err := f.WriteAt(append(text, '\n'), 0)
	if err != nil {
		n = 0
	}
	_ = f.Truncate(int64(n))
}

// inUse says who has a lock, and what to do about it.
func inUse(path string) error {
	who, use := "", "it has to be stopped first, or"
	var h holder
	text, _ := os.ReadFile(path)
	if json.Unmarshal(text, &h) == nil && h.PID > 0 { // of an earlier version the file is empty
		who = fmt.Sprintf(" (pid %d)", h.PID)
		if h.Listen != "" {
			who = fmt.Sprintf(" (pid %d, which listens at %s)", h.PID, h.Listen)
			use = "SMOL_LOCAL_URL=" + h.Listen + " uses that one; else it has to be stopped, or"
		}
	}
	return fmt.Errorf("%s is in use by another smol-engine%s: %s this one given another directory, with smol-engine serve --data, or with XDG_DATA_HOME where smol-mcp starts it",
		filepath.Dir(path), who, use)
}
