package tools

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"smol-mcp/fleet"
	"smol-mcp/store"
)

type createIn struct {
	Image      string            `json:"image"`
	Name       string            `json:"name"`
	CPUs       int               `json:"cpus"`
	MemoryMB   int               `json:"memoryMb"`
	StorageGB  int               `json:"storageGb"`
	OverlayGB  int               `json:"overlayGb"`
	Network    string            `json:"network"`
	AllowHosts []string          `json:"allowHosts"`
	AllowCIDRs []string          `json:"allowCidrs"`
	Ports      []portIn          `json:"ports"`
	Mounts     []mountIn         `json:"mounts"`
	Cmd        []string          `json:"cmd"`
	Env        map[string]string `json:"env"`
	Start      *bool             `json:"start"`
	Branchable bool              `json:"branchable"`
}

type portIn struct {
	Guest int `json:"guest"`
	Host  int `json:"host"`
}

type mountIn struct {
	Source   string `json:"source"`
	Target   string `json:"target"`
	ReadOnly bool   `json:"readonly"`
}

type createOut struct {
	Machine   machine `json:"machine"`
	Ephemeral bool    `json:"ephemeral"`
	Ready     bool    `json:"ready"`
}

func createMachine(l Limits) tool {
	fields := []field{
		required("image", text("Registry reference, as alpine:3.20 or ghcr.io/org/app@sha256:...")),
		optional("name", text("1 to 40 of a-z, 0-9 and -. Default: a new ephemeral one.")),
	}
	fields = append(fields, resourceArguments(l)...)
	fields = append(fields,
		optional("storageGb", between("Data disk in GiB. Default: the engine's.", 1, 1024)),
		optional("overlayGb", between("Disk for changes to the image in GiB. Default: the engine's.", 1, 1024)))
	fields = append(fields, egressArguments(l.NetworkOpen, false)...)
	fields = append(fields,
		optional("ports", atMost(64, "Ports to publish on the host's loopback.", arguments(
			required("guest", between("Guest port.", 1, 65535)),
			optional("host", between("Host port. Default: as guest.", 1, 65535))))),
		optional("mounts", atMost(maxMounts, "Host directories to show, only below SMOL_MCP_MOUNT_ROOTS (default: none).", arguments(
			required("source", text("Absolute host path.")),
			required("target", text("Absolute guest path.")),
			optional("readonly", standard(flag("The guest cannot write to it."), false))))),
		optional("cmd", list("Program that keeps it alive. Default: an idle one.", text(""))),
		optional("env", dict("Environment of all commands.")),
		optional("start", standard(flag("false leaves it created."), true)),
		optional("branchable", standard(flag("It can be a source for branch-machine; costs memory."), false)))
	return define(tool{
		name:  "create-machine",
		title: "Create machine",
		description: "Creates a virtual machine from an image, starts it and waits until it is ready for commands. Use it when you need files or processes to stay between calls; for one command use run-once, " +
			"for a copy of a running machine branch-machine. Without a name, or with one that begins with the ephemeral prefix (" + l.MachinePrefix + "), the machine is deleted when this session ends; any other name keeps it until delete-machine. " +
			"Takes seconds; minutes when the image is pulled. Egress is " + policyWord(l.NetworkOpen) + " by default, and host directories are refused unless allowed; an engine that pulls inside the guest then needs network open or allowHosts for a registry image. If a step fails, what was created is deleted again; a name that exists is CONFLICT.",
		hints: hints{openWorld: true},
		in:    arguments(fields...),
		out: object(
			required("machine", machineSchema()),
			required("ephemeral", flag("Deleted when this session ends.")),
			required("ready", flag("It has answered a command.")),
		),
	}, (*call).create)
}

// idle keeps a machine alive without a workload: many images' own command ends at once.
var idle = []string{"sh", "-c", "while :; do sleep 86400; done"}

func (c *call) create(ctx context.Context, in createIn) (createOut, error) {
	network, err := c.egress(in.Network, in.AllowHosts, in.AllowCIDRs, c.opts.Limits.NetworkOpen)
	if err != nil {
		return createOut{}, err
	}
	mounts, err := c.checkMounts(in.Mounts)
	if err != nil {
		return createOut{}, err
	}
	if in.Name != "" && c.fleet.Target() == localTarget {
		if err := c.checkFree(ctx, in.Name); err != nil {
			return createOut{}, unmade(in.Name, err)
		}
	}
	spec := fleet.Spec{
		Name: in.Name, Image: in.Image, CPUs: in.CPUs, MemoryMB: in.MemoryMB, StorageGB: in.StorageGB, OverlayGB: in.OverlayGB,
		Network: network, Mounts: mounts, Cmd: in.Cmd, Env: in.Env, Branchable: in.Branchable,
	}
	for _, p := range in.Ports {
		spec.Ports = append(spec.Ports, fleet.Port{Guest: p.Guest, Host: p.Host})
	}
	made, err := c.make(ctx, spec, c.lifeOf(in.Name), in.Start == nil || *in.Start)
	if err != nil {
		return createOut{}, err
	}
	ready := in.Start == nil || *in.Start
	v := c.showOne(ctx, made)
	return createOut{Machine: v, Ephemeral: v.Ephemeral, Ready: ready}, nil
}

// lifeOf tells how long a machine of that name lives.
func (c *call) lifeOf(name string) store.Kind {
	if name == "" || strings.HasPrefix(name, c.opts.Limits.MachinePrefix) {
		return store.Ephemeral
	}
	return store.Persistent
}

// make creates a machine in the order that leaves no gap: check, record, create,
// confirm, start, wait. A failure after the record takes back what was made.
func (c *call) make(ctx context.Context, spec fleet.Spec, kind store.Kind, start bool) (fleet.Machine, error) {
	chosen := spec.Name != "" && kind != store.Once
	if err := c.admit(ctx, &spec, kind); err != nil {
		return fleet.Machine{}, unmade(spec.Name, err)
	}
	rec, err := c.intend(ctx, store.Wish{Target: c.fleet.Target(), Account: c.key("").Account, Name: spec.Name, Kind: kind, Image: spec.Image, Network: describe(spec.Network), Chosen: chosen})
	if err != nil {
		return fleet.Machine{}, unmade(spec.Name, err)
	}
	c.stage("creating %s", spec.Name)
	m, err := c.fleet.Create(ctx, spec)
	if err != nil {
		return fleet.Machine{}, c.takeBack(ctx, rec, c.overQuota(ctx, spec.Name, err))
	}
	c.saw(m)
	c.made.change(m.Name, func(origin) origin { return origin{image: spec.Image, branchable: spec.Branchable} })
	made := m
	err = c.confirmed(ctx, rec, made, func() (err error) {
		if start {
			m, err = c.boot(ctx, spec)
		}
		return c.pullHint(spec, c.overQuota(ctx, spec.Name, err))
	})
	if err != nil {
		return fleet.Machine{}, c.takeBack(ctx, rec, madeIt(err))
	}
	return m, nil
}

// confirmed confirms the record of m and brings it up. A machine to be kept loses its
// record by that, so it is confirmed last: until then a failure is on record.
func (c *call) confirmed(ctx context.Context, rec store.Record, m fleet.Machine, bringUp func() error) error {
	if rec.Kind == store.Persistent {
		if err := bringUp(); err != nil {
			return err
		}
		return c.records.Confirm(ctx, rec, m.ID, m.CreatedAt)
	}
	if err := c.records.Confirm(ctx, rec, m.ID, m.CreatedAt); err != nil {
		return err
	}
	return bringUp()
}

// boot starts a new machine and waits until it is ready.
func (c *call) boot(ctx context.Context, spec fleet.Spec) (fleet.Machine, error) {
	c.stage("starting %s (pulling %s if it is not cached)", spec.Name, spec.Image)
	m, err := c.fleet.Start(ctx, spec.Name, fleet.StartOptions{Branchable: spec.Branchable})
	if err != nil {
		return m, err
	}
	c.stage("waiting until %s answers", spec.Name)
	return m, c.waitReady(ctx, spec.Name, c.opts.Limits.ReadyTimeout)
}

// admit completes the wish and refuses what cannot come true before anything is
// recorded or sent.
func (c *call) admit(ctx context.Context, spec *fleet.Spec, kind store.Kind) error {
	limits := c.opts.Limits
	if spec.Name == "" {
		spec.Name = c.madeUpName("")
	}
	if err := fleet.CheckName(spec.Name); err != nil {
		return err
	}
	image, err := c.checkImage(spec.Image)
	if err != nil {
		return err
	}
	spec.Image = image
	info, err := c.fleet.Info(ctx)
	if err != nil {
		return err
	}
	if err := supports(info, *spec); err != nil {
		return err
	}
	spec.CPUs, spec.MemoryMB = cmp.Or(spec.CPUs, limits.CPUs), cmp.Or(spec.MemoryMB, limits.MemoryMB)
	if len(spec.Cmd) == 0 && info.Can.Cmd {
		spec.Cmd = slices.Clone(idle)
	}
	if kind != store.Persistent {
		spec.TTL, spec.AutoStop = limits.TTL, limits.AutoStop
	}
	return nil
}

// supports refuses what this fleet or release cannot do, rather than dropping it.
func supports(info fleet.Info, spec fleet.Spec) error {
	refuse := func(what, next string) error {
		return &fleet.Error{Code: fleet.CodeUnsupported, Op: "create machine " + spec.Name, Why: info.Engine + " " + info.Version + " cannot " + what, Next: next}
	}
	switch {
	case len(spec.Mounts) > 0 && !info.Can.Mounts:
		return refuse("mount host directories", "leave mounts out and use write-file")
	case spec.OverlayGB > 0 && !info.Can.Overlay:
		return refuse("size the overlay disk", "leave overlayGb out")
	case len(spec.Cmd) > 0 && !info.Can.Cmd:
		return refuse("set the workload's command", "leave cmd out and use run-command")
	case spec.Branchable && !info.Can.Branch:
		return refuse("branch machines", "leave branchable out")
	case spec.Network.Blocked() && isRegistryImage(spec.Image) && !info.Can.HostPull:
		return refuse("pull "+spec.Image+" with blocked egress, since it pulls inside the guest",
			`pass network "open", or allowHosts with the image's registry and its blob hosts`)
	}
	return nil
}

// checkFree refuses a name that the caller chose and that is taken. So a machine
// of that name which is seen after a lost answer is most likely the one asked for. (In
// the cloud a mark tells that, and the service refuses a name that is taken.) Of another
// principal's machine it tells no more than that.
func (c *call) checkFree(ctx context.Context, name string) error {
	m, err := whole(c.fleet).Get(ctx, name)
	switch {
	case fleet.CodeOf(err) == fleet.CodeNotFound:
		return nil
	case err != nil:
		return err
	}
	taken := &fleet.Error{Code: fleet.CodeConflict, Op: "create machine " + name, Why: "a machine of that name exists (state " + string(m.State) + ")",
		Next: "use it, choose another name, or delete it first"}
	if rec, recorded, err := c.opts.Store.Find(ctx, c.key(name)); err == nil && recorded && rec.Phase != store.Ready { // on its way here or out
		taken = explain(&store.ExistsError{Record: rec})
		taken.Op = "create machine " + name
	}
	if p, ok := c.fleet.(private); ok && p.may(ctx, taken.Op, name) != nil {
		taken.Why, taken.Next = "a machine of that name exists", "choose another name"
	}
	return taken
}
