// Smol-mcp-http is smol-mcp http: the same server under the name that it has had.
package main

import (
	"os"

	"smol-mcp/cmd/cli"
)

func main() {
	os.Exit(cli.MainHTTP())
}
