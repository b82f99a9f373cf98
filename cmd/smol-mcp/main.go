// Smol-mcp is an MCP server that gives agents machines of their own to work in. Package cli
// is all of it.
package main

import (
	"os"

	"smol-mcp/cmd/cli"
)

func main() {
	os.Exit(cli.Main())
}
