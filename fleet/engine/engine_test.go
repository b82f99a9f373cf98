//go:build unix

package engine_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"smol-mcp/fleet"
	"smol-mcp/fleet/engine"
	"smol-mcp/fleet/engine/image"
	"smol-mcp/fleet/engine/kernel"
	"smol-mcp/fleet/engine/machine"
	"smol-mcp/fleet/fleettest"
)

// The tests of this package boot real machines. They are slow to emulate, so they
// share a cache, and with it the templates.
var shared struct {
	dir      string // of the cache
	programs string // directory of the programs under test
	kernel   string
	guest    string
	daemon   string
	why      string // why no machine can be booted; empty when one can
}

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "eng")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	shared.dir = dir
	shared.why = prepare()
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// prepare builds the programs and looks for the rest. It returns what is missing.
func prepare() string {
	if _, _, err := machine.FindQEMU(context.Background(), ""); err != nil {
		return err.Error()
	}
	_, cache, err := engine.Dirs()
	if err != nil {
		return err.Error()
	}
	k, err := kernel.Find("", filepath.Join(cache, "kernel"))
	if err != nil {
		return err.Error() + ": run smol-mcp setup"
	}
	shared.kernel = k.Image
	// A user who cannot build is given the programs; see TestOrdinaryUser.
	if shared.programs = os.Getenv("SMOL_TEST_PROGRAMS"); shared.programs == "" {
		shared.programs = shared.dir
		for _, program := range []string{"smol-guest", "smol-engine"} {
			if err := build(program); err != nil {
				panic(err)
			}
		}
	}
	shared.guest, shared.daemon = filepath.Join(shared.programs, "smol-guest"), filepath.Join(shared.programs, "smol-engine")
	return ""
}

// build puts a program where those under test are, unless it was given.
func build(program string) error {
	if os.Getenv("SMOL_TEST_PROGRAMS") != "" {
		return nil
	}
	cmd := exec.Command("go", "build", "-o", shared.programs+"/", "../../cmd/"+program)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if program == "smol-guest" {
		cmd.Env = append(cmd.Env, "GOOS=linux")
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w: %s", program, err, out)
	}
	return nil
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// daemon is an engine in this process.
type daemon struct {
	opts   engine.Options
	cancel context.CancelFunc
	ended  chan error
	log    *bytes.Buffer
}

// needMachines skips where no machine can boot.
func needMachines(t *testing.T) {
	t.Helper()
	if shared.why != "" {
		t.Skip(shared.why)
	}
	if testing.Short() {
		t.Skip("boots machines")
	}
}

// options are those of a daemon that a test starts.
func options(t *testing.T) engine.Options {
	t.Helper()
	needMachines(t)
	dir, err := os.MkdirTemp("", "e") // shorter than t.TempDir, for the socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return engine.Options{
		Listen: "unix://" + dir + "/s", Data: dir + "/data", Cache: shared.dir + "/cache", Kernel: shared.kernel, Guest: shared.guest,
		Accel: os.Getenv("SMOL_TEST_ACCEL"),
	}
}

// start starts a daemon that ends with the test, with all its machines.
func start(t *testing.T) *daemon {
	t.Helper()
	d := &daemon{opts: options(t)}
	d.run(t)
	t.Cleanup(func() {
		d.deleteAll(t)
		d.stop(t)
		if t.Failed() {
			t.Log(d.log)
		}
	})
	return d
}

func (d *daemon) run(t *testing.T) {
	t.Helper()
	if d.opts.Accel == "" {
		d.opts.Accel = "tcg" // the same everywhere; detection has a test of its own
	}
	ctx, cancel := context.WithCancel(context.Background())
	ready := make(chan struct{})
	d.cancel, d.ended, d.log = cancel, make(chan error, 1), &bytes.Buffer{}
	opts := d.opts
	opts.Log = slog.New(slog.NewTextHandler(d.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	opts.Ready = func() { close(ready) }
	go func() { d.ended <- engine.Serve(ctx, opts) }()
	select {
	case <-ready:
	case err := <-d.ended:
		t.Fatalf("the engine does not start: %v", err)
	}
}

func (d *daemon) stop(t *testing.T) {
	t.Helper()
	d.cancel()
	if err := <-d.ended; err != nil {
		t.Errorf("the engine ends with %v", err)
	}
}

func (d *daemon) socket() string { return strings.TrimPrefix(d.opts.Listen, "unix://") }

func (d *daemon) client(t *testing.T) *fleet.Smolvm {
	f := fleet.NewSmolvm(func(ctx context.Context) (net.Conn, error) {
		var dialer net.Dialer
		return dialer.DialContext(ctx, "unix", d.socket())
	}, fleet.SmolvmOptions{})
	t.Cleanup(func() { f.Close() })
	return f
}

func (d *daemon) deleteAll(t *testing.T) {
	t.Helper()
	f := d.client(t)
	list, err := f.List(context.Background())
	if err != nil {
		t.Error(err)
	}
	var wg sync.WaitGroup
	for _, m := range list {
		wg.Go(func() {
			if _, err := f.Delete(context.Background(), m.Name); err != nil {
				t.Errorf("left behind: %v", err)
			}
		})
	}
	wg.Wait()
}

// booted makes a machine that runs.
func booted(t *testing.T, f fleet.Fleet, spec fleet.Spec) string {
	t.Helper()
	if spec.Image == "" {
		spec.Image = image.Builtin
	}
	if spec.MemoryMB == 0 {
		spec.MemoryMB, spec.CPUs = 512, 1
	}
	if _, err := f.Create(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Start(t.Context(), spec.Name, fleet.StartOptions{}); err != nil {
		t.Fatal(err)
	}
	return spec.Name
}

// sh runs a line of shell that must succeed, and returns what it printed.
func sh(t *testing.T, f fleet.Fleet, name, line string) string {
	t.Helper()
	res, err := f.Exec(t.Context(), name, fleet.Command{Argv: []string{"/bin/sh", "-c", line}, Timeout: 60 * time.Second})
	if err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	if res.ExitCode != 0 {
		t.Fatalf("%s: exit code %d: %s", line, res.ExitCode, res.Stderr)
	}
	return string(res.Stdout)
}

// The engine keeps the contract of every fleet, with real machines.
func TestContract(t *testing.T) {
	d := start(t)
	fleettest.Suite(t, func(t *testing.T) fleet.Fleet { return d.client(t) }, fleettest.Traits{Image: image.Builtin, Guest: true})
}

// What the engine says of itself is what the client knows of smolvm.
func TestParity(t *testing.T) {
	f := start(t).client(t)
	doc, err := f.OpenAPI(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	p, err := fleet.CheckParity(doc)
	if err != nil || len(p.Missing) > 0 || len(p.Unknown) > 0 {
		t.Errorf("missing %v, unknown %v, %v", p.Missing, p.Unknown, err)
	}
	info, err := f.Info(t.Context())
	want := fleet.Info{
		Engine: "qemu", Version: engine.Version, Accel: "tcg", Isolation: "emulated VM",
		Can: fleet.Features{Pull: true, HostPull: true, Cmd: true},
	}
	if os.Getenv("SMOL_TEST_ACCEL") == "" && runtime.GOOS == "linux" && (err != nil || info != want) {
		t.Errorf("%v\n got %+v\nwant %+v", err, info, want)
	}
}
