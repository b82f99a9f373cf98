package fleettest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// SmolvmMain is the fake smolvm as a program:
//
//	smolvm serve start [--listen unix://PATH|PATH|HOST:PORT]
//	smolvm serve openapi
//	smolvm --version
//	smol-engine serve [--listen ...]
//
// The last is a fake of the built-in engine: it says so in its health and
// needs no second port.
//
// It keeps its machines, faults.json, requests.log and starts.log (a
// [SmolvmStart] per line) in $SMOLVM_DATA_DIR. These variables change how it behaves:
//
//	SMOLVM_FAKE_VERSION       release to play
//	SMOLVM_FAKE_BOOT_MS       how long a machine takes to start
//	SMOLVM_FAKE_READY_MS      how long the server takes to listen
//	SMOLVM_FAKE_FAIL_STARTS   the first so many starts of the server fail (counted in the data directory)
//	SMOLVM_FAKE_PORT_TAKEN    the first so many starts fail as if their second port was taken
//	SMOLVM_FAKE_DIE_READY     the first so many starts die after the ready line and one answer
//	SMOLVM_FAKE_HANG          accept connections and never answer
//	SMOLVM_FAKE_IGNORE_TERM   live on after SIGTERM
//	SMOLVM_FAKE_NOISE         bytes to write to stderr at the start
//	SMOLVM_FAKE_CONSOLE_MAX   bytes after which a console log is rotated
func SmolvmMain(args []string, stdout, stderr io.Writer) int {
	p := &smolvmProgram{stdout: stdout, stderr: stderr, data: os.Getenv("SMOLVM_DATA_DIR")}
	switch line := strings.Join(args, " "); {
	case line == "--version" || line == "-V":
		fmt.Fprintln(stdout, "smolvm "+p.version())
		return 0
	case line == "serve openapi":
		b, _ := json.MarshalIndent(openAPI(p.version()), "", "  ")
		fmt.Fprintf(stdout, "%s\n", b)
		return 0
	case strings.HasPrefix(line, "serve start"), strings.HasPrefix(line, "serve -"):
		args = args[1:]
		if p.builtin = args[0] != "start"; !p.builtin {
			args = args[1:]
		}
		if err := p.serve(args); err != nil {
			fmt.Fprintln(stderr, "Error: "+err.Error())
			return 1
		}
		return 0
	}
	fmt.Fprintf(stderr, "error: unrecognized subcommand '%s'\n", strings.Join(args, " "))
	return 2
}

// smolvmProgram is one life of the program.
type smolvmProgram struct {
	stdout, stderr io.Writer
	data           string
	builtin        bool // play the built-in engine
}

func (p *smolvmProgram) version() string {
	if v := os.Getenv("SMOLVM_FAKE_VERSION"); v != "" {
		return v
	}
	return SmolvmVersion
}

func knob(name string) int {
	n, _ := strconv.Atoi(os.Getenv("SMOLVM_FAKE_" + name))
	return n
}

// SmolvmStart is a line of starts.log: how the program was started.
type SmolvmStart struct {
	PID     int      `json:"pid"`
	Group   int      `json:"group"`   // process group; 0 where there is none
	Session int      `json:"session"` // 0 where there is none
	Dir     string   `json:"dir"`
	Args    []string `json:"args"`
	Env     []string `json:"env"`
	Files   []string `json:"files"` // what was open, as /proc/self/fd shows it; Linux only
}

// SmolvmStarts reads the starts.log of a data directory.
func SmolvmStarts(data string) []SmolvmStart {
	b, _ := os.ReadFile(filepath.Join(data, "starts.log"))
	var list []SmolvmStart
	for line := range strings.Lines(string(b)) {
		var s SmolvmStart
		if json.Unmarshal([]byte(line), &s) == nil {
			list = append(list, s)
		}
	}
	return list
}

// serve runs the server until a signal ends it.
func (p *smolvmProgram) serve(args []string) error {
	if p.data == "" {
		return fmt.Errorf("config operation failed: the fake needs SMOLVM_DATA_DIR")
	}
	start := describeProcess()
	if err := os.MkdirAll(p.data, 0o755); err != nil {
		return err
	}
	line, _ := json.Marshal(start)
	appendFile(filepath.Join(p.data, "starts.log"), append(line, '\n'))
	if n := knob("NOISE"); n > 0 {
		io.WriteString(p.stderr, strings.Repeat("noise noise noise\n", n/18+1))
	}
	nth := len(SmolvmStarts(p.data))
	if n := knob("FAIL_STARTS"); nth <= n {
		return fmt.Errorf("storage operation failed: start %d of %d was told to fail", nth, n)
	}
	network, addr, err := listenAddress(args)
	if err != nil {
		return err
	}
	if !p.builtin {
		rollout, err := bindRollout(nth <= knob("PORT_TAKEN"))
		if err != nil {
			return err
		}
		defer rollout.Close()
	}
	time.Sleep(time.Duration(knob("READY_MS")) * time.Millisecond) // a slow start is what was asked for
	return p.listen(network, addr, nth <= knob("DIE_READY"))
}

// listenAddress reads --listen.
func listenAddress(args []string) (network, addr string, err error) {
	listen := filepath.Join(os.Getenv("XDG_RUNTIME_DIR"), "smolvm.sock")
	if os.Getenv("XDG_RUNTIME_DIR") == "" {
		listen = "/tmp/smolvm.sock"
	}
	for i := 0; i < len(args); i++ {
		switch {
		case (args[i] == "--listen" || args[i] == "-l") && i+1 < len(args):
			i++
			listen = args[i]
		case args[i] == "-v" || args[i] == "--json-logs":
		default:
			return "", "", fmt.Errorf("unexpected argument '%s' found", args[i])
		}
	}
	if path, ok := strings.CutPrefix(listen, "unix://"); ok {
		return "unix", path, nil
	}
	if strings.HasPrefix(listen, "/") || !strings.Contains(listen, ":") {
		return "unix", listen, nil
	}
	if _, _, err := net.SplitHostPort(listen); err != nil {
		return "", "", fmt.Errorf("config operation failed: parse listen address: invalid socket address syntax")
	}
	return "tcp", listen, nil
}

// bindRollout takes the second port that every smolvm serve needs.
func bindRollout(taken bool) (net.Listener, error) {
	port := "10081"
	if v := os.Getenv("SMOLVM_GUEST_ROLLOUT_HOST_PORT"); v != "" {
		port = v
	}
	l, err := net.Listen("tcp", "127.0.0.1:"+port)
	if err == nil && taken {
		err = errors.Join(errors.New("told so"), l.Close())
	}
	if err != nil {
		return nil, fmt.Errorf("config operation failed: bind guest rollout ingress: 127.0.0.1:%s: Address already in use (os error 98)", port)
	}
	return l, nil
}

// listen serves until SIGTERM or SIGINT; with die it dies after one answer, as if it had crashed.
func (p *smolvmProgram) listen(network, addr string, die bool) error {
	if network == "unix" {
		os.MkdirAll(filepath.Dir(addr), 0o755)
		os.Remove(addr) // whatever it is, and whoever listens there
	}
	l, err := net.Listen(network, addr)
	if err != nil {
		return fmt.Errorf("config operation failed: bind %s: %w", addr, osWords(err))
	}
	server, err := newSmolvmServer(SmolvmOptions{
		Version: p.version(), Data: p.data,
		Boot: time.Duration(knob("BOOT_MS")) * time.Millisecond, ConsoleMax: int64(knob("CONSOLE_MAX")),
	})
	if err != nil {
		return err
	}
	server.builtin = p.builtin
	if n := len(server.machines); n > 0 {
		fmt.Fprintf(p.stdout, "Reconnected to %d existing machine(es)\n", n)
	}
	where := "http://" + addr
	if network == "unix" {
		where = "unix://" + addr
	}
	fmt.Fprintln(p.stdout, "smolvm API server listening on "+where)
	if die {
		server.faults.add(SmolvmFault{Nth: 2, Times: -1, Drop: "before"})
		time.AfterFunc(50*time.Millisecond, func() { os.Exit(101) })
	}
	if knob("HANG") > 0 {
		server.faults.add(SmolvmFault{LatencyMs: 3_600_000, Times: -1})
	}
	return p.untilSignal(server, l)
}

func (p *smolvmProgram) untilSignal(server *smolvmServer, l net.Listener) error {
	h := newHTTPServer(server)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	defer signal.Stop(signals)
	served := make(chan error, 1)
	go func() { served <- h.Serve(l) }()
	for {
		select {
		case err := <-served:
			return err
		case <-signals:
			if knob("IGNORE_TERM") > 0 {
				continue
			}
			fmt.Fprintln(p.stderr, "Shutting down server (VMs continue running)...")
			return h.Shutdown(context.Background()) // waits for open requests, without limit
		}
	}
}

// describeProcess tells how this process was started.
func describeProcess() SmolvmStart {
	s := SmolvmStart{PID: os.Getpid(), Args: os.Args, Env: os.Environ()}
	s.Dir, _ = os.Getwd()
	entries, _ := os.ReadDir("/proc/self/fd")
	for _, e := range entries {
		to, err := os.Readlink("/proc/self/fd/" + e.Name())
		if err == nil && !strings.HasPrefix(to, "anon_inode:[event") && !strings.HasPrefix(to, "/sys/fs/cgroup/") { // the runtime's own
			s.Files = append(s.Files, e.Name()+" "+to)
		}
	}
	s.Group, s.Session = groupAndSession()
	return s
}
