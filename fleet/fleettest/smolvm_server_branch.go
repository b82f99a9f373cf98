package fleettest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// branch makes a running copy of a machine: of its disk, not of its memory.
func (s *smolvmServer) branch(r *call) reply {
	var b struct {
		Name         string     `json:"name"`
		Ports        []portSpec `json:"ports"`
		FreezeSource *bool      `json:"freezeSource"`
	}
	if re := r.decode(&b, nil); re != nil {
		return *re
	}
	name := r.vars["name"]
	m, re := s.claim(name)
	if re != nil {
		return *re
	}
	defer m.life.Unlock()
	rec := s.record(m)
	clone := rec.Create
	clone.Name, clone.Ports = b.Name, b.Ports
	switch {
	case rec.Source != "":
		return *badRequest("machine '%s' is a clone: nested forks are not supported", name)
	case !rec.Forkable || rec.State != "running" && rec.State != "frozen":
		return *conflict("machine '%s' is not running as a fork base: start it with forkable", name)
	}
	if re := clone.check(r.version); re != nil {
		return *re
	}
	// From the release that knows freezeSource on, a source goes on running unless asked to freeze.
	freeze := !atLeast(r.version, freezeSince) || valueOr(b.FreezeSource, false)
	return s.copyMachine(m, clone, freeze)
}

// copyMachine makes the clone; the caller holds the source's lifecycle lock.
func (s *smolvmServer) copyMachine(source *smolvmMachine, clone createRequest, freeze bool) reply {
	from := s.record(source)
	m, re := s.reserve(machineRecord{
		Create: clone, State: "running", CreatedAt: time.Now().Unix(), Source: from.Create.Name, Images: from.Images,
	})
	if re != nil {
		return *re
	}
	defer m.life.Unlock()
	guest, err := s.copyGuest(source, m)
	if err == nil && freeze {
		re = s.save(source, func(rec *machineRecord) { rec.State = "frozen" })
	}
	if err == nil && re == nil {
		re = s.save(m, func(*machineRecord) {})
	}
	if err != nil || !freeze {
		source.guest.Resume()
	}
	s.mu.Lock()
	if err != nil || re != nil {
		m.gone = true
		delete(s.machines, clone.Name)
	} else {
		m.guest = guest
	}
	s.mu.Unlock()
	switch {
	case err != nil:
		os.RemoveAll(s.dir(clone.Name))
		return failed("fork: %v", err)
	case re != nil:
		return *re
	}
	return s.described(m)
}

// copyGuest copies the disk of a source that stands still, and leaves it so.
func (s *smolvmServer) copyGuest(source, m *smolvmMachine) (*Guest, error) {
	if err := source.guest.Suspend(); err != nil {
		return nil, err
	}
	root := filepath.Join(s.dir(m.rec.Create.Name), "root")
	if out, err := exec.Command("cp", "-a", source.guest.Dir(), root).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	return OpenGuest(root, s.guestOptions(m))
}
