package fleettest

import (
	"fmt"
	"maps"
	"net/http"
	"os/exec"
	"path/filepath"
)

// branch makes a running copy of a machine: of its disk, not of its memory.
func (s *cloudServer) branch(r *cloudCall) reply {
	var b struct {
		Name string `json:"name"`
	}
	if re := s.decode(r, &b); re != nil {
		return *re
	}
	source, re := s.claim(r)
	if re != nil {
		return *re
	}
	defer source.life.Unlock()
	if state := s.stateOf(source); state != "started" || !source.wish.Branchable {
		return *s.refuse(409, "machine is %s, branchable: %v", state, source.wish.Branchable)
	}
	child := &cloudMachine{tenant: source.tenant, wish: source.wish, parent: source.id, state: "started"}
	child.wish.Name, child.wish.Ports, child.wish.Branchable = b.Name, nil, false
	child.wish.Env = maps.Clone(source.wish.Env)
	if s.opts.BareKids {
		child.wish.Env, child.wish.TTL, child.wish.AutoStop = nil, nil, nil
	}
	if re := s.checkWish(child.wish); re != nil {
		return *re
	}
	child.life.Lock() // nobody uses it before it has a guest
	defer child.life.Unlock()
	if re := s.add(child); re != nil {
		return *re
	}
	guest, err := s.copyGuest(source, child)
	s.mu.Lock()
	child.guest, child.upSince, child.active = guest, s.now(), s.now()
	if err != nil {
		delete(s.machines, child.id)
	}
	s.mu.Unlock()
	if err != nil {
		return *s.refuse(500, "node: %v", err)
	}
	return s.described(child, http.StatusCreated)
}

// copyGuest copies the disk of a machine that stands still meanwhile.
func (s *cloudServer) copyGuest(source, child *cloudMachine) (*Guest, error) {
	if err := source.guest.Suspend(); err != nil {
		return nil, err
	}
	defer source.guest.Resume()
	root := filepath.Join(s.dir(child.id), "root")
	for _, line := range [][]string{{"mkdir", "-p", filepath.Dir(root)}, {"cp", "-a", source.guest.Dir(), root}} {
		if out, err := exec.Command(line[0], line[1:]...).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("%w: %s", err, out)
		}
	}
	return OpenGuest(root, s.guestOptions(child))
}
