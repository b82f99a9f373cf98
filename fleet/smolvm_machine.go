package fleet

import (
	"encoding/json"
	"sort"
	"strings"
	"time"
)

// machineInfo is smolvm's MachineInfo as far as we read it. Keys that a release
// lacks are absent; those it adds are ignored.
type machineInfo struct {
	Name         string          `json:"name"`
	State        string          `json:"state"`
	CPUs         int             `json:"cpus"`
	MemoryMB     int             `json:"memoryMb"`
	Network      bool            `json:"network"`
	AllowedHosts *[]string       `json:"allowedHosts"` // absent and [] differ: no list, and nothing allowed
	AllowedCIDRs *[]string       `json:"allowedCidrs"`
	Ports        []portSpec      `json:"ports"`
	Mounts       []mountSpec     `json:"mounts"`
	Image        json.RawMessage `json:"image"`
	PID          int             `json:"pid"`
	CreatedAt    int64           `json:"createdAt"`
	Forkable     *bool           `json:"forkable"`
	Branchable   *bool           `json:"branchable"`
}

type portSpec struct {
	Host  int `json:"host"`
	Guest int `json:"guest"`
}

type mountSpec struct {
	Source   string `json:"source"`
	Target   string `json:"target"`
	ReadOnly bool   `json:"readonly"`
}

// helperPrefix begins the names of machines that smolvm makes for itself.
const helperPrefix = "image-seed-"

func (m machineInfo) machine() Machine {
	out := Machine{
		ID: m.Name, Name: m.Name, State: stateOf(m.State), Word: Bound(m.State, 64),
		CPUs: m.CPUs, MemoryMB: m.MemoryMB, PID: m.PID,
		Network:    m.network(),
		AllowHosts: deref(m.AllowedHosts), AllowCIDRs: deref(m.AllowedCIDRs),
	}
	_ = json.Unmarshal(m.Image, &out.Image) // newer releases only; whatever else it is, it is not a name
	if m.CreatedAt > 0 {
		out.CreatedAt = time.Unix(m.CreatedAt, 0)
	}
	for _, p := range m.Ports {
		out.Ports = append(out.Ports, Port{Guest: p.Guest, Host: p.Host})
	}
	return out
}

// network renders the egress policy. A list that is there and empty allows
// nothing, whatever network says.
func (m machineInfo) network() string {
	allowed := append(append([]string{}, deref(m.AllowedHosts)...), deref(m.AllowedCIDRs)...)
	switch {
	case len(allowed) > 0:
		return "allow(" + strings.Join(allowed, ",") + ")"
	case m.Network && m.AllowedHosts == nil && m.AllowedCIDRs == nil:
		return "open"
	}
	return "blocked"
}

// notBranchable reports that the server says so; older ones do not say.
func (m machineInfo) notBranchable() bool {
	for _, said := range []*bool{m.Branchable, m.Forkable} {
		if said != nil {
			return !*said
		}
	}
	return false
}

// stateOf renders smolvm's word. A frozen machine is the source of branches
// that share its memory: memory kept, nothing runs, so it is suspended too.
func stateOf(word string) State {
	switch word {
	case "created", "starting", "running", "suspended", "stopped", "failed", "unreachable":
		return State(word)
	case "paused", "frozen":
		return Suspended
	}
	return Unknown
}

func deref(list *[]string) []string {
	if list == nil {
		return nil
	}
	return *list
}

// machines renders a list in order of name, without smolvm's helpers.
func machines(infos []machineInfo) []Machine {
	out := make([]Machine, 0, len(infos))
	for _, info := range infos {
		if !strings.HasPrefix(info.Name, helperPrefix) {
			out = append(out, info.machine())
		}
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Name < out[j].Name })
	return out
}
