//go:build linux

// Smol-guest is PID 1 inside the machines of smol-engine; see package guest.
package main

import (
	"fmt"
	"os"

	"smol-mcp/fleet/engine/guest"
)

func main() {
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "smol-guest: runs inside a machine, as its first process; smol-engine puts it there")
		os.Exit(2)
	}
	guest.Main()
}
