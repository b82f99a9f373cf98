// Command smolcloud is a stand-in for smol cloud in tests: the same API, with
// machines that are directories. See [fleettest.CloudMain].
package main

import (
	"os"

	"smol-mcp/fleet/fleettest"
)

func main() { os.Exit(fleettest.CloudMain(os.Stdout, os.Stderr)) }
