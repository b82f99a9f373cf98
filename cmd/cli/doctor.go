package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"smol-mcp/fleet"
	"smol-mcp/store"
)

const doctorHelp = `Looks at all that machines need: settings, records, the cloud's key where the cloud is
served, the engine that would serve, how machines are run and why not with the
hardware's help, kernel, images, directories and their owners, free space,
versions. It starts no engine; to see whether the
hardware helps it may boot a guest for up to five seconds, once per boot of this
computer. Each finding has a code, and what is not well a cause and a remedy.

Exit code 0 means that machines can run; 1 that something keeps them from it.
`

// finding is one thing that was looked at, as the engine's doctor has it too.
type finding struct {
	Code   string `json:"code"`
	Level  string `json:"level"` // ok, warning or error
	What   string `json:"what"`
	Cause  string `json:"cause,omitempty"`
	Remedy string `json:"remedy,omitempty"`
}

func fine(code, format string, args ...any) finding {
	return finding{Code: code, Level: "ok", What: fmt.Sprintf(format, args...)}
}

func runDoctor(c *call) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	all := examine(ctx, c.flags["config"])
	if c.has("json") {
		enc := json.NewEncoder(c.stdout)
		enc.SetIndent("", "  ")
		if err := enc.Encode(map[string]any{"schema": 1, "version": version, "findings": all}); err != nil {
			return err
		}
	} else {
		printFindings(c.stdout, all)
	}
	for _, f := range all {
		if f.Level == "error" {
			return exitCode(exitFailure)
		}
	}
	return nil
}

func printFindings(w io.Writer, all []finding) {
	for _, f := range all {
		fmt.Fprintf(w, "%-8s %-20s %s\n", f.Level, f.Code, f.What)
		if f.Cause != "" {
			fmt.Fprintf(w, "%29s cause: %s\n", "", strings.Join(strings.Fields(f.Cause), " "))
		}
		if f.Remedy != "" {
			fmt.Fprintf(w, "%29s remedy: %s\n", "", f.Remedy)
		}
	}
}

// examine looks at everything, and goes on after each failure.
func examine(ctx context.Context, configFile string) []finding {
	all := []finding{fine("version", "smol-mcp %s", fullVersion())}
	r, err := resolve(os.LookupEnv, configFile)
	if err != nil {
		f := finding{"settings_invalid", "error", "the settings cannot be used", err.Error(), "smol-mcp config shows every setting"}
		var bad *settingError
		if errors.As(err, &bad) && bad.hint != "" {
			f.Remedy = bad.hint
		}
		return append(all, f)
	}
	all = append(all, examineSettings(r)...)
	st := store.New(store.Options{RuntimeDir: r.RuntimeDir, Kind: "doctor", Version: version, CrashGrace: grace(&r.Config), ReadOnly: true})
	defer st.Close()
	all = append(all, examineRecords(ctx, st)...)
	local, cloud := r.serves()
	all = append(all, examineCloud(ctx, r, st, cloud)...)
	if !local {
		return all
	}
	smolvm, usable := examineSmolvm(ctx, r.Smolvm, r.MinSmolvm)
	if r.Engine != "qemu" {
		all = append(all, smolvm)
	}
	if r.Engine == "smolvm" || r.Engine == "auto" && usable {
		return all
	}
	return slices.Concat(all, examineEngine(ctx), examineLock(ctx, &r.Config, st))
}

func examineSettings(r *resolved) []finding {
	file := r.file
	if file == "" {
		file = "none"
	}
	all := []finding{fine("settings_ok", "settings are valid; file: %s", file)}
	for _, stray := range strays(os.Environ(), settings(&r.Config)) {
		all = append(all, finding{"setting_unknown", "warning", stray + " is set", "it is no setting of this build", "smol-mcp config lists them; unset it"})
	}
	return all
}

// examineRecords looks at the runtime directory and at the whole state file.
func examineRecords(ctx context.Context, st *store.Store) []finding {
	sv, err := survey(ctx, st)
	if err != nil {
		return []finding{{"records_unreadable", "error", "the records cannot be read", err.Error(), "see to the directory that it names, or choose another with SMOL_MCP_RUNTIME_DIR"}}
	}
	all := []finding{fine("records_ok", "%d machines, %d processes on record in %s, chosen by %s", len(sv.Machines), len(sv.Processes), sv.Dir, sv.Why)}
	faults, err := st.Verify(ctx)
	switch {
	case err != nil:
		all = append(all, finding{"state_unchecked", "warning", "the state file could not be checked", err.Error(), "try again when no other process is busy with it"})
	case len(faults) > 0:
		all = append(all, finding{"state_damaged", "error", "the state file is damaged", strings.Join(faults, "; "), "smol-mcp gc builds it anew from the ledger"})
	}
	for _, n := range sv.Notices {
		all = append(all, finding{"notice", "warning", n.Text, n.At.Format(time.DateTime), "smol-mcp gc says what is left to do"})
	}
	return all
}

// examineSmolvm looks at smolvm, which need not be there.
func examineSmolvm(ctx context.Context, program, least string) (f finding, usable bool) {
	path, err := exec.LookPath(program)
	if err != nil {
		return fine("smolvm_absent", "no smolvm (%s), so the built-in engine serves", program), false
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, "--version").Output()
	text := strings.TrimSpace(string(out))
	if err != nil {
		return finding{"smolvm_broken", "error", path + " --version fails", err.Error(), "install smolvm again, or set SMOL_MCP_ENGINE=qemu"}, false
	}
	release := strings.TrimPrefix(text, "smolvm ")
	if least != "" && !fleet.AtLeast(release, least) {
		return finding{"smolvm_old", "error", text + " at " + path, "at least " + least + " is needed", "update smolvm, or set SMOL_MCP_MIN_SMOLVM, or SMOL_MCP_ENGINE=qemu"}, false
	}
	if runtime.GOOS == "linux" {
		if kvm, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0); err != nil {
			return finding{"smolvm_no_kvm", "error", text + " at " + path + " cannot start machines", err.Error(), "get access to /dev/kvm, or set SMOL_MCP_ENGINE=qemu, which can do without"}, false
		} else {
			kvm.Close()
		}
	}
	return fine("smolvm_ok", "%s at %s", text, path), true
}

// examineEngine asks the built-in engine's own doctor.
func examineEngine(ctx context.Context) []finding {
	path, err := engineProgram()
	if err != nil {
		return []finding{{"engine_missing", "error", "no engine can be started", err.Error(), "build smol-engine beside this program, or install smolvm"}}
	}
	var stderr strings.Builder
	cmd := exec.CommandContext(ctx, path, "doctor", "--json")
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	var all []finding
	if jsonErr := json.Unmarshal(out, &all); err != nil || jsonErr != nil {
		return []finding{{"engine_broken", "error", path + " doctor fails", fleet.Bound(fmt.Sprintf("%v: %s", errors.Join(err, jsonErr), stderr.String()), 500), "build it again, with this program"}}
	}
	return append([]finding{fine("engine_ok", "built-in engine at %s", path)}, all...)
}
