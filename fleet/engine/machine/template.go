//go:build unix

package machine

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"sync"
	"syscall"
	"time"

	"smol-mcp/fleet/engine/agent"
	"smol-mcp/fleet/engine/guest/lines"
)

// A template is a guest that waits for an engine, as it was saved: its memory in
// ram, its devices in state. Machines of the same shape continue it instead of
// booting. They map its memory privately, so its pages are shared until a machine
// writes to them, and no file takes what it writes.
//
// A template being made is a directory new-*, with a qemu.json that names the
// process.

// maxTemplates bounds how many are kept. Each takes as much of the disk as a guest
// touches while it boots, some hundred MiB.
const maxTemplates = 8

// templateForm changes when the devices of args do.
const templateForm = "3"

type templates struct {
	dir string

	mu   sync.Mutex
	busy map[string]*sync.Mutex // one makes a shape, the others wait
}

func (t *templates) turn(key string) func() {
	t.mu.Lock()
	m := t.busy[key]
	if m == nil {
		m = &sync.Mutex{}
		t.busy[key] = m
	}
	t.mu.Unlock()
	m.Lock()
	return m.Unlock
}

// key names a shape: all that a saved state depends on.
func (h host) key(memoryMB, cpus int, card bool) string {
	program := h.qemu
	if fi, err := os.Stat(h.qemu); err == nil {
		program = fmt.Sprint(h.qemu, fi.Size(), fi.ModTime().UnixNano())
	}
	sum := sha256.Sum256(fmt.Append(nil, templateForm, h.version, program, h.accel, h.boot.Key, hostArch().machine, kernelLine, memoryMB, " ", cpus, card))
	return hex.EncodeToString(sum[:8])
}

// template returns the directory of the template for a shape, and makes it first
// when there is none.
func (m *Manager) template(ctx context.Context, memoryMB, cpus int, card bool) (string, error) {
	key := m.host.key(memoryMB, cpus, card)
	defer m.templates.turn(key)()
	dir := filepath.Join(m.templates.dir, key)
	if isFile(filepath.Join(dir, "state")) {
		now := time.Now()
		return dir, os.Chtimes(dir, now, now)
	}
	begun := time.Now()
	if err := m.makeTemplate(ctx, dir, memoryMB, cpus, card); err != nil {
		return "", fmt.Errorf("make a template of %d MiB and %d CPUs: %w", memoryMB, cpus, err)
	}
	m.opts.Log.Info("template made", "memoryMb", memoryMB, "cpus", cpus, "card", card, "took", time.Since(begun).Round(time.Millisecond))
	return dir, m.collectTemplates()
}

// makeTemplate boots a guest, saves it while it waits, and puts the result in
// place with one rename.
func (m *Manager) makeTemplate(ctx context.Context, dir string, memoryMB, cpus int, card bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 90*time.Second, errors.New("a guest did not boot within 90s"))
	defer cancel()
	work, err := os.MkdirTemp(m.templates.dir, "new-")
	if err != nil {
		return err
	}
	proof, err := lockDir(work)
	if err != nil {
		return err
	}
	defer proof.Close()
	v := vm{dir: work, uuid: newUUID(), memoryMB: memoryMB, cpus: cpus, ram: filepath.Join(work, "ram"), share: true, card: card, console: "console.log"}
	made := making{UUID: v.uuid}
	defer func() {
		if err := made.drop(work, m.host.bootID); err != nil {
			m.opts.Log.Warn("half-made template not removed", "dir", work, "err", err)
		}
	}()
	if err := made.write(work); err != nil {
		return err
	}
	if err := sized(v.ram, int64(memoryMB)<<20); err != nil {
		return err
	}
	if made.Process, err = m.spawn(v); err != nil {
		return err
	}
	if err := made.write(work); err != nil {
		return err
	}
	if err := m.warm(ctx, work, made.Process); err != nil {
		return err
	}
	if err := m.saveState(ctx, work, made.Process); err != nil {
		return err
	}
	if err := made.Process.kill(m.host.bootID, v.uuid); err != nil {
		return err
	}
	for _, name := range append(socketsOf(work), filepath.Join(work, "qemu.json"), filepath.Join(work, "qemu.log"), filepath.Join(work, "console.log")) {
		_ = os.Remove(name) // harmless where it stays
	}
	// The memory stays writable for its owner: QEMU opens it so, also for a private
	// view.
	err = os.Rename(work, dir)
	if err != nil && isFile(filepath.Join(dir, "state")) {
		return nil // another engine has made the same
	}
	return err
}

// sized makes a file of zeroes that takes no room yet.
func sized(path string, size int64) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(f.Truncate(size), f.Close())
}

// warm talks to a guest that boots until what every machine needs is in its memory,
// hangs up, and waits until the guest has noticed.
func (m *Manager) warm(ctx context.Context, dir string, p *process) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watch, stop := context.WithCancel(ctx)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer stop()
	watching.Go(func() {
		for watch.Err() == nil {
			if awaitEnd(watch, p.PID, p.Begun, time.Minute) && watch.Err() == nil {
				cancel(m.ended(dir))
				return
			}
		}
	})
	l := newLink(dir)
	defer l.close()
	c, err := l.get(ctx)
	if err != nil {
		return err
	}
	for range 10 {
		if _, err := c.Call(ctx, agent.Request{Op: "ping"}); err != nil {
			return err
		}
	}
	l.close()
	for wait := 5 * time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		console, _ := os.ReadFile(filepath.Join(dir, "console.log"))
		if strings.Count(string(console), lines.Waiting) >= 2 {
			return nil
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		}
	}
}

// saveState stops a QEMU and saves it to the file state.
func (m *Manager) saveState(ctx context.Context, dir string, p *process) error {
	q, err := m.monitor(ctx, dir, p)
	if err != nil {
		return err
	}
	defer q.Close()
	f, err := os.OpenFile(filepath.Join(dir, "state"), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	return q.Save(ctx, f)
}

// making is qemu.json of a template that is being made.
type making struct {
	UUID    string   `json:"uuid"`
	Process *process `json:"process,omitempty"`
}

func (w making) write(dir string) error {
	data, err := json.Marshal(w)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "qemu.json"), data, 0o600)
}

// drop ends the process and removes what it made. It does nothing when the
// template has been put in place.
func (w making) drop(dir, bootID string) error {
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err := w.Process.kill(bootID, w.UUID); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

// collectTemplates removes half-made templates that nobody is making, and those
// used longest ago beyond maxTemplates.
func (m *Manager) collectTemplates() error {
	if err := os.MkdirAll(m.templates.dir, 0o700); err != nil {
		return err
	}
	entries, err := os.ReadDir(m.templates.dir)
	if err != nil {
		return err
	}
	type kept struct {
		dir  string
		used time.Time
	}
	var all []kept
	for _, e := range entries {
		dir := filepath.Join(m.templates.dir, e.Name())
		fi, err := e.Info()
		switch {
		case err != nil:
		case !strings.HasPrefix(e.Name(), "new-"):
			all = append(all, kept{dir, fi.ModTime()})
		case time.Since(fi.ModTime()) > 5*time.Minute || m.orphaned(dir):
			var w making
			data, _ := os.ReadFile(filepath.Join(dir, "qemu.json"))
			_ = json.Unmarshal(data, &w) // without it no process was started
			if err := w.drop(dir, m.host.bootID); err != nil {
				return err
			}
		}
	}
	sort.Slice(all, func(i, j int) bool { return all[i].used.After(all[j].used) })
	for _, k := range all[min(maxTemplates, len(all)):] {
		if err := os.RemoveAll(k.dir); err != nil { // machines that use it have it open
			return err
		}
	}
	return nil
}

// orphaned reports whether the maker of a half-made template is gone: it holds a
// lock on the directory while it works.
func (m *Manager) orphaned(dir string) bool {
	d, err := lockDir(dir)
	if err != nil {
		return false
	}
	d.Close()
	return true
}

// lockDir locks a directory for as long as the file is open. It fails when
// another process has it.
func lockDir(dir string) (*os.File, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(d.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		d.Close()
		return nil, err
	}
	return d, nil
}
