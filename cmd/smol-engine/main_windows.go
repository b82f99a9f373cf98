// Smol-engine is the built-in engine. It does not run on Windows itself.
package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "smol-engine: it does not run on Windows; run smol-mcp and smol-engine inside WSL 2")
	os.Exit(1)
}
