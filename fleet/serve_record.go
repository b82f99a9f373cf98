package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"
)

// record is engine.json: the engine that one of us started. A nil record is none.
type record struct {
	PID       int       `json:"pid"`
	Begun     string    `json:"begun"` // tells this process from a later one with its number
	URL       string    `json:"url"`
	StartedAt time.Time `json:"startedAt"`
	Ready     bool      `json:"ready"` // it has answered

	dir string
}

// Times of the stopping of an engine.
const (
	stopGrace = 3 * time.Second // from the polite signal to the other
	killGrace = 2 * time.Second
)

func recordFile(dir string) string { return filepath.Join(dir, "engine.json") }

// readRecord returns nil when there is no record.
func readRecord(dir string) (*record, error) {
	b, err := os.ReadFile(recordFile(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	rec := &record{dir: dir}
	if err == nil {
		err = json.Unmarshal(b, rec)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", recordFile(dir), err)
	}
	return rec, nil
}

// write replaces the record of dir.
func (rec *record) write(dir string) error {
	rec.dir = dir
	b, err := json.Marshal(rec)
	if err != nil {
		return err
	}
	tmp := recordFile(dir) + ".new"
	if err := os.WriteFile(tmp, append(b, '\n'), 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, recordFile(dir))
}

// recordPeer records the process that listens at an address, where the system tells.
func recordPeer(ctx context.Context, dir string, at address) *record {
	pid := peerPID(ctx, at)
	begun := processBegun(pid)
	if begun == "" {
		return nil
	}
	rec := &record{PID: pid, Begun: begun, URL: at.String(), StartedAt: time.Now(), Ready: true}
	if rec.write(dir) != nil {
		return nil
	}
	return rec
}

// peerPID returns the process that listens at a socket; 0 where it is not known.
func peerPID(ctx context.Context, at address) int {
	if at.network != "unix" {
		return 0
	}
	c, err := at.dial(ctx)
	if err != nil {
		return 0
	}
	defer c.Close()
	pid, _, _ := peer(c)
	return pid
}

// alive reports whether the recorded process lives, and is that process and no
// later one with its number.
func (rec *record) alive() bool {
	return rec != nil && rec.PID > 0 && rec.Begun != "" && processBegun(rec.PID) == rec.Begun
}

// listens reports that nobody else listens at the recorded address. A socket
// that is gone is no objection: an engine that is ending has removed it.
func (rec *record) listens() bool {
	at, err := parseAddress(rec.URL)
	if err != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), probeTimeout)
	defer cancel()
	pid := peerPID(ctx, at)
	return pid == 0 || pid == rec.PID
}

// stop ends the recorded engine when it is still that process, politely first,
// and removes the record. It returns once the process is gone.
func (rec *record) stop(log *slog.Logger) error {
	if rec == nil {
		return nil
	}
	if rec.alive() {
		if !rec.listens() {
			return fmt.Errorf("stop the engine: process %d is not the one that listens at %s", rec.PID, rec.URL)
		}
		begun := time.Now()
		if err := rec.end(); err != nil {
			return fmt.Errorf("stop the engine, process %d: %w", rec.PID, err)
		}
		log.Info("engine stopped", "pid", rec.PID, "url", rec.URL, "took", time.Since(begun).Round(time.Millisecond))
	}
	if at, err := parseAddress(rec.URL); err == nil && at.network == "unix" && rec.dir != "" {
		if fi, err := os.Lstat(at.target); err == nil && fi.Mode().Type() == fs.ModeSocket {
			os.Remove(at.target) // left by SIGKILL
		}
	}
	if err := os.Remove(recordFile(rec.dir)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// end signals the process and waits until it is gone.
func (rec *record) end() error {
	p, err := os.FindProcess(rec.PID) // a handle to this very process where the system has such
	if err != nil {
		return err
	}
	defer p.Release()
	if !rec.alive() {
		return nil
	}
	grace := stopGrace
	if !rec.Ready { // nobody uses it
		grace = killGrace
	}
	if err := interrupt(p); err == nil && rec.goneWithin(grace) {
		return nil
	}
	if !rec.alive() {
		return nil
	}
	if err := p.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	if !rec.goneWithin(killGrace) {
		return errors.New("it survives SIGKILL")
	}
	return nil
}

func (rec *record) goneWithin(d time.Duration) bool {
	for deadline := time.Now().Add(d); rec.alive(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}
