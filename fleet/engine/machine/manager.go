//go:build unix

// Package machine keeps machines: each is a QEMU process of its own that outlives
// this one, and a folder by which it is found again. [Open] finds them,
// [Manager.Create] and [Manager.Start] make more.
//
// On disk:
//
//	DATA/lock                       held by the one process that may change the rest, and names it
//	DATA/machines/NAME/
//	    machine.json                the record; a folder without one is half made and removed
//	    disk.raw                    what the machine wrote, an ext4 that lies over its image
//	    console.log, console.log.1  its console, each bounded
//	    qemu.log                    what QEMU printed
//	    qmp.sock, agent.sock, console.sock, net.sock
//	                                QEMU's ends; whoever connects next is served
//	CACHE/boot/                     kernel and initramfs as QEMU takes them
//	CACHE/templates/KEY/            memory and device state of a guest that waits; see template.go
//
// A record's state is written before QEMU is started and after the guest has
// answered, so that a start that was cut short is seen as such.
package machine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sort"
	"sync"
	"time"

	"smol-mcp/fleet/engine/image"
	"smol-mcp/fleet/engine/kernel"
)

// Options say where things are.
type Options struct {
	Data   string // directory of machines
	Listen string // where the engine answers, for whoever else wants Data
	Cache  string // directory of what can be made again
	QEMU   string // program; empty looks on PATH
	Kernel string // path; empty looks in Cache, then in /boot
	Guest  string // the smol-guest program; empty looks beside this program, then on PATH
	Accel  string // kvm, hvf or tcg; empty finds out by booting
	Cold   bool   // boot every machine; keep no templates
	Images *image.Store
	Log    *slog.Logger
}

// Manager owns the machines of one data directory. Its methods may be called at
// once from many goroutines; what changes a machine is done one after another.
type Manager struct {
	opts Options
	host host
	lock *os.File

	life context.Context // ends with Close
	end  context.CancelFunc
	work sync.WaitGroup

	templates templates

	mu       sync.Mutex
	machines map[string]*machine
}

// host is what this computer has to run machines with.
type host struct {
	qemu    string // path
	version string // of QEMU
	accel   string // kvm, hvf or tcg
	why     string // why not the hardware, when tcg
	boot    kernel.Boot
	bootID  string // of the computer itself: differs after each of its boots
}

// machine is one machine in memory.
type machine struct {
	dir  string
	life sync.Mutex // held by what changes the machine, one at a time

	mu     sync.Mutex
	record Record
	gone   bool                    // deleted
	going  int                     // deletes that go on
	wanted string                  // digest of the image that a start is about to use
	abort  context.CancelCauseFunc // of a start that goes on
	link   *link
	ports  *forwards
	held   *hold
	care   sync.WaitGroup // what is done for its QEMUs; it may write to dir

	console consoleLog
}

func newMachine(dir string) *machine { return &machine{dir: dir, console: consoleLog{dir: dir}} }

// Open takes the data directory, looks what this computer can do, and finds the
// machines that are there. It fails when another process has the directory.
func Open(ctx context.Context, opts Options) (*Manager, error) {
	m := &Manager{opts: opts, machines: map[string]*machine{}}
	if err := os.MkdirAll(filepath.Join(opts.Data, "machines"), 0o700); err != nil {
		return nil, err
	}
	var err error
	if m.lock, err = lockFile(ctx, filepath.Join(opts.Data, "lock"), holder{PID: os.Getpid(), Listen: opts.Listen}); err != nil {
		return nil, err
	}
	m.life, m.end = context.WithCancel(context.Background())
	if m.host, err = look(ctx, opts); err == nil {
		m.templates = templates{dir: filepath.Join(opts.Cache, "templates"), busy: map[string]*sync.Mutex{}}
		err = errors.Join(m.load(), m.collectTemplates())
	}
	if err != nil {
		m.end()
		m.work.Wait()
		m.lock.Close()
		return nil, err
	}
	m.work.Go(m.tend)
	return m, nil
}

// Close lets go of the machines, which go on.
func (m *Manager) Close() error {
	m.Park()
	m.end()
	m.mu.Lock()
	for _, vm := range m.machines {
		vm.mu.Lock()
		vm.letGo()
		vm.mu.Unlock()
	}
	m.mu.Unlock()
	m.work.Wait()
	return m.lock.Close()
}

// letGo drops what this process holds of a machine; mu is held.
func (vm *machine) letGo() {
	if vm.link != nil {
		vm.link.close()
		vm.link = nil
	}
	if vm.ports != nil {
		vm.ports.close()
		vm.ports = nil
	}
	if vm.held != nil {
		vm.held.cancel()
		vm.held = nil
	}
}

// Accel returns what runs machines, and why it is not the hardware when it
// is tcg.
func (m *Manager) Accel() (accel, why string) { return m.host.accel, m.host.why }

// Isolation says in two words what a machine is kept in by.
func (m *Manager) Isolation() string {
	if m.host.accel == "tcg" {
		return "emulated VM"
	}
	return "hardware VM"
}

// QEMU returns the version of the hypervisor and the release of the guests' kernel.
func (m *Manager) QEMU() (version, kernelRelease string) { return m.host.version, m.host.boot.Release }

// tend notices until Close when a machine has ended by itself.
func (m *Manager) tend() {
	tick := time.NewTicker(2 * time.Second)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-m.life.Done():
			return
		}
		for _, vm := range m.all() {
			m.seen(vm)
		}
	}
}

func (m *Manager) all() []*machine {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make([]*machine, 0, len(m.machines))
	for _, vm := range m.machines {
		out = append(out, vm)
	}
	return out
}

// refresh notices that QEMU has ended; vm.mu is held. A start that goes on looks
// after its own QEMU.
func (m *Manager) refresh(vm *machine) {
	r := &vm.record
	if vm.gone || r.State != Running || r.Process.alive(m.host.bootID) {
		return
	}
	m.opts.Log.Info("machine ended by itself", "machine", r.Name)
	vm.letGo()
	r.State, r.Process = Stopped, nil
	if err := vm.write(); err != nil {
		m.opts.Log.Warn("record not written", "machine", r.Name, "err", err)
	}
}

// find returns a machine by name.
func (m *Manager) find(name string) (*machine, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	vm := m.machines[name]
	if vm == nil {
		return nil, &Error{NotFound, fmt.Sprintf("machine '%s' not found", name)}
	}
	return vm, nil
}

// claim finds a machine and takes its lifecycle lock, which the returned function
// lets go.
func (m *Manager) claim(name string) (*machine, func(), error) {
	vm, err := m.find(name)
	if err != nil {
		return nil, nil, err
	}
	vm.life.Lock()
	vm.mu.Lock()
	defer vm.mu.Unlock()
	if vm.gone {
		vm.life.Unlock()
		return nil, nil, &Error{NotFound, fmt.Sprintf("machine '%s' not found", name)}
	}
	m.refresh(vm)
	return vm, vm.life.Unlock, nil
}

// Get returns the record of a machine. One whose guest does not answer within
// three seconds is Unreachable.
func (m *Manager) Get(ctx context.Context, name string) (Record, error) {
	vm, err := m.find(name)
	if err != nil {
		return Record{}, err
	}
	r := m.seen(vm)
	if r.State == Running && !m.answers(ctx, vm) {
		if r = m.seen(vm); r.State == Running {
			r.State = Unreachable
		}
	}
	return r, nil
}

// answers reports whether a guest does within three seconds.
func (m *Manager) answers(ctx context.Context, vm *machine) bool {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	return m.ping(ctx, vm) == nil
}

// seen returns the record as the process table confirms it.
func (m *Manager) seen(vm *machine) Record {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	m.refresh(vm)
	return vm.record
}

// List returns the records of all machines in order of name. Guests are asked
// all at once.
func (m *Manager) List(ctx context.Context) []Record {
	all := m.all()
	out := make([]Record, len(all))
	var wg sync.WaitGroup
	for i, vm := range all {
		wg.Go(func() {
			r, err := m.Get(ctx, vm.name())
			if err != nil {
				return // deleted meanwhile
			}
			out[i] = r
		})
	}
	wg.Wait()
	kept := out[:0]
	for _, r := range out {
		if r.Name != "" {
			kept = append(kept, r)
		}
	}
	sort.Slice(kept, func(i, j int) bool { return kept[i].Name < kept[j].Name })
	return kept
}

// Count returns how many machines there are, and how many of them run.
func (m *Manager) Count() (total, running int) {
	for _, vm := range m.all() {
		total++
		if m.seen(vm).State == Running {
			running++
		}
	}
	return total, running
}

// ImageInUse reports whether a machine has the image of a digest under its disk.
func (m *Manager) ImageInUse(digest string) bool {
	for _, vm := range m.all() {
		vm.mu.Lock()
		used := vm.record.Digest == digest || vm.wanted == digest
		vm.mu.Unlock()
		if used {
			return true
		}
	}
	return false
}
