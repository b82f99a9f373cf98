//go:build unix

// Package engine answers the smolvm API on a Unix socket with machines of its own,
// on QEMU: the same routes, bodies, statuses and error shapes, as far as our client
// uses them. [Serve] is the daemon; routes.go lists what it answers; package machine
// keeps the machines.
//
// A machine is a QEMU process that outlives the daemon. Killed at any moment and
// started again, the daemon finds every machine by its folder.
package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"smol-mcp/fleet/engine/image"
	"smol-mcp/fleet/engine/machine"
)

// Version is what /health says.
const Version = "0.1.0"

// Options say where a daemon listens and keeps things. Empty fields have defaults.
type Options struct {
	Listen    string // unix://PATH or PATH
	Data      string // directory of machines
	Cache     string // directory of images, templates and kernels
	QEMU      string // program
	Kernel    string // file
	Guest     string // the smol-guest program
	Accel     string // kvm, hvf or tcg
	Cold      bool   // boot every machine; keep no templates
	MaxImages int64  // bytes of prepared images that are kept; 0 is DefaultMaxImages
	Log       *slog.Logger
	Ready     func() // called when it listens
}

// DefaultMaxImages bounds the prepared images that no machine uses, in bytes.
const DefaultMaxImages = 20 << 30

// Dirs returns the usual places: the XDG directories, with their defaults on every
// system.
func Dirs() (data, cache string, err error) {
	home, err := os.UserHomeDir()
	if err != nil && (os.Getenv("XDG_DATA_HOME") == "" || os.Getenv("XDG_CACHE_HOME") == "") {
		return "", "", err
	}
	data, cache = os.Getenv("XDG_DATA_HOME"), os.Getenv("XDG_CACHE_HOME")
	if data == "" {
		data = filepath.Join(home, ".local", "share")
	}
	if cache == "" {
		cache = filepath.Join(home, ".cache")
	}
	return filepath.Join(data, "smol-engine"), filepath.Join(cache, "smol-engine"), nil
}

// Fill sets what is empty to its default.
func (o *Options) Fill() error {
	if o.Data == "" || o.Cache == "" {
		data, cache, err := Dirs()
		if err != nil {
			return err
		}
		if o.Data == "" {
			o.Data = data
		}
		if o.Cache == "" {
			o.Cache = cache
		}
	}
	if o.MaxImages == 0 {
		o.MaxImages = DefaultMaxImages
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return nil
}

// server is a running daemon.
type server struct {
	opts     Options
	machines *machine.Manager
	images   *image.Store
	began    time.Time
	routes   []route

	life context.Context // of work that a client need not wait for
	work sync.WaitGroup

	mu    sync.Mutex
	slots map[string]chan struct{} // guest operations at once, by machine
}

// Serve answers until ctx ends, then lets open requests finish for five seconds.
// Machines go on.
func Serve(ctx context.Context, opts Options) error {
	if err := opts.Fill(); err != nil {
		return err
	}
	for _, dir := range []string{opts.Data, opts.Cache} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	store, err := image.Open(filepath.Join(opts.Cache, "images"))
	if err != nil {
		return err
	}
	machines, err := machine.Open(ctx, machine.Options{
		Data: opts.Data, Listen: opts.Listen, Cache: opts.Cache, QEMU: opts.QEMU, Kernel: opts.Kernel, Guest: opts.Guest,
		Accel: opts.Accel, Cold: opts.Cold, Images: store, Log: opts.Log,
	})
	if err != nil {
		return err
	}
	life, cancel := context.WithCancel(context.Background())
	s := &server{opts: opts, machines: machines, images: store, began: time.Now(), life: life, slots: map[string]chan struct{}{}}
	s.routes = routes()
	err = s.listen(ctx)
	cancel()
	s.work.Wait()
	return errors.Join(err, machines.Close())
}

// listen serves HTTP on the socket.
func (s *server) listen(ctx context.Context) error {
	path := strings.TrimPrefix(s.opts.Listen, "unix://")
	if path == "" || strings.Contains(s.opts.Listen, "://") && path == s.opts.Listen {
		return fmt.Errorf("cannot listen at %q: only at unix://PATH", s.opts.Listen)
	}
	l, err := listenUnix(path)
	if err != nil {
		return err
	}
	at, err := os.Lstat(path)
	if err != nil {
		l.Close()
		return err
	}
	// A socket that is ours no more must not be removed with the listener.
	l.SetUnlinkOnClose(false)
	defer s.unlink(path, at)
	h := &http.Server{Handler: s, ErrorLog: slog.NewLogLogger(s.opts.Log.Handler(), slog.LevelDebug), ReadHeaderTimeout: 30 * time.Second}
	debug.FreeOSMemory() // what making kernel and initramfs took
	if s.opts.Ready != nil {
		s.opts.Ready()
	}
	ended := make(chan error, 1)
	go func() { ended <- h.Serve(l) }()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for serving := true; serving; {
		select {
		case err := <-ended:
			return err
		case <-ctx.Done():
			serving = false
		case <-tick.C:
			if now, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) || err == nil && !os.SameFile(now, at) {
				s.opts.Log.Warn("the socket is gone, so nobody can reach this engine any more; it ends, and the machines go on", "path", path)
				serving = false
			}
		}
	}
	s.machines.Park()
	grace, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if h.Shutdown(grace) != nil {
		_ = h.Close() // what is still open goes on in the guests
	}
	<-ended
	return nil
}

// unlink removes the socket where it still is the one that was made.
func (s *server) unlink(path string, made os.FileInfo) {
	if now, err := os.Lstat(path); err == nil && os.SameFile(now, made) {
		_ = os.Remove(path) // the next engine removes what nobody listens on
	}
}

// listens reports whether somebody still does after a second. What an engine that was
// killed had just forked keeps its files until it is another program.
func listens(path string) bool {
	for range 20 {
		conn, err := net.DialTimeout("unix", path, time.Second)
		if err != nil {
			return false
		}
		conn.Close()
		time.Sleep(50 * time.Millisecond)
	}
	return true
}

// listenUnix listens at a path, for this user only. A socket that nobody listens on
// is replaced, and nothing else.
func listenUnix(path string) (*net.UnixListener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	if fi, err := os.Lstat(path); err == nil {
		if fi.Mode().Type() != os.ModeSocket {
			return nil, fmt.Errorf("%s is in the way: it is not a socket", path)
		}
		if listens(path) {
			return nil, fmt.Errorf("another program listens at %s", path)
		}
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}
