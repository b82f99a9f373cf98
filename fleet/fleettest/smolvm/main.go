// Command smolvm is a stand-in for the real smolvm in tests: the same API,
// with machines that are directories. See [fleettest.SmolvmMain].
package main

import (
	"os"

	"smol-mcp/fleet/fleettest"
)

func main() { os.Exit(fleettest.SmolvmMain(os.Args[1:], os.Stdout, os.Stderr)) }
