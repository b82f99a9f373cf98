package fleettest

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"smol-mcp/fleet"
)

// smolvmMachine is one machine of a fake smolvm.
type smolvmMachine struct {
	life  sync.Mutex    // held by start, stop, delete, branch and the like: one at a time
	slots chan struct{} // taken by each agent connection

	// Guarded by the server's mutex.
	rec   machineRecord
	guest *Guest // nil until the first start
	gone  bool   // deleted while somebody waited for life
}

// machineRecord is a machine as it stands on disk.
type machineRecord struct {
	Create    createRequest `json:"create"`
	State     string        `json:"state"`
	CreatedAt int64         `json:"createdAt"`
	Forkable  bool          `json:"forkable,omitempty"`
	Source    string        `json:"source,omitempty"` // the machine it branched from
	Images    []string      `json:"images,omitempty"`
}

// createRequest is the body of POST /machines. Integers have the widths of the
// real ones, so that what does not fit is refused.
type createRequest struct {
	Name         string      `json:"name"`
	Image        string      `json:"image,omitempty"`
	From         string      `json:"from,omitempty"`
	RegistryRef  string      `json:"registryRef,omitempty"`
	Cmd          []string    `json:"cmd,omitempty"`
	Entrypoint   []string    `json:"entrypoint,omitempty"`
	Env          []envVar    `json:"env,omitempty"`
	Workdir      string      `json:"workdir,omitempty"`
	CPUs         *uint8      `json:"cpus,omitempty"`
	MemoryMB     *uint32     `json:"memoryMb,omitempty"`
	StorageGB    *uint64     `json:"storageGb,omitempty"`
	OverlayGB    *uint64     `json:"overlayGb,omitempty"`
	Network      bool        `json:"network,omitempty"`
	AllowedCIDRs []string    `json:"allowedCidrs,omitzero"` // none is not the same as an empty list
	AllowedHosts []string    `json:"allowedHosts,omitzero"`
	Mounts       []mountSpec `json:"mounts,omitempty"`
	Ports        []portSpec  `json:"ports,omitempty"`
}

type envVar struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

type portSpec struct {
	Host  uint16 `json:"host"`
	Guest uint16 `json:"guest"`
}

type mountSpec struct {
	Tag      string `json:"tag,omitempty"`
	Source   string `json:"source"`
	Target   string `json:"target"`
	ReadOnly bool   `json:"readonly"`
}

// machineInfo is what the API says about a machine.
type machineInfo struct {
	Name           string      `json:"name"`
	State          string      `json:"state"`
	CPUs           uint8       `json:"cpus"`
	MemoryMB       uint32      `json:"memoryMb"`
	Mounts         []mountSpec `json:"mounts"`
	Ports          []portSpec  `json:"ports"`
	Network        bool        `json:"network"`
	NetworkBackend string      `json:"networkBackend,omitempty"`
	AllowedCIDRs   []string    `json:"allowedCidrs,omitzero"`
	AllowedHosts   []string    `json:"allowedHosts,omitzero"`
	GPU            bool        `json:"gpu"`
	CUDA           bool        `json:"cuda"`
	Forkable       bool        `json:"forkable"`
	ForkpointHeld  bool        `json:"forkpointHeld"`
	CreatedAt      int64       `json:"createdAt"`
	StorageGB      uint64      `json:"storageGb"`
	OverlayGB      uint64      `json:"overlayGb"`
	PID            int         `json:"pid,omitempty"`
	Image          string      `json:"image,omitempty"`
}

// networked reports whether anything at all gets out.
func (c *createRequest) networked() bool {
	return c.Network || len(c.AllowedCIDRs) > 0 || len(c.AllowedHosts) > 0
}

// registryImage reports whether the image is not a file of the host.
func (c *createRequest) registryImage() bool {
	if c.Image == "" || strings.HasPrefix(c.Image, "/") || strings.HasPrefix(c.Image, "./") || strings.HasPrefix(c.Image, "../") {
		return false
	}
	for _, end := range []string{".tar", ".tar.gz", ".tgz"} {
		if strings.HasSuffix(c.Image, end) {
			return false
		}
	}
	return true
}

// info describes m; the caller holds the server's mutex.
func (s *smolvmServer) info(m *smolvmMachine) machineInfo {
	c := &m.rec.Create
	i := machineInfo{
		Name: c.Name, State: m.rec.State, CPUs: valueOr(c.CPUs, 4), MemoryMB: valueOr(c.MemoryMB, 8192),
		Mounts: append([]mountSpec{}, c.Mounts...), Ports: append([]portSpec{}, c.Ports...),
		Network: c.networked(), AllowedCIDRs: c.AllowedCIDRs, AllowedHosts: c.AllowedHosts,
		Forkable: m.rec.Forkable, CreatedAt: m.rec.CreatedAt,
		StorageGB: valueOr(c.StorageGB, 20), OverlayGB: valueOr(c.OverlayGB, 10),
	}
	if i.Network {
		i.NetworkBackend = "virtio-net"
	}
	if m.rec.State != "created" && m.rec.State != "stopped" {
		i.PID = os.Getpid()
	}
	if atLeast(s.version, "1.17.0") {
		i.Image = c.Image
	}
	return i
}

func valueOr[T any](p *T, otherwise T) T {
	if p == nil {
		return otherwise
	}
	return *p
}

// load reads the machines of an earlier server.
func (s *smolvmServer) load() error {
	dirs, err := os.ReadDir(filepath.Join(s.data, "machines"))
	if err != nil {
		return err
	}
	for _, d := range dirs {
		b, err := os.ReadFile(filepath.Join(s.data, "machines", d.Name(), "machine.json"))
		if errors.Is(err, os.ErrNotExist) {
			continue // died between the directory and the record: never existed
		}
		m := &smolvmMachine{slots: make(chan struct{}, guestSlots)}
		if err == nil {
			err = json.Unmarshal(b, &m.rec)
		}
		if err == nil && m.rec.State != "created" {
			m.guest, err = OpenGuest(s.dir(d.Name())+"/root", s.guestOptions(m))
		}
		if err != nil {
			return err
		}
		s.machines[d.Name()] = m
	}
	return nil
}

func (s *smolvmServer) dir(name string) string { return filepath.Join(s.data, "machines", name) }

func (s *smolvmServer) guestOptions(m *smolvmMachine) GuestOptions {
	image := m.rec.Create.Image
	return GuestOptions{Image: image != "", NoShell: strings.HasPrefix(image, "distroless/"), Busybox: filepath.Join(s.data, "busybox")}
}

// save changes m's record and writes it to disk.
func (s *smolvmServer) save(m *smolvmMachine, change func(*machineRecord)) *reply {
	s.mu.Lock()
	defer s.mu.Unlock()
	rec := m.rec
	change(&rec)
	b, err := json.Marshal(rec)
	file := filepath.Join(s.dir(rec.Create.Name), "machine.json")
	if err == nil {
		err = os.WriteFile(file+".new", b, 0o644)
	}
	if err == nil {
		err = os.Rename(file+".new", file)
	}
	if err != nil {
		return refuse(500, "INTERNAL_ERROR", "database error: %v", err)
	}
	m.rec = rec
	return nil
}

// find returns the machine of that name.
func (s *smolvmServer) find(name string) (*smolvmMachine, *reply) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.machines[name]
	if m == nil {
		return nil, refuse(404, "NOT_FOUND", "machine '%s' not found", name)
	}
	return m, nil
}

// lock takes the machine's lifecycle lock, and fails when it was deleted meanwhile.
func (s *smolvmServer) lock(m *smolvmMachine) *reply {
	m.life.Lock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if m.gone {
		m.life.Unlock()
		return refuse(404, "NOT_FOUND", "machine '%s' not found", m.rec.Create.Name)
	}
	return nil
}

// claim finds a machine and takes its lifecycle lock.
func (s *smolvmServer) claim(name string) (*smolvmMachine, *reply) {
	m, re := s.find(name)
	if re != nil {
		return nil, re
	}
	return m, s.lock(m)
}

// record returns a copy of m's record.
func (s *smolvmServer) record(m *smolvmMachine) machineRecord {
	s.mu.Lock()
	defer s.mu.Unlock()
	return m.rec
}

// clones returns the names of the machines that branched from name.
func (s *smolvmServer) clones(name string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for n, m := range s.machines {
		if m.rec.Source == name {
			names = append(names, n)
		}
	}
	return names
}

// described answers with m as it is now.
func (s *smolvmServer) described(m *smolvmMachine) reply {
	s.mu.Lock()
	defer s.mu.Unlock()
	return jsonReply(s.info(m))
}

// slot takes one of the machine's agent connections and returns how to give it back.
func (m *smolvmMachine) slot() func() {
	m.slots <- struct{}{}
	return func() { <-m.slots }
}

// merged is a command with what every command of the machine gets.
func (rec *machineRecord) merged(cmd fleet.Command) fleet.Command {
	env := map[string]string{}
	for _, e := range rec.Create.Env {
		env[e.Name] = e.Value
	}
	for k, v := range cmd.Env {
		env[k] = v
	}
	cmd.Env = env
	if cmd.Workdir == "" {
		cmd.Workdir = rec.Create.Workdir
	}
	return cmd
}
