// Package fleet knows where machines live and how to ask for them. Start with
// [Fleet], the interface that every place offers; [Smolvm] speaks the smolvm
// HTTP API of this computer through an [Engine], which finds, starts, shares
// and stops the process that answers it; [Cloud] speaks that of smol cloud.
//
// The package has never heard of records or of MCP: a name goes in, what the
// fleet says comes out.
package fleet

import (
	"context"
	"io"
	"time"
)

// Fleet is a place that runs machines. Every implementation passes the
// contract suite of package fleettest.
//
// All methods may be called at once from many goroutines, return within one
// second of the end of ctx, set a deadline of their own where ctx has none,
// and report failures as [*Error]. A name that does not follow the fleet's
// rules is refused before anything is sent.
type Fleet interface {
	// Target is the agent-facing word for the fleet: "local" or "cloud".
	Target() string

	// Info tells who serves the fleet and what it can do. It may start the
	// engine. Answers are cached for as long as the same engine serves.
	Info(ctx context.Context) (Info, error)

	// List returns the machines of the fleet in order of name, also those of
	// other programs, without the engine's own helpers.
	List(ctx context.Context) ([]Machine, error)

	// Get returns one machine; NotFound when there is none of that name.
	Get(ctx context.Context, name string) (Machine, error)

	// Create asks for a machine that is not started yet. It is sent once, or again
	// under the same name where the fleet makes sure that there is one machine of a
	// name: after an error with MaybeDone the machine may exist, and the caller looks
	// for Spec.Name. Conflict when the name is taken.
	Create(ctx context.Context, spec Spec) (Machine, error)

	// Start boots a machine or resumes a suspended one, and returns when the
	// fleet says that it runs, which is before its workload is ready. It is
	// idempotent.
	Start(ctx context.Context, name string, opts StartOptions) (Machine, error)

	// Stop stops a machine; its disk stays. It is idempotent.
	Stop(ctx context.Context, name string, opts StopOptions) (Machine, error)

	// Delete removes a machine in any state. NotFound when there is none,
	// which most callers take for success; Conflict, naming them in Why, while
	// branches of it exist.
	Delete(ctx context.Context, name string) (Deletion, error)

	// Branch makes a running copy of a running, branchable machine. It is sent
	// as often as Create.
	Branch(ctx context.Context, source string, spec BranchSpec) (Machine, error)

	// Exec runs a command and waits for it. It is sent once. The end of ctx
	// ends the wait, not the command, which lives until its own Timeout. A
	// stopped machine is started by it.
	Exec(ctx context.Context, name string, cmd Command) (Result, error)

	// Download writes the content of a file of the guest to w and returns its
	// size in bytes. It stops with CodeInvalid after limit bytes when limit > 0.
	Download(ctx context.Context, name, path string, w io.Writer, limit int64) (int64, error)

	// Upload makes or replaces a file of the guest with size bytes from r, and
	// makes its parent directories. Mode and owner are the fleet's default.
	Upload(ctx context.Context, name, path string, r io.Reader, size int64) error

	// Logs returns console lines, oldest first. It starts nothing.
	Logs(ctx context.Context, name string, q LogQuery) (LogPage, error)

	// Pull fetches an image into a machine's image store.
	Pull(ctx context.Context, name, image string) (Image, error)

	// Close lets go of the engine and of idle connections. Machines go on.
	Close() error
}

// State is what a machine is doing, in our words.
type State string

// The states. A fleet's word that none of them renders is Unknown, and
// stands in [Machine.Word].
const (
	Created     State = "created" // made, never started; the cloud calls these stopped
	Starting    State = "starting"
	Running     State = "running"     // may still be booting its workload
	Suspended   State = "suspended"   // memory kept, nothing runs
	Stopped     State = "stopped"     // disk kept
	Failed      State = "failed"      // the engine gave up on it
	Unreachable State = "unreachable" // it runs, but its agent does not answer
	Unknown     State = "unknown"
)

// Machine is what a fleet says about one machine.
type Machine struct {
	ID         string // what the fleet deletes by; the name on local
	Name       string
	State      State
	Word       string // the fleet's own word for the state
	CPUs       int
	MemoryMB   int       // MiB
	Network    string    // open, blocked, or allow(host,cidr,...)
	Image      string    // empty when the fleet does not say
	CreatedAt  time.Time // whole seconds
	ExpiresAt  time.Time // zero when the fleet sets no end
	PID        int       // of the hypervisor; 0 when it does not run or is elsewhere
	URL        string    // public address; empty when there is none
	Ports      []Port
	AllowHosts []string
	AllowCIDRs []string
	Owner      string // cloud: the installation that marked it as its own; empty when none did
}

// Spec is the wish for a machine. Zero numbers mean the fleet's default.
type Spec struct {
	Name       string
	Image      string // registry reference, archive path, or builtin:NAME
	CPUs       int
	MemoryMB   int // MiB
	StorageGB  int // GiB
	OverlayGB  int // GiB
	Network    Network
	Ports      []Port
	Mounts     []Mount
	Cmd        []string // what keeps the workload alive; empty: the image's own
	Env        map[string]string
	Branchable bool
	TTL        time.Duration // cloud: deleted after this; 0 none
	AutoStop   time.Duration // cloud: stopped when idle for this; 0 none
}

// Network is an egress policy. An empty allow-list with Open false means that
// nothing gets out.
type Network struct {
	Open       bool
	AllowHosts []string // names, each with its subdomains
	AllowCIDRs []string // ranges or single addresses
}

// Blocked reports whether nothing at all gets out.
func (n Network) Blocked() bool {
	return !n.Open && len(n.AllowHosts) == 0 && len(n.AllowCIDRs) == 0
}

// Port publishes a port of the guest on the computer's loopback.
type Port struct {
	Guest int // 1..65535
	Host  int // 1..65535; 0 means the same as Guest
}

// Mount shows a directory of the computer inside the guest.
type Mount struct {
	Source   string // absolute, on the computer
	Target   string // absolute, in the guest
	ReadOnly bool
}

// StartOptions say how to start a machine.
type StartOptions struct {
	Branchable bool // it may be branched later; costs memory on some engines
}

// StopOptions say how to stop a machine.
type StopOptions struct {
	KeepMemory bool // suspend; Unsupported where the fleet cannot
}

// BranchSpec is the wish for a branch.
type BranchSpec struct {
	Name       string
	StopSource bool // leave the source frozen; else it goes on where the fleet can
}

// Command is one program to run in a guest.
type Command struct {
	Argv    []string
	Env     map[string]string
	Workdir string        // absolute; empty: the image's
	Stdin   string        // UTF-8, at most MaxStdin bytes; closed after it
	Timeout time.Duration // whole seconds; the guest kills the command after it
	Brief   bool          // it only looks, and need not wait for commands that take long
	NoStart bool          // NotReady, nothing done, for a machine that does not run, where the engine can be told so

	// Sent, when set, is called once, before the command is on its way to the
	// guest; never when it was given up while it waited for a place.
	Sent func()
}

// MaxStdin bounds [Command.Stdin] in bytes. smolvm 1.9 to 1.14 write stdin
// before they drain output, so more than a pipe holds can hang; larger input is uploaded
// as a file instead.
const MaxStdin = 32 << 10

// Result is how a command ended.
type Result struct {
	ExitCode int // 124 after the timeout, 128+N after signal N
	Stdout   []byte
	Stderr   []byte

	// What the fleet says that it cut off a stream; what is missing cannot be had
	// any more.
	StdoutTruncated bool
	StderrTruncated bool
}

// Deletion is what a fleet says after a delete.
type Deletion struct {
	CostMicros int64 // millionths of the billing currency; 0 where nothing is billed
}

// Image is a pulled image.
type Image struct {
	Reference    string
	Digest       string
	Size         int64 // bytes
	Architecture string
	OS           string
	LayerCount   int
}

// Info is who serves a fleet and what it can do.
type Info struct {
	Engine    string // smolvm, qemu, cloud
	Version   string
	Accel     string // kvm, hvf, tcg; empty when the engine does not say
	Isolation string // hardware VM, emulated VM; empty when the engine does not say
	Can       Features
}

// Features are the abilities in which fleets and releases differ.
type Features struct {
	Branch        bool // make branches at all
	BranchRunning bool // the source of a branch goes on running
	Suspend       bool // stop with memory kept
	Pull          bool // pull-image
	HostPull      bool // the host fetches images, so a blocked machine can use a registry image
	Mounts        bool
	Overlay       bool // an overlay disk of its own size
	Cmd           bool // the workload's command
}
