package fleettest

import (
	"encoding/json"
	"net/http"
	"regexp"
	"slices"
)

// create makes a machine, which is stopped until it is started.
func (s *cloudServer) create(r *cloudCall) reply {
	w, re := s.readWish(r)
	if re == nil {
		re = s.checkWish(w)
	}
	if re != nil {
		return *re
	}
	m := &cloudMachine{tenant: r.key.Tenant, wish: w}
	if re := s.add(m); re != nil {
		return *re
	}
	return s.described(m, http.StatusCreated)
}

// readWish decodes a create. Fields that it is told to drop vanish without a word.
func (s *cloudServer) readWish(r *cloudCall) (w cloudWish, re *reply) {
	if len(s.opts.Drops) > 0 {
		var fields map[string]json.RawMessage
		if json.Unmarshal(r.body, &fields) == nil {
			for _, name := range s.opts.Drops {
				delete(fields, name)
			}
			r.body, _ = json.Marshal(fields)
		}
	}
	if re := s.decode(r, &w); re != nil {
		return w, re
	}
	if w.Source == nil {
		return w, s.refuse(422, "Failed to deserialize the JSON body into the target type: missing field `source` at line 1 column %d", len(r.body))
	}
	if w.Branchable && w.Forkable {
		return w, s.refuse(422, "Failed to deserialize the JSON body into the target type: duplicate field `forkable`")
	}
	w.Branchable = w.Branchable || w.Forkable
	return w, nil
}

func (s *cloudServer) checkWish(w cloudWish) *reply {
	name := regexp.MustCompile(`^[A-Za-z0-9_-]{1,63}$`)
	switch {
	case w.Name != "" && !name.MatchString(w.Name):
		return s.refuse(400, "invalid machine name")
	case w.Network != nil && !slices.Contains([]string{"open", "blocked", "allowCidrs"}, w.Network.Mode):
		return s.refuse(422, "Failed to deserialize the JSON body into the target type: unknown variant `%s`", w.Network.Mode)
	case w.Network != nil && w.Network.Mode == "allowCidrs" && len(w.Network.CIDRs)+len(w.Network.Hosts) == 0:
		return s.refuse(400, "allowCidrs network mode requires at least one CIDR or host")
	case len(w.Ports) > 4:
		return s.refuse(400, "at most 4 ports")
	}
	return nil
}

// add puts a machine into its account, when the account has room and the name is
// free.
func (s *cloudServer) add(m *cloudMachine) *reply {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tenant(m.tenant)
	held, running := 0, 0
	for _, other := range s.machines {
		if other.tenant != m.tenant {
			continue
		}
		held++
		if other.state == "started" || other.state == "starting" {
			running++
		}
		if m.wish.Name != "" && other.wish.Name == m.wish.Name {
			return s.refuse(409, "machine name already in use: %s", m.wish.Name)
		}
	}
	switch {
	case t.broke:
		return s.refuse(402, "monthly budget exhausted")
	case held >= t.maxMachines:
		return s.refuse(422, "machine count quota exceeded: your Standard plan allows %d machines; delete some or upgrade", t.maxMachines)
	case running >= t.maxRunning:
		return s.refuse(422, "concurrency limit reached: your Standard plan allows %d running machines", t.maxRunning)
	}
	m.id, m.created = "mach-"+randomHex(16), s.now()
	m.active = m.created
	if m.state == "" {
		m.state = "stopped"
	}
	s.machines[m.id] = m
	s.event(m, "info", "machine created")
	return nil
}
