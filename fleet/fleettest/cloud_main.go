package fleettest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// CloudMain is the fake smol cloud as a program. It prints its address, as
// http://127.0.0.1:PORT, and serves until SIGTERM or SIGINT, which end its guests
// too. It keeps guests, faults.json, requests.log and violations.log in
// $SMOLCLOUD_DATA_DIR. These variables change how it behaves:
//
//	SMOLCLOUD_TOKEN      a key that it knows, of the tenant tenant-a; CloudToken when unset
//	SMOLCLOUD_LISTEN     HOST:PORT; a free port of the loopback when unset
//	SMOLCLOUD_OPTIONS    a [CloudOptions] as JSON
//
// Routes below /fake/ want no key and change it while it runs; see control.
func CloudMain(stdout, stderr io.Writer) int {
	if err := cloudMain(stdout); err != nil {
		fmt.Fprintln(stderr, "smolcloud: "+err.Error())
		return 1
	}
	return 0
}

func cloudMain(stdout io.Writer) error {
	var opts CloudOptions
	if text := os.Getenv("SMOLCLOUD_OPTIONS"); text != "" {
		if err := json.Unmarshal([]byte(text), &opts); err != nil {
			return err
		}
	}
	if opts.Data = os.Getenv("SMOLCLOUD_DATA_DIR"); opts.Data == "" {
		return errors.New("SMOLCLOUD_DATA_DIR is not set")
	}
	server, err := newCloudServer(opts)
	if err != nil {
		return err
	}
	token := os.Getenv("SMOLCLOUD_TOKEN")
	if token == "" {
		token = CloudToken
	}
	server.keys[token] = CloudKey{Tenant: CloudTenant}
	listen := os.Getenv("SMOLCLOUD_LISTEN")
	if listen == "" {
		listen = "127.0.0.1:0"
	}
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	fmt.Fprintln(stdout, "http://"+l.Addr().String())
	h := newHTTPServer(server)
	served := make(chan error, 1)
	go func() { served <- h.Serve(l) }()
	select {
	case err = <-served:
	case <-ctx.Done():
		err = h.Close()
		<-served
	}
	return errors.Join(err, server.close())
}

// control answers the routes by which a test changes the fake while it runs:
//
//	POST /fake/advance?by=1h               sets the clock ahead
//	POST /fake/key?token=T&tenant=X&state= makes a key known, or ends it: expired, revoked
//	POST /fake/plan?tenant=X&machines=N&running=N
//	GET  /fake/machines                    all machines of all tenants, by name
func (s *cloudServer) control(w http.ResponseWriter, r *cloudCall) bool {
	what, ours := strings.CutPrefix(r.URL.Path, "/fake/")
	if !ours {
		return false
	}
	q := r.URL.Query()
	switch r.Method + " " + what {
	case "POST advance":
		d, err := time.ParseDuration(q.Get("by"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return true
		}
		s.advance(d)
	case "POST key":
		s.mu.Lock()
		s.keys[q.Get("token")] = CloudKey{Tenant: q.Get("tenant"), State: q.Get("state")}
		s.mu.Unlock()
	case "POST plan":
		s.mu.Lock()
		t := s.tenant(q.Get("tenant"))
		fmt.Sscan(q.Get("machines")+" "+q.Get("running"), &t.maxMachines, &t.maxRunning)
		s.mu.Unlock()
	case "GET machines":
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(s.states())
	default:
		http.NotFound(w, r.Request)
	}
	return true
}

// builtCloud is the executable, made once in a process.
var builtCloud = sync.OnceValues(func() (string, error) {
	exe, err := os.Executable()
	if err != nil {
		return "", err
	}
	// Beside the test's own executable, which go test removes with its directory.
	dir, err := os.MkdirTemp(filepath.Dir(exe), "smolcloud")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "smolcloud")
	if out, err := exec.Command("go", "build", "-o", path, "smol-mcp/fleet/fleettest/smolcloud").CombinedOutput(); err != nil {
		return "", errors.New("go build fake smol cloud: " + err.Error() + "\n" + string(out))
	}
	return path, nil
})

// BuildCloud builds the fake smol cloud as an executable, once in a process, and
// returns its path. See [CloudMain] for what it wants.
func BuildCloud(t testing.TB) string {
	t.Helper()
	path, err := builtCloud()
	if err != nil {
		t.Fatal(err)
	}
	return path
}
