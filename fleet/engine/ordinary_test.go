//go:build linux

package engine_test

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"smol-mcp/fleet/engine/kernel"
)

// nobody is a user without rights on any Linux.
const nobody = 65534

// slice is what of this package's tests an ordinary user repeats: machines made from
// templates, commands, files, ports, an engine that is killed, and the server's own
// start of it. SMOL_TEST_ORDINARY names others, as -run does; '.' is all.
const slice = "^(TestContract|TestKilledInExec|TestPorts|TestWorkedExample)$/^(Life|Exec|Files|Parts)$"

// All that root can do here, an ordinary user can too.
func TestOrdinaryUser(t *testing.T) {
	needMachines(t)
	if os.Geteuid() != 0 {
		t.Skip("only root can become somebody else; an ordinary user runs the rest of these tests anyhow")
	}
	must(t, build("smol-mcp"))
	home, err := os.MkdirTemp("", "u") // short, for the sockets
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(home) })
	release := filepath.Base(filepath.Dir(shared.kernel))
	at := filepath.Join(home, "cache", "smol-engine", "kernel", release)
	k, err := kernel.Find(shared.kernel, "")
	must(t, err)
	must(t, kernel.CopyModules(k.Modules, filepath.Join(at, "modules")))
	copyTo(t, k.Image, filepath.Join(at, "vmlinuz"))
	for _, program := range []string{"smol-guest", "smol-engine", "smol-mcp"} {
		copyTo(t, filepath.Join(shared.programs, program), filepath.Join(home, "bin", program))
	}
	exe, err := os.Executable()
	must(t, err)
	copyTo(t, exe, filepath.Join(home, "bin", "tests"))
	must(t, os.Mkdir(filepath.Join(home, "tmp"), 0o700))
	must(t, filepath.WalkDir(home, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Chown(path, nobody, nobody)
	}))
	which := slice
	if more := os.Getenv("SMOL_TEST_ORDINARY"); more != "" {
		which = more
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(home, "bin", "tests"), "-test.run", which, "-test.v", "-test.timeout", "20m")
	cmd.Dir = home
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + home, "TMPDIR=" + filepath.Join(home, "tmp"), "XDG_CACHE_HOME=" + filepath.Join(home, "cache"),
		"SMOL_TEST_PROGRAMS=" + filepath.Join(home, "bin"), "SMOL_TEST_ACCEL=" + os.Getenv("SMOL_TEST_ACCEL"),
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := cmd.CombinedOutput()
	passed, skipped := verdicts(string(out))
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if which == slice && (len(skipped) > 0 || len(passed) < 4) {
		t.Errorf("passed %q, skipped %q", passed, skipped)
	}
	t.Logf("passed %q, skipped %q", passed, skipped)
	if n := hypervisors(home); n > 0 {
		t.Errorf("%d processes are left", n)
	}
	if left, _ := filepath.Glob(filepath.Join(home, "tmp", "*")); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

// verdicts reads which tests passed and which were skipped.
func verdicts(out string) (passed, skipped []string) {
	for line := range strings.Lines(out) {
		var test string
		if n, _ := fmt.Sscanf(line, "--- PASS: %s", &test); n == 1 {
			passed = append(passed, test)
		}
		if n, _ := fmt.Sscanf(line, "--- SKIP: %s", &test); n == 1 {
			skipped = append(skipped, test)
		}
	}
	return passed, skipped
}

// copyTo copies a program or a kernel.
func copyTo(t *testing.T, from, to string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(to), 0o755))
	data, err := os.ReadFile(from)
	must(t, err)
	must(t, os.WriteFile(to, data, 0o755))
}
