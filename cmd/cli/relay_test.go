package cli

import (
	"io"
	"os"
	"os/exec"
	"strconv"
)

// relay is a client of a client's kind, to be killed: it starts the command in
// its arguments, writes the process id to server.pid, and waits. In mode
// "pipes" it passes on what comes over pipes of its own, which die with it; in
// mode "inherit" the command has relay's own streams, which do not.
func relay() {
	cmd := exec.Command(os.Args[2], os.Args[3:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if os.Args[1] == "pipes" {
		cmd.Stdin = io.MultiReader(os.Stdin) // not a file, so exec makes a pipe
		cmd.Stdout = io.MultiWriter(os.Stdout)
		cmd.Stderr = io.MultiWriter(os.Stderr)
	}
	err := cmd.Start()
	if err == nil {
		err = os.WriteFile("server.pid", []byte(strconv.Itoa(cmd.Process.Pid)), 0o600)
	}
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		os.Exit(exitFailure)
	}
}
