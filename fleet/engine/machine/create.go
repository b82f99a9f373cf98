//go:build unix

package machine

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Create makes a machine that is not started: a folder with a record.
func (m *Manager) Create(spec Spec) (Record, error) {
	if err := m.supports(spec); err != nil {
		return Record{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for name := range m.machines {
		if strings.EqualFold(name, spec.Name) { // file systems that fold names would mix them up
			return Record{}, &Error{Conflict, fmt.Sprintf("machine '%s' already exists", name)}
		}
	}
	vm := newMachine(filepath.Join(m.opts.Data, "machines", spec.Name))
	vm.record = Record{Spec: spec, State: Created, CreatedAt: time.Now()}
	if err := os.Mkdir(vm.dir, 0o700); errors.Is(err, os.ErrExist) {
		return Record{}, &Error{Conflict, fmt.Sprintf("machine '%s' already exists, and its record cannot be read: see %s", spec.Name, vm.dir)}
	} else if err != nil {
		return Record{}, err
	}
	if err := vm.write(); err != nil {
		return Record{}, errors.Join(err, os.RemoveAll(vm.dir))
	}
	m.machines[spec.Name] = vm
	return vm.record, nil
}

// supports refuses a wish that this computer cannot fulfil.
func (m *Manager) supports(spec Spec) error {
	if !spec.Networked() {
		return nil
	}
	if !streams(m.host.version) {
		return &Error{Unsupported, "a network needs QEMU 7.2 or later, and this is " + m.host.version + ": install a later one, or create the machine with network false and no allow-list"}
	}
	_, err := spec.policy()
	return err
}

// streams reports whether a QEMU can give a network card to another process, over a
// socket at which it goes on to listen.
func streams(version string) bool {
	var major, minor int
	n, _ := fmt.Sscanf(version, "%d.%d", &major, &minor)
	return n == 2 && (major > 7 || major == 7 && minor >= 2)
}

// Delete ends a machine at once and removes all of it. A start that goes on is cut
// short.
func (m *Manager) Delete(name string) error {
	vm, err := m.find(name)
	if err != nil {
		return err
	}
	vm.mu.Lock()
	vm.going++
	if vm.abort != nil {
		vm.abort(errDeleting)
	}
	vm.mu.Unlock()
	defer vm.deleted()
	vm, release, err := m.claim(name)
	if err != nil {
		return err
	}
	defer release()
	vm.mu.Lock()
	vm.letGo()
	r := vm.record
	vm.mu.Unlock()
	if err := r.Process.kill(m.host.bootID, r.UUID); err != nil {
		return fmt.Errorf("machine '%s' is still alive after shutdown; not removing: %w", name, err)
	}
	vm.care.Wait()
	// The record goes first: what is left of the folder then is nobody's.
	if err := os.Remove(filepath.Join(vm.dir, "machine.json")); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	vm.mu.Lock()
	vm.gone = true
	vm.mu.Unlock()
	err = os.RemoveAll(vm.dir)
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.machines, name)
	return err
}

// deleted lets starts go on that come after a delete, which may have failed.
func (vm *machine) deleted() {
	vm.mu.Lock()
	vm.going--
	vm.mu.Unlock()
}

var errDeleting = errors.New("the machine is being deleted")

// Stop asks the guest to end, and ends QEMU when it does not.
func (m *Manager) Stop(ctx context.Context, name string) (Record, error) {
	vm, release, err := m.claim(name)
	if err != nil {
		return Record{}, err
	}
	defer release()
	r := m.seen(vm)
	if r.State == Created || r.State == Stopped {
		return r, nil
	}
	m.powerOff(ctx, vm, r.Process)
	vm.mu.Lock()
	vm.letGo()
	vm.mu.Unlock()
	if err := r.Process.kill(m.host.bootID, r.UUID); err != nil {
		return Record{}, fmt.Errorf("machine '%s' may still be running: %w", name, err)
	}
	err = vm.change(func(r *Record) { r.State, r.Process = Stopped, nil })
	return m.seen(vm), err
}

// newUUID is random.
func newUUID() string {
	var b [16]byte
	rand.Read(b[:])
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
