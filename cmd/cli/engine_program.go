package cli

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// engineProgram finds the built-in engine as the local fleet does: beside this
// program, else on PATH.
func engineProgram() (string, error) {
	exe, err := os.Executable()
	if err == nil {
		exe, err = filepath.EvalSymlinks(exe)
	}
	if err == nil {
		if path, err := exec.LookPath(filepath.Join(filepath.Dir(exe), "smol-engine")); err == nil {
			return path, nil
		}
	}
	path, err := exec.LookPath("smol-engine")
	if err != nil {
		return "", errors.New("no smol-engine beside this program or on PATH: build all programs with CGO_ENABLED=0 go build -o bin/ ./cmd/...")
	}
	return filepath.Abs(path)
}

const setupHelp = `Looks what is missing to run machines with the built-in engine, says what it would
do, and does it with --yes: on Debian and Ubuntu it installs QEMU with apt and
unpacks a kernel into our own cache; elsewhere it names the commands. It never
touches how this computer boots.
`

func setupFlags() []option {
	return []option{{"yes", "", "do it"}, optJSON}
}

// runSetup hands over to the engine, which knows what it needs.
func runSetup(c *call) error {
	args := []string{"setup"}
	for _, name := range []string{"yes", "json"} {
		if c.has(name) {
			args = append(args, "--"+name)
		}
	}
	return runEngine(c, args...)
}

// runEngine runs a command of the built-in engine in our place.
func runEngine(c *call, args ...string) error {
	path, err := engineProgram()
	if err != nil {
		return err
	}
	cmd := exec.Command(path, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = c.stdin, c.stdout, c.stderr
	err = cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exitCode(exitFailure) // it has said why
	}
	if err != nil {
		return fmt.Errorf("start %s: %w", path, err)
	}
	return nil
}
