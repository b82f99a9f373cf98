package fleettest

import (
	"context"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"sync"
	"time"

	"smol-mcp/fleet"
)

// Runner runs the commands of one machine. [Guest] is one; it also keeps
// the machine's files.
type Runner interface {
	Exec(ctx context.Context, cmd fleet.Command) (fleet.Result, error)
}

// keeper is a Runner whose commands see the files that are uploaded.
type keeper interface {
	ReadFile(name string) ([]byte, error)
	WriteFile(name string, r io.Reader) (int64, error)
}

// MemoryOptions say what a [Memory] is like. The zero value is a local fleet
// that can do everything, with machines that know the programs true, false,
// echo, cat and sleep.
type MemoryOptions struct {
	Target string      // "local" when empty
	Info   *fleet.Info // nil: engine "memory" that can do everything

	// Exec runs commands. Nil: the machine's guest does.
	Exec func(ctx context.Context, machine string, cmd fleet.Command) (fleet.Result, error)
	// Guest makes the runner of a machine at its first use, as [Guests] does. Nil:
	// a few programs are imitated, and files are kept in a map.
	Guest func(machine string) (Runner, error)
}

// Memory is a fleet whose machines are entries of a map. Faults can be set on its
// calls, and tests can look at and change everything.
type Memory struct {
	opts MemoryOptions

	mu       sync.Mutex
	machines map[string]*memoryMachine
	faults   []*activeFault
	calls    []Call
	counter  int64
	closed   bool
}

type memoryMachine struct {
	fleet.Machine
	branchable bool
	parent     string // of a branch
	runner     Runner
	files      map[string][]byte
	console    []string
	consoleID  int64 // changes when the console is rotated
}

// NewMemory returns an empty fleet.
func NewMemory(opts MemoryOptions) *Memory {
	if opts.Target == "" {
		opts.Target = "local"
	}
	return &Memory{opts: opts, machines: make(map[string]*memoryMachine)}
}

var _ fleet.Fleet = (*Memory)(nil)

// Target is the target of the options.
func (m *Memory) Target() string { return m.opts.Target }

// Info tells what the options say.
func (m *Memory) Info(ctx context.Context) (info fleet.Info, err error) {
	err = m.call(ctx, "Info", "", func() error {
		info = m.info()
		return nil
	})
	return info, err
}

func (m *Memory) info() fleet.Info {
	if m.opts.Info != nil {
		return *m.opts.Info
	}
	return fleet.Info{Engine: "memory", Version: "99.0.0", Can: fleet.Features{
		Branch: true, BranchRunning: true, Suspend: true, Pull: true, HostPull: true, Mounts: true, Overlay: true, Cmd: true,
	}}
}

// List returns the machines by name.
func (m *Memory) List(ctx context.Context) (list []fleet.Machine, err error) {
	err = m.call(ctx, "List", "", func() error {
		list = m.Machines()
		return nil
	})
	return list, err
}

// Get returns a machine.
func (m *Memory) Get(ctx context.Context, name string) (got fleet.Machine, err error) {
	err = m.on(ctx, "Get", name, func(vm *memoryMachine) error {
		got = vm.Machine
		return nil
	})
	return got, err
}

// Create makes a machine.
func (m *Memory) Create(ctx context.Context, spec fleet.Spec) (made fleet.Machine, err error) {
	err = m.call(ctx, "Create", spec.Name, func() error {
		if err := fleet.CheckName(spec.Name); err != nil {
			return err
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		vm, err := m.add(spec.Name, "create machine "+spec.Name)
		if err != nil {
			return err
		}
		vm.Image, vm.CPUs, vm.MemoryMB, vm.Ports = spec.Image, spec.CPUs, spec.MemoryMB, spec.Ports
		vm.AllowHosts, vm.AllowCIDRs = spec.Network.AllowHosts, spec.Network.AllowCIDRs
		vm.Network = networkText(spec.Network)
		vm.branchable = spec.Branchable
		if spec.TTL > 0 && m.opts.Target != "local" {
			vm.ExpiresAt = vm.CreatedAt.Add(spec.TTL)
		}
		made = vm.Machine
		return nil
	})
	return made, err
}

// add makes an empty machine. m.mu is held.
func (m *Memory) add(name, op string) (*memoryMachine, error) {
	if _, taken := m.machines[name]; taken {
		return nil, fleet.Errorf(fleet.CodeConflict, op, "machine '%s' already exists", name)
	}
	m.counter++
	vm := &memoryMachine{files: make(map[string][]byte), consoleID: m.counter}
	vm.ID, vm.Name, vm.CreatedAt = name, name, time.Now().Truncate(time.Second)
	if m.opts.Target != "local" {
		vm.ID = fmt.Sprintf("mach-%06d", m.counter)
	}
	vm.enter(fleet.Created)
	m.machines[name] = vm
	return vm, nil
}

func (vm *memoryMachine) enter(s fleet.State) {
	vm.State, vm.Word, vm.PID = s, string(s), 0
	if s == fleet.Running || s == fleet.Unreachable {
		vm.PID = 1000 + int(vm.consoleID)
	}
}

// boot makes a machine run, as start and commands do.
func (vm *memoryMachine) boot() {
	if vm.State != fleet.Running {
		vm.enter(fleet.Running)
		vm.console = append(vm.console, "boot "+vm.Name)
	}
}

// Start boots a machine.
func (m *Memory) Start(ctx context.Context, name string, opts fleet.StartOptions) (got fleet.Machine, err error) {
	err = m.on(ctx, "Start", name, func(vm *memoryMachine) error {
		vm.boot()
		vm.branchable = vm.branchable || opts.Branchable
		got = vm.Machine
		return nil
	})
	return got, err
}

// Stop stops or suspends a machine.
func (m *Memory) Stop(ctx context.Context, name string, opts fleet.StopOptions) (got fleet.Machine, err error) {
	err = m.on(ctx, "Stop", name, func(vm *memoryMachine) error {
		switch {
		case opts.KeepMemory && !m.info().Can.Suspend:
			return fleet.Errorf(fleet.CodeUnsupported, "suspend machine "+name, "this fleet cannot")
		case opts.KeepMemory:
			vm.enter(fleet.Suspended)
		case vm.State != fleet.Created && vm.State != fleet.Failed:
			vm.enter(fleet.Stopped)
			if guest, ok := vm.runner.(interface{ Stop() error }); ok {
				if err := guest.Stop(); err != nil { // its processes, and /tmp
					return err
				}
			}
		}
		got = vm.Machine
		return nil
	})
	return got, err
}

// Delete removes a machine that has no branches.
func (m *Memory) Delete(ctx context.Context, name string) (fleet.Deletion, error) {
	var gone Runner
	err := m.on(ctx, "Delete", name, func(vm *memoryMachine) error {
		var children []string
		for _, other := range m.machines {
			if other.parent == vm.Name {
				children = append(children, other.Name)
			}
		}
		if len(children) > 0 {
			slices.Sort(children)
			return fleet.Errorf(fleet.CodeConflict, "delete machine "+name, "it has branches: %v", children)
		}
		delete(m.machines, vm.Name)
		gone = vm.runner
		return nil
	})
	if c, ok := gone.(io.Closer); ok {
		_ = c.Close() // kills what still runs in the guest
	}
	return fleet.Deletion{}, err
}

// Branch copies a running, branchable machine with its files.
func (m *Memory) Branch(ctx context.Context, source string, spec fleet.BranchSpec) (made fleet.Machine, err error) {
	op := "branch machine " + source + " to " + spec.Name
	if err := fleet.CheckName(spec.Name); err != nil {
		return made, err
	}
	err = m.on(ctx, "Branch", source, func(vm *memoryMachine) error {
		switch {
		case !m.info().Can.Branch:
			return fleet.Errorf(fleet.CodeUnsupported, op, "this fleet cannot")
		case vm.State != fleet.Running || !vm.branchable:
			return fleet.Errorf(fleet.CodeConflict, op, "the source is %s, and branchable is %v", vm.State, vm.branchable)
		}
		child, err := m.add(spec.Name, op)
		if err != nil {
			return err
		}
		if err := m.copyInto(child, vm); err != nil {
			delete(m.machines, spec.Name)
			return fleet.Errorf(fleet.CodeInternal, op, "%w", err)
		}
		if spec.StopSource {
			vm.enter(fleet.Suspended)
		}
		made = child.Machine
		return nil
	})
	return made, err
}

func (m *Memory) copyInto(child, source *memoryMachine) error {
	own := child.Machine
	child.Machine, child.parent = source.Machine, source.Name
	child.ID, child.Name, child.CreatedAt, child.State = own.ID, own.Name, own.CreatedAt, own.State
	for path, data := range source.files {
		child.files[path] = data
	}
	child.boot()
	if err := m.furnish(source); err != nil {
		return err
	}
	if err := m.furnish(child); err != nil {
		return err
	}
	from, hasDir := source.runner.(interface{ Dir() string })
	to, alsoHas := child.runner.(interface{ Dir() string })
	if !hasDir || !alsoHas {
		return nil
	}
	for _, dir := range []string{"/root/.", "/tmp/.", "/workspace/."} {
		if out, err := exec.Command("cp", "-a", from.Dir()+dir, to.Dir()+dir).CombinedOutput(); err != nil {
			return fmt.Errorf("copy %s: %w: %s", dir, err, out)
		}
	}
	return nil
}

// Close forgets nothing; calls after it fail.
func (m *Memory) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	return nil
}

func networkText(n fleet.Network) string {
	switch {
	case len(n.AllowHosts)+len(n.AllowCIDRs) > 0:
		text := ""
		for _, a := range append(slices.Clone(n.AllowHosts), n.AllowCIDRs...) {
			text += "," + a
		}
		return "allow(" + text[1:] + ")"
	case n.Open:
		return "open"
	}
	return "blocked"
}
