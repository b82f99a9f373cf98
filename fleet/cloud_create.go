package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

// The environment of a machine carries who made it: the service has no labels.
// Anybody who may list machines sees it, and so does the guest.
const (
	ownerMark  = "SMOL_MCP_OWNER"  // the installation
	createMark = "SMOL_MCP_CREATE" // the call, so that its machine is known when its answer is lost
)

// cloudCreate is the body of a create. The service drops fields that it does not
// know without a word, so that what counts is compared with its answer.
type cloudCreate struct {
	Name       string            `json:"name"`
	Source     cloudSource       `json:"source"`
	Resources  cloudResources    `json:"resources"`
	Network    cloudPolicy       `json:"network"`
	Ports      []cloudPort       `json:"ports,omitempty"`
	Env        map[string]string `json:"env"`
	TTL        int64             `json:"ttlSeconds,omitempty"`
	AutoStop   int64             `json:"autoStopSeconds,omitempty"`
	Branchable bool              `json:"branchable,omitempty"`
}

type cloudSource struct {
	Type      string `json:"type"`
	Reference string `json:"reference"`
}

type cloudResources struct {
	CPUs     int `json:"cpus"`
	MemoryMB int `json:"memoryMb"`
	DiskGB   int `json:"diskGb,omitempty"`
}

type cloudPolicy struct {
	Mode  string    `json:"mode"`
	CIDRs *[]string `json:"cidrs,omitempty"` // both or none: one of the two was once required
	Hosts *[]string `json:"hosts,omitempty"`
}

type cloudPort struct {
	Port int `json:"port"`
}

// What a machine gets where the wish does not say: the service's own
// defaults changed between its releases.
const (
	cloudCPUs     = 1
	cloudMemoryMB = 1024
)

// maxCloudPorts is how many ports the service publishes at most.
const maxCloudPorts = 4

// Create makes a machine and compares what the service says with the wish. A
// machine that lacks a part of it, above all its end or its egress policy, is
// deleted again.
func (c *Cloud) Create(ctx context.Context, spec Spec) (Machine, error) {
	r := request{op: "create machine " + spec.Name, method: http.MethodPost, path: cloudMachines, wait: cloudCreateWait, effect: true}
	if err := CheckName(spec.Name); err != nil {
		return Machine{}, err
	}
	if err := cloudCannot(r, spec); err != nil {
		return Machine{}, err
	}
	body, err := c.createBody(spec)
	if err == nil {
		err = c.checkEnv(ctx, spec.Env)
	}
	if err != nil {
		return Machine{}, r.fail(CodeInvalid, false, err)
	}
	if _, err := c.key(ctx, r.op); err != nil {
		return Machine{}, err
	}
	if err := c.keys.mayDelete(r.op, c.opts.TokenName); err != nil {
		return Machine{}, err
	}
	r.json = body
	m, err := c.sendNamed(ctx, landing{r: r, name: spec.Name, ours: body.isOf})
	if err != nil {
		return Machine{}, err
	}
	return c.compare(ctx, r, body, m)
}

// compare returns the machine that was made when it is what was asked for, and else
// deletes it.
func (c *Cloud) compare(ctx context.Context, r request, body cloudCreate, m cloudMachine) (Machine, error) {
	dropped := body.dropped(m)
	if len(dropped) > 0 { // the answer may have been shorter than the record
		full, err := c.look(ctx, r.op, m.id)
		if err == nil {
			m, dropped = full, body.dropped(full)
		}
	}
	if len(dropped) == 0 {
		c.names.put(m.label(), knownMachine{id: m.id, untouched: true, branchable: body.Branchable})
		return m.machine(), nil
	}
	why := "the service did not take over " + strings.Join(dropped, "; ")
	e := r.fail(CodeUnsupported, false, errors.New(why))
	e.Next = "leave out what it names, or use another fleet"
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), cloudStopWait)
	defer cancel()
	if _, err := c.remove(undo, r.op, m.id); err != nil && CodeOf(err) != CodeNotFound {
		e.MaybeDone = true
		e.Why = Bound(why+"; and the machine "+m.id+" could not be deleted: "+err.Error(), MaxWhy)
		return Machine{}, e
	}
	e.Why = Bound(why+"; the machine was deleted again", MaxWhy)
	return Machine{}, e
}

// cloudCannot refuses what the service would drop or misunderstand.
func cloudCannot(r request, spec Spec) error {
	refuse := func(what, next string) error {
		return &Error{Code: CodeUnsupported, Op: r.op, Why: "the cloud cannot " + what, Next: next}
	}
	hostPort := func(p Port) bool { return p.Host != 0 && p.Host != p.Guest }
	switch {
	case len(spec.Mounts) > 0:
		return refuse("mount directories of this computer", "leave mounts out and write files")
	case spec.OverlayGB > 0:
		return refuse("size the overlay disk", "leave it out")
	case len(spec.Cmd) > 0:
		return refuse("be trusted to keep the workload's command: some of its releases drop it silently", "leave it out and run the command later")
	case len(spec.Ports) > 0 && spec.Network.Blocked():
		return refuse("publish ports of a machine with blocked egress", "allow some egress, or publish no port")
	case len(spec.Ports) > maxCloudPorts:
		return refuse(fmt.Sprintf("publish more than %d ports", maxCloudPorts), "publish fewer")
	case slices.ContainsFunc(spec.Ports, hostPort):
		return refuse("choose the host's port", "leave it out: the machine's url says where it is")
	case isLocalImage(spec.Image):
		return refuse("use the image "+Quote(spec.Image)+" of this computer", "name an image of a registry")
	}
	return nil
}

func isLocalImage(image string) bool {
	return strings.HasPrefix(image, "/") || strings.HasPrefix(image, "./") || strings.HasPrefix(image, "../") || strings.HasPrefix(image, "builtin:")
}

func (c *Cloud) createBody(spec Spec) (cloudCreate, error) {
	if _, err := envList(spec.Env); err != nil {
		return cloudCreate{}, err
	}
	if spec.Image == "" || plainText("the image", spec.Image) != nil {
		return cloudCreate{}, errors.New("a machine of the cloud needs an image: a reference is text and not empty")
	}
	body := cloudCreate{
		Name: spec.Name, Source: cloudSource{"image", spec.Image},
		Resources: cloudResources{cmp.Or(spec.CPUs, cloudCPUs), cmp.Or(spec.MemoryMB, cloudMemoryMB), spec.StorageGB},
		Network:   policyOf(spec.Network), Branchable: spec.Branchable,
		TTL: wholeSeconds(spec.TTL), AutoStop: wholeSeconds(spec.AutoStop),
		Env: map[string]string{ownerMark: c.opts.Owner, createMark: randomID(8)},
	}
	if strings.HasPrefix(spec.Image, "tenants/") { // the account's own; other kinds are looked for elsewhere
		body.Source.Type = "smolmachine"
	}
	for name, value := range spec.Env {
		if name == ownerMark || name == createMark {
			return body, fmt.Errorf("environment variable %s is one of ours", name)
		}
		body.Env[name] = value
	}
	for _, p := range spec.Ports {
		if p.Guest < 1 || p.Guest > 65535 {
			return body, fmt.Errorf("port %d is not within 1..65535", p.Guest)
		}
		body.Ports = append(body.Ports, cloudPort{p.Guest})
	}
	return body, nil
}

// wholeSeconds rounds up, so that a wish is not shortened to none.
func wholeSeconds(d time.Duration) int64 { return int64((max(d, 0) + time.Second - 1) / time.Second) }

// policyOf renders an egress policy. An allow-list beats open, so that a wish with
// both gets the narrower one.
func policyOf(n Network) cloudPolicy {
	hosts, cidrs := append([]string{}, n.AllowHosts...), append([]string{}, n.AllowCIDRs...)
	switch {
	case n.Blocked():
		cidrs = []string{deniedRange}
	case len(hosts)+len(cidrs) == 0:
		return cloudPolicy{Mode: modeOpen}
	}
	return cloudPolicy{Mode: modeAllow, CIDRs: &cidrs, Hosts: &hosts}
}

// isOf reports whether a machine was made by this very wish. Without its
// environment it cannot be told.
func (want cloudCreate) isOf(got cloudMachine) (ours, told bool) {
	if got.env == nil {
		return false, false
	}
	return got.env[createMark] == want.Env[createMark] && got.env[ownerMark] == want.Env[ownerMark], true
}

// dropped names the parts of the wish that the machine lacks.
func (want cloudCreate) dropped(got cloudMachine) []string {
	var out []string
	miss := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	if got.name != want.Name {
		miss("name %s (it says %s)", want.Name, Quote(got.name))
	}
	if got.cpus != want.Resources.CPUs {
		miss("cpus %d (it says %d)", want.Resources.CPUs, got.cpus)
	}
	if got.memoryMB != want.Resources.MemoryMB {
		miss("memoryMb %d (it says %d)", want.Resources.MemoryMB, got.memoryMB)
	}
	if got.diskGB != 0 && got.diskGB < want.Resources.DiskGB {
		miss("diskGb %d (it says %d)", want.Resources.DiskGB, got.diskGB)
	}
	// An end that comes earlier than asked bounds the cost too.
	for _, end := range []struct {
		what string
		want int64
		got  time.Duration
	}{{"ttlSeconds", want.TTL, got.ttl}, {"autoStopSeconds", want.AutoStop, got.autoStop}} {
		if said := wholeSeconds(end.got); end.want > 0 && (said == 0 || said > end.want) {
			miss("%s %d (it says %d)", end.what, end.want, said)
		}
	}
	if want.Branchable && (got.branchable == nil || !*got.branchable) {
		miss("branchable")
	}
	for _, p := range want.Ports {
		if !slices.Contains(got.ports, p.Port) {
			miss("port %d", p.Port)
		}
	}
	return append(out, want.Network.dropped(got.network)...)
}

// dropped says what of an egress policy is missing. The service may add the hosts
// of the image's registry to a list, but not everything.
func (want cloudPolicy) dropped(got cloudNetwork) []string {
	var out []string
	switch {
	case want.Mode == modeOpen && got.Mode == modeOpen:
	case want.Mode == modeAllow && got.Mode == modeAllow:
		if m := missing(*want.Hosts, got.Hosts, plainHost); len(m) > 0 {
			out = append(out, "hosts "+strings.Join(m, ","))
		}
		if m := missing(*want.CIDRs, got.CIDRs, plainCIDR); len(m) > 0 {
			out = append(out, "cidrs "+strings.Join(m, ","))
		}
		if slices.ContainsFunc(got.CIDRs, everything) && !slices.ContainsFunc(*want.CIDRs, everything) {
			out = append(out, "the egress policy (it allows everything)")
		}
	case want.denies() && got.denies():
	default:
		out = append(out, fmt.Sprintf("network %s (it says %s)", want.Mode, Quote(got.Mode)))
	}
	return out
}

func (want cloudPolicy) denies() bool {
	return want.Mode == modeAllow && len(*want.Hosts) == 0 && slices.Equal(*want.CIDRs, []string{deniedRange})
}
