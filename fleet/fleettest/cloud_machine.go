package fleettest

import (
	"encoding/json"
	"net/http"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"
)

// cloudMachine is one machine of a fake cloud. The server's mutex guards all but
// life and the guest's own work.
type cloudMachine struct {
	life   sync.Mutex // held by start, stop, delete, branch: one at a time
	id     string
	tenant string
	wish   cloudWish
	state  string
	fault  string
	guest  *Guest // nil until the first start
	parent string // id of the machine it branched from

	created  time.Time
	upAt     time.Time // when a machine that starts will be up
	active   time.Time // last use
	upSince  time.Time // of a running machine
	uptime   time.Duration
	execs    int // running commands
	events   []cloudEvent
	hostPort int // of its first port; given at the first start
}

type cloudEvent struct {
	ID        string `json:"id"`
	Level     string `json:"level"`
	Message   string `json:"message"`
	CreatedAt string `json:"createdAt"`
}

// cloudWish is the body of a create, as far as the service keeps it.
type cloudWish struct {
	Name   string `json:"name"`
	Source *struct {
		Type      string `json:"type"`
		Reference string `json:"reference"`
	} `json:"source"`
	Resources struct {
		CPUs     *uint32 `json:"cpus"`
		MemoryMB *uint32 `json:"memoryMb"`
		DiskGB   *uint64 `json:"diskGb"`
	} `json:"resources"`
	Network *struct {
		Mode  string   `json:"mode"`
		CIDRs []string `json:"cidrs"`
		Hosts []string `json:"hosts"`
	} `json:"network"`
	Ports []struct {
		Port int `json:"port"`
	} `json:"ports"`
	Env        map[string]string `json:"env"`
	TTL        *uint64           `json:"ttlSeconds"`
	AutoStop   *uint64           `json:"autoStopSeconds"`
	Ephemeral  bool              `json:"ephemeral"`
	Forkable   bool              `json:"forkable"`
	Branchable bool              `json:"branchable"`
}

// info is what the service says about a machine. s.mu is held.
func (s *cloudServer) info(m *cloudMachine) map[string]any {
	w := m.wish
	ports := []map[string]any{}
	for i, p := range w.Ports {
		port := map[string]any{"port": p.Port, "hostPort": nil}
		if m.hostPort > 0 {
			port["hostPort"] = m.hostPort + i
		}
		ports = append(ports, port)
	}
	info := map[string]any{
		"id": m.id, "name": w.Name, "source": w.Source, "state": m.state, "env": w.Env, "ephemeral": w.Ephemeral,
		"resources": map[string]any{"cpus": valueOr(w.Resources.CPUs, 4), "memoryMb": valueOr(w.Resources.MemoryMB, 8192), "diskGb": w.Resources.DiskGB},
		"network":   map[string]any{"mode": "open"}, "ports": ports, "url": nil, "workdir": nil,
		"ttlSeconds": w.TTL, "autoStopSeconds": w.AutoStop, "branchable": w.Branchable, "forkable": w.Branchable,
		"createdAt": m.created.UTC().Format(time.RFC3339Nano), "updatedAt": m.created.UTC().Format(time.RFC3339Nano),
		"capabilities": map[string]any{"exec": true, "branch": w.Branchable},
	}
	if w.Env == nil {
		info["env"] = map[string]string{}
	}
	if w.Network != nil {
		info["network"] = w.Network
	}
	if m.fault != "" {
		info["error"] = m.fault
	}
	if !s.opts.Old {
		info["ready"] = m.state == "started" && !s.opts.Unready && len(w.Ports) == 0
	}
	return info
}

func (s *cloudServer) described(m *cloudMachine, status int) reply {
	s.mu.Lock()
	defer s.mu.Unlock()
	re := jsonReply(s.info(m))
	re.status = status
	return re
}

// sweep does what time brings: machines that come up, idle ones that stop, old ones
// that are deleted. Every request begins with it.
func (s *cloudServer) sweep() {
	s.mu.Lock()
	now := s.now()
	var ended, idle []*cloudMachine
	for _, m := range s.machines {
		if m.state == "starting" && !now.Before(m.upAt) {
			s.enter(m, "started")
		}
		switch {
		case m.wish.TTL != nil && now.Sub(m.created) >= time.Duration(*m.wish.TTL)*time.Second:
			ended = append(ended, m)
		case m.state == "started" && m.execs == 0 && m.wish.AutoStop != nil && now.Sub(m.active) >= time.Duration(*m.wish.AutoStop)*time.Second:
			idle = append(idle, m)
		case m.wish.Ephemeral && m.state == "stopped":
			ended = append(ended, m) // a machine is made stopped, so this one never lives
		}
	}
	s.mu.Unlock()
	for _, m := range idle {
		s.shut(m, "stopped", "stopped after being idle")
	}
	for _, m := range ended {
		s.erase(m)
	}
}

// enter changes a machine's state and keeps its uptime. s.mu is held.
func (s *cloudServer) enter(m *cloudMachine, state string) {
	now := s.now()
	if m.state == "started" && state != "started" {
		m.uptime += now.Sub(m.upSince)
	}
	if state == "started" && m.state != "started" {
		m.upSince, m.active = now, now
	}
	m.state = state
	s.event(m, "info", "machine is "+state)
}

// event adds to a machine's history. s.mu is held.
func (s *cloudServer) event(m *cloudMachine, level, text string) {
	s.serial++
	m.events = append(m.events, cloudEvent{"evt-" + strconv.Itoa(s.serial), level, text, s.now().UTC().Format(time.RFC3339)})
}

func (s *cloudServer) list(r *cloudCall) reply {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := []map[string]any{}
	var ids []string
	for id, m := range s.machines {
		if m.tenant == r.key.Tenant {
			ids = append(ids, id)
		}
	}
	sort.Strings(ids)
	for _, id := range ids {
		all = append(all, s.info(s.machines[id]))
	}
	return jsonReply(all)
}

func (s *cloudServer) get(r *cloudCall) reply {
	m, re := s.find(r)
	if re != nil {
		return *re
	}
	return s.described(m, http.StatusOK)
}

// find returns the tenant's machine of that id.
func (s *cloudServer) find(r *cloudCall) (*cloudMachine, *reply) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.machines[r.vars["id"]]
	if m == nil || m.tenant != r.key.Tenant {
		return nil, s.refuse(404, "machine not found")
	}
	return m, nil
}

// claim finds a machine and takes its lifecycle lock.
func (s *cloudServer) claim(r *cloudCall) (*cloudMachine, *reply) {
	m, re := s.find(r)
	if re != nil {
		return nil, re
	}
	m.life.Lock()
	if _, re = s.find(r); re != nil { // deleted meanwhile
		m.life.Unlock()
	}
	return m, re
}

func (s *cloudServer) stateOf(m *cloudMachine) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return m.state
}

func (s *cloudServer) dir(id string) string { return filepath.Join(s.opts.Data, "machines", id) }

func (s *cloudServer) guestOptions(m *cloudMachine) GuestOptions {
	return GuestOptions{Image: true, NoShell: strings.HasPrefix(m.wish.Source.Reference, "distroless/"), Busybox: filepath.Join(s.opts.Data, "busybox")}
}

// children returns the names of the machines that branched from m. s.mu is held.
func (s *cloudServer) children(m *cloudMachine) []string {
	var names []string
	for _, other := range s.machines {
		if other.parent == m.id {
			names = append(names, other.wish.Name)
		}
	}
	slices.Sort(names)
	return names
}

func (s *cloudServer) events(r *cloudCall) reply {
	m, re := s.find(r)
	if re != nil {
		return *re
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	newest := slices.Clone(m.events)
	slices.Reverse(newest)
	return jsonReply(newest)
}

// decode reads a body like the service: what is no JSON is 400, what does not fit
// is 422, and what is not known is dropped.
func (s *cloudServer) decode(r *cloudCall, v any) *reply {
	if !json.Valid(r.body) {
		return s.refuse(400, "Failed to parse the request body as JSON")
	}
	if err := json.Unmarshal(r.body, v); err != nil {
		return s.refuse(422, "Failed to deserialize the JSON body into the target type: %v", err)
	}
	return nil
}
