package fleet

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

type envVar struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// createRequest is the body of a create. Only what the wish names is sent: an
// absent list and an empty one mean different things to smolvm, and from
// 1.22.2 it refuses fields that it does not know.
type createRequest struct {
	Name         string      `json:"name"`
	Image        string      `json:"image,omitempty"`
	CPUs         int         `json:"cpus,omitempty"`
	MemoryMB     int         `json:"memoryMb,omitempty"`
	StorageGB    int         `json:"storageGb,omitempty"`
	OverlayGB    int         `json:"overlayGb,omitempty"`
	Network      bool        `json:"network"`
	AllowedHosts []string    `json:"allowedHosts,omitempty"`
	AllowedCIDRs []string    `json:"allowedCidrs,omitempty"`
	Ports        []portSpec  `json:"ports,omitempty"`
	Mounts       []mountSpec `json:"mounts,omitempty"`
	Cmd          []string    `json:"cmd,omitempty"`
	Env          []envVar    `json:"env,omitempty"`
}

// Create makes a machine and compares what the server says with the wish.
func (s *Smolvm) Create(ctx context.Context, spec Spec) (Machine, error) {
	r := request{op: "create machine " + spec.Name, method: http.MethodPost, path: machinesPath, wait: createWait, effect: true}
	if err := CheckName(spec.Name); err != nil {
		return Machine{}, err
	}
	body, err := createBody(spec)
	if err != nil {
		return Machine{}, r.fail(CodeInvalid, false, err)
	}
	r.json = body
	var info machineInfo
	if err := s.wire.do(ctx, r, &info); err != nil {
		var e *Error
		if errors.As(err, &e) && e.Code == CodeConflict {
			// A create that died with its engine leaves no machine, but its name reserved.
			e.Next = "choose another name; where no machine has this one, an interrupted create holds it for up to an hour"
		}
		return Machine{}, err
	}
	if dropped := body.dropped(info); len(dropped) > 0 {
		return Machine{}, r.fail(CodeUnsupported, true, fmt.Errorf("the server did not take over %s", strings.Join(dropped, "; ")))
	}
	return info.machine(), nil
}

func createBody(spec Spec) (createRequest, error) {
	env, err := envList(spec.Env)
	if err != nil {
		return createRequest{}, err
	}
	body := createRequest{
		Name: spec.Name, Image: spec.Image, CPUs: spec.CPUs, MemoryMB: spec.MemoryMB,
		StorageGB: spec.StorageGB, OverlayGB: spec.OverlayGB, Cmd: spec.Cmd, Env: env,
		AllowedHosts: spec.Network.AllowHosts, AllowedCIDRs: spec.Network.AllowCIDRs,
	}
	// An allow-list beats open, so that a wish with both gets the narrower one.
	body.Network = spec.Network.Open && len(body.AllowedHosts)+len(body.AllowedCIDRs) == 0
	for _, p := range spec.Ports {
		if p.Host == 0 {
			p.Host = p.Guest
		}
		if p.Guest < 1 || p.Guest > 65535 || p.Host < 1 || p.Host > 65535 {
			return body, fmt.Errorf("port %d:%d is not within 1..65535", p.Host, p.Guest)
		}
		body.Ports = append(body.Ports, portSpec{Host: p.Host, Guest: p.Guest})
	}
	for _, m := range spec.Mounts {
		body.Mounts = append(body.Mounts, mountSpec{Source: m.Source, Target: m.Target, ReadOnly: m.ReadOnly})
	}
	return body, nil
}

// dropped names the parts of the wish that the server's machine lacks. Releases
// before 1.22.2 ignore what they do not know, and a policy that was
// ignored would look like isolation.
func (want createRequest) dropped(got machineInfo) []string {
	var out []string
	miss := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	if got.Name != want.Name {
		miss("name %s (it says %s)", want.Name, Quote(got.Name))
	}
	if m := missing(want.AllowedHosts, deref(got.AllowedHosts), plainHost); len(m) > 0 {
		miss("allowedHosts %s", strings.Join(m, ","))
	}
	if m := missing(want.AllowedCIDRs, deref(got.AllowedCIDRs), plainCIDR); len(m) > 0 {
		miss("allowedCidrs %s", strings.Join(m, ","))
	}
	listed := len(want.AllowedHosts)+len(want.AllowedCIDRs) > 0
	if policy := got.network(); !listed && (policy == "open") != want.Network || !listed && strings.HasPrefix(policy, "allow") {
		miss("network:%v (it says %s)", want.Network, Bound(policy, 256))
	}
	for _, p := range want.Ports {
		if !slices.Contains(got.Ports, p) {
			miss("port %d:%d", p.Host, p.Guest)
		}
	}
	for _, m := range want.Mounts {
		same := func(g mountSpec) bool { return g.Target == m.Target && (g.ReadOnly || !m.ReadOnly) }
		if !slices.ContainsFunc(got.Mounts, same) {
			miss("mount %s (readonly %v)", m.Target, m.ReadOnly)
		}
	}
	return out
}

// missing returns what is in want but not in got, compared by their plain forms.
func missing(want, got []string, plain func(string) string) []string {
	there := make(map[string]bool, len(got))
	for _, g := range got {
		there[plain(g)] = true
	}
	var out []string
	for _, w := range want {
		if !there[plain(w)] {
			out = append(out, w)
		}
	}
	return out
}

func plainHost(host string) string {
	return strings.ToLower(strings.TrimSuffix(strings.TrimSpace(host), "."))
}

// plainCIDR makes ranges comparable: an address is a range of one, and bits outside
// the range do not count.
func plainCIDR(cidr string) string {
	cidr = strings.TrimSpace(cidr)
	if a, err := netip.ParseAddr(cidr); err == nil {
		return netip.PrefixFrom(a, a.BitLen()).String()
	}
	if p, err := netip.ParsePrefix(cidr); err == nil {
		return p.Masked().String()
	}
	return cidr
}

// Branch copies a running machine.
func (s *Smolvm) Branch(ctx context.Context, source string, spec BranchSpec) (Machine, error) {
	r := request{op: "branch machine " + source + " to " + spec.Name, method: http.MethodPost, wait: startWait, effect: true}
	if err := CheckAnyName(source); err != nil {
		return Machine{}, err
	}
	if err := CheckName(spec.Name); err != nil {
		return Machine{}, err
	}
	can, err := s.features(ctx)
	if err != nil {
		return Machine{}, err
	}
	if !can.Branch {
		return Machine{}, r.fail(CodeUnsupported, false, errors.New(can.whyNoBranch))
	}
	body := map[string]any{"name": spec.Name}
	if can.freezeSource {
		body["freezeSource"] = spec.StopSource
	}
	r.json, r.path = body, machinePath(source, can.branchRoute)
	var info machineInfo
	if err := s.wire.do(ctx, r, &info); err != nil {
		return Machine{}, err
	}
	if info.Name != spec.Name {
		return Machine{}, r.fail(CodeInternal, true, fmt.Errorf("the answer is about machine %s", Quote(info.Name)))
	}
	return info.machine(), nil
}
