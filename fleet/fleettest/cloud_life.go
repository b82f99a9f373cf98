package fleettest

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// start boots a machine: in the background where it is asked to and new enough.
func (s *cloudServer) start(r *cloudCall) reply {
	m, re := s.claim(r)
	if re != nil {
		return *re
	}
	defer m.life.Unlock()
	if s.stateOf(m) == "paused" {
		return *s.refuse(409, "machine is paused: resume it")
	}
	if re := s.boot(m); re != nil {
		return *re
	}
	if r.URL.Query().Get("detach") == "true" && !s.opts.Old {
		return reply{status: http.StatusAccepted}
	}
	s.untilUp(m)
	return s.described(m, http.StatusOK)
}

// boot begins to start a machine that is not up. Its lifecycle lock is held.
func (s *cloudServer) boot(m *cloudMachine) *reply {
	if state := s.stateOf(m); state == "started" || state == "starting" {
		return nil
	}
	if strings.HasPrefix(m.wish.Source.Reference, "fail-pull/") {
		s.mu.Lock()
		defer s.mu.Unlock()
		m.fault = "start failed: pull " + m.wish.Source.Reference + ": access denied"
		s.enter(m, "error")
		s.event(m, "error", m.fault)
		return nil
	}
	guest, err := OpenGuest(filepath.Join(s.dir(m.id), "root"), s.guestOptions(m))
	if err != nil {
		return s.refuse(500, "node: %v", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	m.guest = guest
	m.upAt = s.now().Add(s.opts.Boot)
	if len(m.wish.Ports) > 0 && m.hostPort == 0 {
		m.hostPort = 30000 + len(s.machines)
	}
	s.enter(m, "starting")
	if s.opts.Boot == 0 {
		s.enter(m, "started")
	}
	return nil
}

// untilUp waits until a machine that starts is up. Its lifecycle lock is held.
func (s *cloudServer) untilUp(m *cloudMachine) {
	for s.stateOf(m) == "starting" {
		s.mu.Lock()
		left := m.upAt.Sub(s.now())
		if left <= 0 {
			s.enter(m, "started")
		}
		s.mu.Unlock()
		if s.ctx.Err() != nil {
			return
		}
		s.sleep(min(max(left, 0), 50*time.Millisecond)) // the clock may be set meanwhile
	}
}

func (s *cloudServer) stop(r *cloudCall) reply {
	m, re := s.claim(r)
	if re != nil {
		return *re
	}
	defer m.life.Unlock()
	if state := s.stateOf(m); state != "started" && state != "starting" {
		return *s.refuse(409, "machine is %s", state)
	}
	if re := s.shutLocked(m, "stopped", "stopped"); re != nil {
		return *re
	}
	if s.opts.Old {
		return reply{status: http.StatusOK}
	}
	return s.described(m, http.StatusOK)
}

// shut ends a machine's processes.
func (s *cloudServer) shut(m *cloudMachine, state, why string) *reply {
	m.life.Lock()
	defer m.life.Unlock()
	return s.shutLocked(m, state, why)
}

func (s *cloudServer) shutLocked(m *cloudMachine, state, why string) *reply {
	if err := m.guest.Stop(); err != nil {
		return s.refuse(500, "node: %v", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.enter(m, state)
	s.event(m, "info", "machine "+why)
	return nil
}

func (s *cloudServer) pause(r *cloudCall) reply {
	return s.shift(r, "started", "paused", (*Guest).Suspend)
}

func (s *cloudServer) resume(r *cloudCall) reply {
	return s.shift(r, "paused", "started", (*Guest).Resume)
}

// shift moves a machine from one state to another.
func (s *cloudServer) shift(r *cloudCall, from, to string, do func(*Guest) error) reply {
	m, re := s.claim(r)
	if re != nil {
		return *re
	}
	defer m.life.Unlock()
	if state := s.stateOf(m); state != from {
		return *s.refuse(409, "machine is %s and not %s", state, from)
	}
	if err := do(m.guest); err != nil {
		return *s.refuse(500, "node: %v", err)
	}
	s.mu.Lock()
	s.enter(m, to)
	s.mu.Unlock()
	return reply{status: http.StatusAccepted}
}

// remove deletes a machine and answers with its bill where that is asked for.
func (s *cloudServer) remove(r *cloudCall) reply {
	m, re := s.claim(r)
	if re != nil {
		return *re
	}
	s.mu.Lock()
	children := s.children(m)
	s.mu.Unlock()
	m.life.Unlock()
	if len(children) > 0 {
		return *s.refuse(409, "machine has branches: %s", strings.Join(children, ", "))
	}
	bill, err := s.erase(m)
	if err != nil {
		return *s.refuse(500, "node: %v", err)
	}
	if r.URL.Query().Get("includeUsage") == "true" && !s.opts.Old {
		return jsonReply(bill)
	}
	return reply{status: http.StatusNoContent}
}

// erase ends a machine for good.
func (s *cloudServer) erase(m *cloudMachine) (cloudBill, error) {
	m.life.Lock()
	defer m.life.Unlock()
	s.mu.Lock()
	s.enter(m, "deleted")
	bill := s.bill(m)
	s.bills[m.id] = bill
	delete(s.machines, m.id)
	s.mu.Unlock()
	if m.guest != nil {
		if err := m.guest.Close(); err != nil {
			return bill, err
		}
	}
	return bill, os.RemoveAll(s.dir(m.id))
}

// cloudBill is what a machine cost. Money is in millionths.
type cloudBill struct {
	MachineID string             `json:"machineId"`
	Usage     map[string]float64 `json:"usage"`
	Cost      map[string]int64   `json:"cost"`
	tenant    string
}

// bill is a machine's cost so far, four cents an hour. s.mu is held.
func (s *cloudServer) bill(m *cloudMachine) cloudBill {
	up := m.uptime
	if m.state == "started" {
		up += s.now().Sub(m.upSince)
	}
	micros := int64(up.Seconds() * 40000 / 3600)
	return cloudBill{MachineID: m.id, tenant: m.tenant,
		Usage: map[string]float64{"totalUptimeSeconds": up.Seconds()},
		Cost:  map[string]int64{"baseMicros": micros, "totalMicros": micros, "amountDueMicros": 0}}
}

// usage tells the bill of a machine, also after its end.
func (s *cloudServer) usage(r *cloudCall) reply {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := s.machines[r.vars["id"]]; m != nil && m.tenant == r.key.Tenant {
		return jsonReply(s.bill(m))
	}
	if b, ok := s.bills[r.vars["id"]]; ok && b.tenant == r.key.Tenant {
		return jsonReply(b)
	}
	return *s.refuse(404, "machine not found")
}
