// Package lines has what smol-guest prints on its console for the engine to see,
// before the two can talk.
package lines

const (
	// Waiting is printed when the guest waits for an engine, with nothing left of an
	// earlier conversation.
	Waiting = "smol-guest: waiting"

	// Probe is printed when the guest was only asked to boot.
	Probe = "smol-guest: it boots"
)
