package cli

import (
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"smol-mcp/fleet/fleettest"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"smol-mcp":      func() { os.Exit(Main()) },
		"smol-mcp-http": func() { os.Exit(MainHTTP()) },
		"relay":         relay,
	})
}

// TestScript runs the program as people and clients do. The scripts in
// testdata/script have the commands of testscript and "mcp", which holds a
// conversation with a server (see conversation_test.go). On Linux, SMOLVM is
// the fake engine, which runs commands for real; its files are in
// SMOLVM_DATA_DIR.
func TestScript(t *testing.T) {
	smolvm := ""
	if runtime.GOOS == "linux" {
		smolvm = fleettest.BuildSmolvm(t)
	}
	testscript.Run(t, testscript.Params{
		Dir:   filepath.Join("testdata", "script"),
		Setup: func(env *testscript.Env) error { return setUpScript(t, env, smolvm) },
		Cmds:  map[string]func(*testscript.TestScript, bool, []string){"mcp": mcpCommand, "exits": exitsCommand, "killengines": killEnginesCommand, "cloud": cloudCommand(t), "vanishes": vanishesCommand},
	})
}

// setUpScript gives a script a home and a runtime directory of its own and no
// settings. The runtime directory has a short path, since a socket is made in
// it.
func setUpScript(t *testing.T, env *testscript.Env, smolvm string) error {
	run, err := os.MkdirTemp("", "smol")
	if err != nil {
		return err
	}
	env.Defer(func() { os.RemoveAll(run) })
	home := filepath.Join(env.WorkDir, "home")
	for name, value := range map[string]string{
		"HOME":            home,
		"XDG_CONFIG_HOME": filepath.Join(home, "config"),
		"XDG_STATE_HOME":  filepath.Join(home, "state"),
		"XDG_RUNTIME_DIR": run,
	} {
		env.Setenv(name, value)
		if err := os.MkdirAll(value, 0o700); err != nil {
			return err
		}
	}
	env.Setenv("GORACE", "atexit_sleep_ms=0") // else each exit takes a second
	if smolvm != "" {
		data := fleettest.SmolvmData(t)
		env.Defer(func() { killEngines(data) })
		env.Setenv("SMOLVM", smolvm)
		env.Setenv("SMOLVM_DATA_DIR", data)
	}
	c := new(conversation)
	for _, v := range env.Vars {
		name, _, _ := strings.Cut(v, "=")
		c.names = append(c.names, name)
	}
	env.Values[conversationKey{}] = c
	env.Defer(c.kill)
	return nil
}

// killEngines ends the engines that a killed server left.
func killEngines(data string) {
	for _, start := range fleettest.SmolvmStarts(data) {
		if p, err := os.FindProcess(start.PID); err == nil && isEngine(start.PID, data) {
			_ = p.Kill() // it may have ended by now
		}
	}
}

// isEngine makes sure that a process id was not used again for something
// else.
func isEngine(pid int, data string) bool {
	env, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "environ"))
	return err == nil && strings.Contains(string(env), "SMOLVM_DATA_DIR="+data)
}
