package reaper_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// TestMain makes the test binary a server process when a test asks for one.
func TestMain(m *testing.M) {
	if role := os.Getenv("SMOL_MCP_TEST_ROLE"); role != "" {
		if err := work(role); err != nil {
			fmt.Fprintln(os.Stderr, role+":", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	code := m.Run()
	if dir := os.Getenv(workerDir); dir != "" {
		os.RemoveAll(filepath.Clean(dir))
	}
	os.Exit(code)
}

// workerDir names the directory that holds the worker's program.
const workerDir = "SMOL_MCP_TEST_WORKER_DIR"
