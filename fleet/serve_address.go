package fleet

import (
	"context"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"time"
)

// address is where an engine answers.
type address struct {
	network string // unix or tcp
	target  string // path, or host:port

	// ours is set for a socket in a place where others may put one too: the
	// file and the process behind it must be this user's.
	ours bool
}

// dialTimeout bounds the connecting to an engine, which is on this computer.
const dialTimeout = 5 * time.Second

// socketPath is how long a path of a socket may be in bytes: what the kernel
// takes, less a little that servers want for themselves.
func socketPath() int {
	if runtime.GOOS == "linux" {
		return 100
	}
	return 103
}

// parseAddress reads unix:///path and http://host:port.
func parseAddress(text string) (address, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return address{}, err
	case u.Scheme == "unix" && u.Host == "" && filepath.IsAbs(u.Path):
		return address{network: "unix", target: u.Path}, nil
	case u.Scheme == "http" && u.Port() != "" && (u.Path == "" || u.Path == "/"):
		return address{network: "tcp", target: u.Host}, nil
	}
	return address{}, fmt.Errorf("%s is neither unix:///path nor http://host:port", Quote(text))
}

// String returns the address as a URL.
func (a address) String() string {
	if a.network == "unix" {
		return "unix://" + a.target
	}
	return "http://" + a.target
}

// listen returns the address as the engine's --listen wants it.
func (a address) listen() string {
	if a.network == "unix" {
		return a.String()
	}
	host, port, _ := net.SplitHostPort(a.target)
	if host == "localhost" {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port)
}

// local reports whether an engine can be started there.
func (a address) local() bool {
	host, _, _ := net.SplitHostPort(a.target)
	ip := net.ParseIP(host)
	return a.network == "unix" || host == "localhost" || ip != nil && ip.IsLoopback()
}

// fits refuses a path that is too long for a socket.
func (a address) fits() error {
	if n := len(a.target); a.network == "unix" && n > socketPath() {
		return &Error{
			Code: CodeUnavailable, Op: "start an engine",
			Why:  fmt.Sprintf("the path of its socket has %d bytes, and at most %d are possible: %s", n, socketPath(), Bound(a.target, 256)),
			Next: "set SMOL_MCP_RUNTIME_DIR to a directory with a short path",
		}
	}
	return nil
}

// dial connects. A stale socket fails like one that is not there.
func (a address) dial(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	if a.ours {
		if err := a.checkFile(); err != nil {
			return nil, err
		}
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, a.network, a.target)
	if err != nil || !a.ours {
		return c, err
	}
	if _, uid, ok := peer(c); !ok || uid != os.Geteuid() {
		c.Close()
		return nil, fmt.Errorf("%s is served by another user", a)
	}
	return c, nil
}

// checkFile refuses what is no socket of this user, also behind a symbolic link.
func (a address) checkFile() error {
	fi, err := os.Lstat(a.target)
	switch {
	case err != nil:
		return err
	case fi.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("%s is not a socket", a.target)
	case !ownFile(fi):
		return fmt.Errorf("%s belongs to another user", a.target)
	}
	return nil
}

// usualAddresses is where smolvm serve listens when nobody tells it otherwise. On
// Windows that is a port, behind which anybody may be.
func usualAddresses() []address {
	if runtime.GOOS == "windows" {
		return nil
	}
	list := []address{{"unix", "/tmp/smolvm.sock", true}}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) {
		list = append([]address{{"unix", filepath.Join(dir, "smolvm.sock"), true}}, list...)
	}
	return list
}

// freePort returns a TCP port of the loopback that nobody listens on now.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}
