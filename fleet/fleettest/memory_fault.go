package fleettest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"smol-mcp/fleet"
)

// Call is one call that a [Memory] received.
type Call struct {
	Method  string // as in fleet.Fleet: Create, Exec, ...
	Machine string // empty for List and Info
}

// Fault is what goes wrong with calls of a [Memory]. Empty fields match any call.
type Fault struct {
	Method  string
	Machine string
	Nth     int // the first matching call that it hits, from 1; 0 is 1
	Times   int // how many calls it hits from there; 0 all

	Hook      func(ctx context.Context) // called first
	Latency   time.Duration             // waited for next; a cancelled call ends here
	Err       error                     // the answer; the call is not carried out ...
	LostReply bool                      // ... unless it is lost on the way back; Err nil: UNREACHABLE, maybe done
}

type activeFault struct {
	Fault
	seen int // matching calls so far
}

// Fault sets a fault. Of several that match a call, the one set first hits it.
func (m *Memory) Fault(f Fault) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.faults = append(m.faults, &activeFault{Fault: f})
}

// ClearFaults takes all faults away.
func (m *Memory) ClearFaults() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.faults = nil
}

// Calls returns the calls so far, in order.
func (m *Memory) Calls() []Call {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.calls)
}

// Count returns how many calls of a method there were.
func (m *Memory) Count(method string) int {
	n := 0
	for _, c := range m.Calls() {
		if c.Method == method {
			n++
		}
	}
	return n
}

// Machines returns the machines by name, without counting as a call.
func (m *Memory) Machines() []fleet.Machine {
	m.mu.Lock()
	defer m.mu.Unlock()
	list := make([]fleet.Machine, 0, len(m.machines))
	for _, vm := range m.machines {
		list = append(list, vm.Machine)
	}
	slices.SortFunc(list, func(a, b fleet.Machine) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// Change alters what the fleet says about a machine; false when there is none.
func (m *Memory) Change(name string, change func(*fleet.Machine)) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	vm := m.machines[name]
	if vm != nil {
		change(&vm.Machine)
	}
	return vm != nil
}

// Print adds lines to a machine's console.
func (m *Memory) Print(name string, lines ...string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if vm := m.machines[name]; vm != nil {
		vm.console = append(vm.console, lines...)
	}
}

// RotateConsole empties a machine's console.
func (m *Memory) RotateConsole(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if vm := m.machines[name]; vm != nil {
		m.counter++
		vm.console, vm.consoleID = nil, m.counter
	}
}

// call counts a call, lets its fault happen, and carries it out.
func (m *Memory) call(ctx context.Context, method, machine string, do func() error) error {
	op := strings.TrimSpace(strings.ToLower(method) + " " + machine)
	f, err := m.received(ctx, op, Call{method, machine})
	if err != nil {
		return err
	}
	if f.Hook != nil {
		f.Hook(ctx)
	}
	if f.Latency > 0 {
		if err := wait(ctx, f.Latency); err != nil {
			return fleet.Errorf(fleet.CodeOf(err), op, "%w", err)
		}
	}
	if f.Err != nil && !f.LostReply {
		return f.Err
	}
	err = do()
	switch {
	case f.LostReply && f.Err != nil:
		return f.Err
	case f.LostReply:
		return &fleet.Error{Code: fleet.CodeUnreachable, Op: op, Why: "the connection broke: EOF", MaybeDone: true}
	}
	return err
}

// received counts the call and picks its fault.
func (m *Memory) received(ctx context.Context, op string, c Call) (Fault, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.calls = append(m.calls, c)
	if err := ctx.Err(); err != nil {
		return Fault{}, fleet.Errorf(fleet.CodeOf(err), op, "%w", err)
	}
	if m.closed {
		return Fault{}, fleet.Errorf(fleet.CodeUnavailable, op, "%w", errors.New("the fleet is closed"))
	}
	hit := Fault{}
	found := false
	for _, f := range m.faults {
		if f.Method != "" && f.Method != c.Method || f.Machine != "" && f.Machine != c.Machine {
			continue
		}
		f.seen++
		first := max(f.Nth, 1)
		if !found && f.seen >= first && (f.Times == 0 || f.seen < first+f.Times) {
			hit, found = f.Fault, true
		}
	}
	return hit, nil
}

// on is a call about a machine that exists, with m.mu held while it is carried out.
func (m *Memory) on(ctx context.Context, method, name string, do func(vm *memoryMachine) error) error {
	return m.call(ctx, method, name, func() error { return m.locked(name, method, do) })
}

func (m *Memory) locked(name, method string, do func(vm *memoryMachine) error) error {
	if err := fleet.CheckAnyName(name); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	vm := m.find(name)
	if vm == nil {
		return fleet.Errorf(fleet.CodeNotFound, strings.ToLower(method)+" machine "+name, "machine '%s' not found", name)
	}
	return do(vm)
}

// find returns the machine of a name or, where they differ, of an id. m.mu is held.
func (m *Memory) find(ref string) *memoryMachine {
	if vm := m.machines[ref]; vm != nil {
		return vm
	}
	for _, vm := range m.machines {
		if vm.ID == ref {
			return vm
		}
	}
	return nil
}

// Logs returns console lines. Its cursors are places in the console.
func (m *Memory) Logs(ctx context.Context, name string, q fleet.LogQuery) (page fleet.LogPage, err error) {
	op := "read the console of machine " + name
	if q.Tail < 1 || q.Tail > 10000 {
		return page, fleet.Errorf(fleet.CodeInvalid, op, "tail %d is not within 1..10000", q.Tail)
	}
	err = m.on(ctx, "Logs", name, func(vm *memoryMachine) error {
		at := max(0, len(vm.console)-q.Tail)
		newest := true
		if q.Cursor != "" {
			var of string
			var id int64
			var n int
			if _, err := fmt.Sscanf(q.Cursor, "%d.%d.%s", &id, &n, &of); err != nil || of != name || n < 0 {
				return fleet.Errorf(fleet.CodeInvalid, op, "the cursor is none of this machine's console")
			}
			if id == vm.consoleID && n <= len(vm.console) {
				at, newest = n, false
			} else {
				page.Gap = true
			}
		}
		page.Lines = slices.Clone(vm.console[at:])
		before, kept := page.Fit(q.MaxBytes, newest)
		page.Cursor = fmt.Sprintf("%d.%d.%s", vm.consoleID, at+before+kept, name)
		return nil
	})
	return page, err
}
