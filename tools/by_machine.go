package tools

import "sync"

// byMachine is what a session remembers of machines, by name.
type byMachine[T any] struct {
	mu   sync.Mutex
	held map[string]T
}

// of returns what is remembered of a machine: zero when nothing is.
func (b *byMachine[T]) of(name string) T {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.held[name]
}

// change replaces what is remembered of a machine.
func (b *byMachine[T]) change(name string, to func(T) T) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.held == nil {
		b.held = map[string]T{}
	}
	b.held[name] = to(b.held[name])
}

// take returns what is remembered of a machine, and forgets it.
func (b *byMachine[T]) take(name string) T {
	b.mu.Lock()
	defer b.mu.Unlock()
	v := b.held[name]
	delete(b.held, name)
	return v
}

// any reports whether something holds of what is remembered of a machine.
func (b *byMachine[T]) any(holds func(T) bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, v := range b.held {
		if holds(v) {
			return true
		}
	}
	return false
}
