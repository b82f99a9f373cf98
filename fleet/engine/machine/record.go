//go:build unix

package machine

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// States of a machine.
const (
	Created     = "created"  // never started
	Starting    = "starting" // on disk only: a start is going on, or was cut short
	Running     = "running"
	Stopped     = "stopped"
	Unreachable = "unreachable" // it runs, and its agent is silent
)

// Spec is the wish for a machine.
type Spec struct {
	Name       string   `json:"name"`
	Image      string   `json:"image"` // as it was asked for; empty is the builtin
	CPUs       int      `json:"cpus"`
	MemoryMB   int      `json:"memoryMb"`
	DiskGB     int      `json:"diskGb"`
	Network    bool     `json:"network"`
	AllowHosts []string `json:"allowHosts,omitzero"` // none and an empty list differ
	AllowCIDRs []string `json:"allowCidrs,omitzero"`
	Ports      []Port   `json:"ports,omitempty"`
	Entrypoint []string `json:"entrypoint,omitempty"`
	Cmd        []string `json:"cmd,omitempty"`
	Env        []string `json:"env,omitempty"` // NAME=value
	Dir        string   `json:"dir,omitempty"`
}

// Port is published on the loopback of this computer.
type Port struct {
	Host  int `json:"host"`
	Guest int `json:"guest"`
}

// Record is a machine as it stands on disk.
type Record struct {
	Spec
	State     string    `json:"state"`
	CreatedAt time.Time `json:"createdAt"`
	UUID      string    `json:"uuid,omitempty"`   // of the QEMU that was started last
	Digest    string    `json:"digest,omitempty"` // of its image, from the first start on
	Manifest  string    `json:"manifest,omitempty"`
	Process   *process  `json:"process,omitempty"` // of QEMU, while it runs
}

// PID returns the hypervisor's, 0 when there is none.
func (r Record) PID() int {
	if r.Process == nil {
		return 0
	}
	return r.Process.PID
}

// Kind is what kind of refusal an Error is.
type Kind int

// Kinds of refusals.
const (
	NotFound Kind = iota + 1
	Conflict
	Unsupported
	PortInUse
	NotRunning
)

// Error is a refusal that is not a failure of this program.
type Error struct {
	Kind Kind
	Text string
}

func (e *Error) Error() string { return e.Text }

// write replaces the record on disk with one rename; vm.mu is held.
func (vm *machine) write() error {
	data, err := json.MarshalIndent(vm.record, "", "  ")
	if err != nil {
		return err
	}
	file := filepath.Join(vm.dir, "machine.json")
	if err := os.WriteFile(file+".new", append(data, '\n'), 0o600); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}

// change edits the record, on disk first.
func (vm *machine) change(edit func(*Record)) error {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	before := vm.record
	edit(&vm.record)
	if err := vm.write(); err != nil {
		vm.record = before
		return err
	}
	return nil
}

func (vm *machine) name() string { return filepath.Base(vm.dir) }

// load finds the machines on disk. Folders without a record, of a create or a
// delete that was cut short, are removed.
func (m *Manager) load() error {
	root := filepath.Join(m.opts.Data, "machines")
	dirs, err := os.ReadDir(root)
	if err != nil {
		return err
	}
	for _, d := range dirs {
		dir := filepath.Join(root, d.Name())
		data, err := os.ReadFile(filepath.Join(dir, "machine.json"))
		if errors.Is(err, fs.ErrNotExist) {
			m.opts.Log.Info("half-made machine removed", "machine", d.Name())
			if err := os.RemoveAll(dir); err != nil {
				return err
			}
			continue
		}
		vm := newMachine(dir)
		if err == nil {
			err = json.Unmarshal(data, &vm.record)
		}
		if err != nil || vm.record.Name != d.Name() {
			// Somebody's data: a machine that cannot be read is left alone, and told of.
			m.opts.Log.Error("machine not readable; it is left as it is", "dir", dir, "err", err)
			continue
		}
		if err := m.attach(vm); err != nil {
			return fmt.Errorf("machine %s: %w", d.Name(), err)
		}
		m.mu.Lock() // the machines before are looked after already
		m.machines[d.Name()] = vm
		m.mu.Unlock()
	}
	return nil
}

// attach takes over a machine that an earlier process left. A start that was cut
// short is undone, and so is one from before this computer booted.
func (m *Manager) attach(vm *machine) error {
	r := &vm.record
	if r.State == Running && r.Process.alive(m.host.bootID) {
		m.opts.Log.Info("machine found running", "machine", r.Name, "pid", r.Process.PID)
		if len(r.Ports) > 0 {
			ports, err := m.publish(vm, r.Ports)
			if err != nil {
				m.opts.Log.Warn("ports not published", "machine", r.Name, "err", err)
			}
			vm.ports = ports
		}
		m.take(vm, r.Process, true)
		return nil
	}
	if r.State == Created || r.State == Stopped {
		return nil
	}
	if err := r.Process.kill(m.host.bootID, r.UUID); err != nil {
		return err
	}
	r.State, r.Process = Stopped, nil
	if _, err := os.Stat(filepath.Join(vm.dir, "disk.raw")); err != nil {
		r.State = Created // the disk is made right after the state
	}
	return vm.write()
}

// Digests tells which machines of a data directory are made of which image. It
// only reads, and needs no manager.
func Digests(data string) (map[string][]string, error) {
	files, err := filepath.Glob(filepath.Join(data, "machines", "*", "machine.json"))
	if err != nil {
		return nil, err
	}
	users := map[string][]string{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue // deleted meanwhile
		}
		var r Record
		if err == nil {
			err = json.Unmarshal(text, &r)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		users[r.Digest] = append(users[r.Digest], r.Name)
	}
	return users, nil
}
