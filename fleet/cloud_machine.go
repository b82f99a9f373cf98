package fleet

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/netip"
	"slices"
	"sort"
	"strings"
	"time"
)

// cloudMachine is the service's MachineInfo as far as we read it. Only id and
// state can be relied on: every other part may be missing, null or of
// a kind that we do not know, and is then as if it was not said.
type cloudMachine struct {
	id       string
	name     string
	word     string // its state, in the service's words
	fault    string // why the state is error
	image    string
	cpus     int
	memoryMB int
	diskGB   int
	network  cloudNetwork
	ports    []int
	env      map[string]string // nil when the service does not say
	created  time.Time
	ttl      time.Duration
	autoStop time.Duration
	url      string

	ready      *bool
	branchable *bool
}

// cloudNetwork is an egress policy. Mode is empty when it was not said.
type cloudNetwork struct {
	Mode  string   `json:"mode"`
	CIDRs []string `json:"cidrs"`
	Hosts []string `json:"hosts"`
}

// The modes of a network.
const (
	modeOpen    = "open"
	modeBlocked = "blocked"
	modeAllow   = "allowCidrs"
)

// denied is the only range that a machine with blocked egress may reach: it is
// reserved for documentation, so nothing answers. The mode blocked would also
// keep the service from fetching an image.
const deniedRange = "192.0.2.0/24"

// UnmarshalJSON reads what it can. It fails when there is no id, and has read the rest
// all the same.
func (m *cloudMachine) UnmarshalJSON(data []byte) error {
	var part map[string]json.RawMessage
	if err := json.Unmarshal(data, &part); err != nil {
		return err
	}
	*m = cloudMachine{
		id: textIn(part["id"]), name: textIn(part["name"]), word: textIn(part["state"]), fault: textIn(part["error"]), url: textIn(part["url"]),
		ttl: secondsIn(part["ttlSeconds"]), autoStop: secondsIn(part["autoStopSeconds"]),
		ready: flagIn(part["ready"]), branchable: flagIn(part["branchable"]),
	}
	if m.branchable == nil {
		m.branchable = flagIn(part["forkable"])
	}
	m.created, _ = time.Parse(time.RFC3339, textIn(part["createdAt"]))
	_ = json.Unmarshal(part["env"], &m.env)
	if json.Unmarshal(part["network"], &m.network) != nil {
		m.network = cloudNetwork{Mode: textIn(part["network"])}
	}
	within := func(key, name string) json.RawMessage {
		var inner map[string]json.RawMessage
		_ = json.Unmarshal(part[key], &inner)
		return inner[name]
	}
	m.image = textIn(within("source", "reference"))
	m.cpus, m.memoryMB, m.diskGB = numberIn(within("resources", "cpus")), numberIn(within("resources", "memoryMb")), numberIn(within("resources", "diskGb"))
	var ports []map[string]json.RawMessage
	_ = json.Unmarshal(part["ports"], &ports)
	for _, p := range ports {
		m.ports = append(m.ports, numberIn(p["port"]))
	}
	if m.id == "" {
		return errors.New("a machine without an id")
	}
	return nil
}

func textIn(raw json.RawMessage) (s string) {
	_ = json.Unmarshal(raw, &s)
	return s
}

func numberIn(raw json.RawMessage) int {
	var f float64
	_ = json.Unmarshal(raw, &f)
	if f < 0 || f > 1<<52 {
		return 0
	}
	return int(f)
}

func secondsIn(raw json.RawMessage) time.Duration {
	return time.Duration(min(numberIn(raw), 1<<32)) * time.Second
}

func flagIn(raw json.RawMessage) (b *bool) {
	_ = json.Unmarshal(raw, &b)
	return b
}

// readRows reads a list of machines, bare or wrapped. What has neither id nor name is
// left out and counted. What has only a name is there, though nothing can be asked of it.
func readRows(data []byte) (rows []cloudMachine, skipped int, err error) {
	var raw []json.RawMessage
	if !bytes.HasPrefix(bytes.TrimSpace(data), []byte("[")) {
		var wrapped struct {
			Machines *[]json.RawMessage `json:"machines"`
		}
		if err := json.Unmarshal(data, &wrapped); err != nil {
			return nil, 0, err
		}
		if wrapped.Machines == nil {
			return nil, 0, errors.New("it is no list of machines")
		}
		raw = *wrapped.Machines
	} else if err := json.Unmarshal(data, &raw); err != nil {
		return nil, 0, err
	}
	for _, r := range raw {
		var m cloudMachine
		if m.UnmarshalJSON(r) != nil && m.name == "" {
			skipped++
		} else if !m.deleted() {
			rows = append(rows, m)
		}
	}
	return rows, skipped, nil
}

// deleted reports whether it is only the memory of a machine.
func (m cloudMachine) deleted() bool { return strings.EqualFold(m.word, "deleted") }

// label is the name, or the id of a machine without one.
func (m cloudMachine) label() string {
	if m.name == "" {
		return m.id
	}
	return m.name
}

// state renders the service's word. It never published a list of them.
func (m cloudMachine) state() State {
	switch strings.ToLower(m.word) {
	case "started", "running":
		return Running
	case "creating", "starting", "booting", "resuming", "restoring", "pending", "provisioning", "queued":
		return Starting
	case "stopped":
		return Stopped
	case "created":
		return Created
	case "paused", "suspended", "frozen":
		return Suspended
	case "error", "failed":
		return Failed
	}
	return Unknown
}

func (m cloudMachine) machine() Machine {
	out := Machine{
		ID: m.id, Name: m.label(), State: m.state(), Word: Bound(m.word, 64),
		CPUs: m.cpus, MemoryMB: m.memoryMB, Image: Bound(m.image, 512), URL: Bound(m.url, 512),
		Network: m.network.text(), Owner: Bound(m.env[ownerMark], 64),
	}
	if m.network.Mode == modeAllow && !m.network.denies() {
		out.AllowHosts, out.AllowCIDRs = m.network.Hosts, m.network.CIDRs
	}
	for _, p := range m.ports {
		out.Ports = append(out.Ports, Port{Guest: p})
	}
	if !m.created.IsZero() {
		out.CreatedAt = m.created.Truncate(time.Second)
		if m.ttl > 0 {
			out.ExpiresAt = out.CreatedAt.Add(m.ttl)
		}
	}
	return out
}

// denies reports whether nothing gets out.
func (n cloudNetwork) denies() bool {
	return n.Mode == modeBlocked || n.Mode == modeAllow && len(n.Hosts) == 0 && !slices.ContainsFunc(n.CIDRs, func(c string) bool { return plainCIDR(c) != deniedRange })
}

func (n cloudNetwork) text() string {
	switch {
	case n.denies():
		return "blocked"
	case n.Mode == modeOpen:
		return "open"
	case n.Mode == modeAllow:
		return "allow(" + strings.Join(append(slices.Clone(n.Hosts), n.CIDRs...), ",") + ")"
	}
	return "unknown"
}

// everything reports whether a range is all of the network.
func everything(cidr string) bool {
	p, err := netip.ParsePrefix(strings.TrimSpace(cidr))
	return err == nil && p.Bits() == 0
}

// cloudMachinesOf renders a list in order of name.
func cloudMachinesOf(rows []cloudMachine) []Machine {
	out := make([]Machine, 0, len(rows))
	for _, m := range rows {
		out = append(out, m.machine())
	}
	sort.Slice(out, func(i, j int) bool {
		return out[i].Name < out[j].Name || out[i].Name == out[j].Name && out[i].ID < out[j].ID
	})
	return out
}
