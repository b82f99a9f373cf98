package fleettest

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"time"
)

func (s *smolvmServer) list(r *call) reply {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := []machineInfo{}
	for _, m := range s.machines {
		all = append(all, s.info(m))
	}
	sort.Slice(all, func(i, j int) bool { return all[i].CreatedAt > all[j].CreatedAt || all[i].Name > all[j].Name }) // no order is promised
	return jsonReply(map[string]any{"machines": all})
}

// get asks the agent of a running machine; without a free connection it is
// silent, and the machine looks unreachable.
func (s *smolvmServer) get(r *call) reply {
	m, re := s.find(r.vars["name"])
	if re != nil {
		return *re
	}
	s.mu.Lock()
	info := s.info(m)
	s.mu.Unlock()
	if info.State == "running" {
		timer := time.NewTimer(3 * time.Second)
		defer timer.Stop()
		select {
		case m.slots <- struct{}{}:
			<-m.slots
		case <-timer.C:
			info.State = "unreachable"
		}
	}
	return jsonReply(info)
}

func (s *smolvmServer) start(r *call) reply {
	forkable, re := r.flag("forkable")
	if re == nil && !forkable && atLeast(r.version, "1.14.5") {
		forkable, re = r.flag("branchable")
	}
	if re == nil && (r.Header.Get("Content-Type") != "" && !atLeast(r.version, "1.21.0") || r.ContentLength > 0) {
		re = r.decode(&struct{}{}, nil)
	}
	if re != nil {
		return *re
	}
	m, re := s.claim(r.vars["name"])
	if re != nil {
		return *re
	}
	defer m.life.Unlock()
	if re := s.run(m, forkable); re != nil {
		return *re
	}
	return s.described(m)
}

// run brings m to running; the caller holds its lifecycle lock.
func (s *smolvmServer) run(m *smolvmMachine, forkable bool) *reply {
	rec := s.record(m)
	name := rec.Create.Name
	switch rec.State {
	case "running":
		return nil
	case "paused":
		return conflict("machine '%s' has a saved execution: resume or delete it", name)
	case "frozen":
		if len(s.clones(name)) > 0 {
			return conflict("machine '%s' is a frozen fork base", name)
		}
		if err := m.guest.Resume(); err != nil {
			return ref(failed("resume: %v", err))
		}
		return s.save(m, func(rec *machineRecord) { rec.State = "running" })
	}
	if re := s.portsFree(m, rec); re != nil {
		return re
	}
	s.pause(s.boot)
	if strings.HasPrefix(rec.Create.Image, "fail-pull/") {
		return ref(failed("pull image: failed to pull %s: denied: requested access to the resource is denied", rec.Create.Image))
	}
	guest, err := OpenGuest(filepath.Join(s.dir(name), "root"), s.guestOptions(m))
	if err != nil {
		return ref(failed("boot: %v", err))
	}
	s.mu.Lock()
	m.guest = guest
	s.mu.Unlock()
	if err := s.bootLines(name); err != nil {
		return ref(failed("boot: %v", err))
	}
	return s.save(m, func(rec *machineRecord) { rec.State, rec.Forkable = "running", forkable })
}

// portsFree fails when a published port is taken by a machine or by another program.
func (s *smolvmServer) portsFree(m *smolvmMachine, rec machineRecord) *reply {
	for _, p := range rec.Create.Ports {
		s.mu.Lock()
		taken := false
		for _, other := range s.machines {
			if other != m && (other.rec.State == "running" || other.rec.State == "paused") {
				taken = taken || slices.ContainsFunc(other.rec.Create.Ports, func(o portSpec) bool { return o.Host == p.Host })
			}
		}
		s.mu.Unlock()
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", p.Host))
		if err == nil {
			l.Close()
		}
		if taken || err != nil {
			return refuse(409, "PORT_IN_USE", "host port %d is already in use", p.Host)
		}
	}
	return nil
}

func (s *smolvmServer) stop(r *call) reply {
	m, re := s.claim(r.vars["name"])
	if re != nil {
		return *re
	}
	defer m.life.Unlock()
	switch rec := s.record(m); rec.State {
	case "created", "stopped":
		return s.described(m)
	case "paused":
		return *conflict("machine '%s' has a saved execution: resume or delete it", rec.Create.Name)
	case "frozen":
		return *conflict("machine '%s' is a frozen fork base", rec.Create.Name)
	}
	if err := m.guest.Stop(); err != nil {
		return failed("stop: %v; it may still be running", err)
	}
	if re := s.save(m, func(rec *machineRecord) { rec.State = "stopped" }); re != nil {
		return *re
	}
	return s.described(m)
}

func (s *smolvmServer) remove(r *call) reply {
	name := r.vars["name"]
	cascade, re := r.flag("cascade")
	if re != nil {
		return *re
	}
	for _, clone := range s.clones(name) {
		if !cascade {
			clones := s.clones(name)
			sort.Strings(clones)
			return *conflict("machine '%s' has clones: %s", name, strings.Join(clones, ", "))
		}
		if re := s.erase(clone); re != nil {
			return *re
		}
	}
	if re := s.erase(name); re != nil {
		return *re
	}
	return jsonReply(map[string]string{"deleted": name})
}

func (s *smolvmServer) erase(name string) *reply {
	m, re := s.claim(name)
	if re != nil {
		return re
	}
	defer m.life.Unlock()
	if m.guest != nil {
		if err := m.guest.Close(); err != nil {
			return ref(failed("delete: machine '%s' is still alive after shutdown; not removing: %v", name, err))
		}
	}
	// The record goes first: a server killed here must not find it again.
	err := os.Remove(filepath.Join(s.dir(name), "machine.json"))
	if err == nil {
		err = os.RemoveAll(s.dir(name))
	}
	if err != nil {
		return ref(failed("delete: %v", err))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	m.gone = true
	delete(s.machines, name)
	return nil
}

func (s *smolvmServer) suspend(r *call) reply {
	return s.shift(r, "running", "paused", (*Guest).Suspend)
}

func (s *smolvmServer) resume(r *call) reply { return s.shift(r, "paused", "running", (*Guest).Resume) }

// shift moves a machine from one state to another; it may be there already.
func (s *smolvmServer) shift(r *call, from, to string, do func(*Guest) error) reply {
	if re := r.decode(&struct{}{}, nil); re != nil {
		return *re
	}
	m, re := s.claim(r.vars["name"])
	if re != nil {
		return *re
	}
	defer m.life.Unlock()
	switch state := s.record(m).State; state {
	case to:
		return s.described(m)
	case from:
	default:
		return *conflict("machine '%s' is %s, not %s", r.vars["name"], state, from)
	}
	if err := do(m.guest); err != nil {
		return failed("%v", err)
	}
	if re := s.save(m, func(rec *machineRecord) { rec.State = to }); re != nil {
		return *re
	}
	return s.described(m)
}
