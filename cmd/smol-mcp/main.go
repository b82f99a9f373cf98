// Smol-mcp is an MCP server that gives agents machines of their own to work in.
//
// Without a command it serves one client on standard input and output. Start
// reading at [serve], which wires a session together, and [life], which ends
// it; [settings] is the table of everything that can be set, [commands] the
// table of everything that can be asked of the program.
package main

import "os"

func main() {
	os.Exit(Main())
}
