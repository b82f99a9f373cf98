//go:build linux

package guest

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/hashicorp/yamux"
	"golang.org/x/sys/unix"

	"smol-mcp/fleet/engine/agent"
	"smol-mcp/fleet/engine/guest/lines"
)

// serve talks to one engine after another.
func (g *guest) serve(port string) {
	for {
		if err := g.converse(port); err != nil {
			say("%v", err)
			time.Sleep(100 * time.Millisecond)
		}
	}
}

// converse waits for an engine and answers it until it hangs up.
func (g *guest) converse(port string) error {
	f, err := os.OpenFile(port, os.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	fmt.Fprintln(os.Stderr, lines.Waiting)
	if err := waitData(f); err != nil {
		return fmt.Errorf("wait for the engine: %w", err)
	}
	s, err := agent.Answer(f)
	if err != nil {
		return nil // it hung up
	}
	defer s.Close()
	for {
		st, err := s.AcceptStream()
		if err != nil {
			return nil
		}
		go g.handle(st)
	}
}

// waitData sleeps until an engine has connected and said something. Without one
// the port reads as ended and polls as hung up all the time, so only edges can be
// waited for: a loop would burn a core of the host in each idle machine.
func waitData(f *os.File) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(ep)
	var added error
	err = conn.Control(func(fd uintptr) {
		added = unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, int(fd), &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET})
	})
	if err = errors.Join(err, added); err != nil {
		return err
	}
	events := make([]unix.EpollEvent, 1)
	for {
		n, err := unix.EpollWait(ep, events, -1)
		if err != nil && err != unix.EINTR {
			return err
		}
		if n == 1 && events[0].Events&unix.EPOLLHUP == 0 {
			return nil
		}
	}
}

// handle answers one request.
func (g *guest) handle(st *yamux.Stream) {
	defer st.Close()
	kind, data, err := agent.ReadFrame(st, nil, agent.MaxRequest)
	var req agent.Request
	if err != nil || kind != agent.Ask || json.Unmarshal(data, &req) != nil {
		return
	}
	out := &agent.Frames{W: st}
	var res agent.Result
	switch {
	case req.Op == "exec" && req.Exec != nil:
		g.exec(st, out, *req.Exec)
		return
	case req.Op == "job" && req.Exec != nil && req.Job != nil:
		g.runJob(st, out, *req.Exec, *req.Job)
		return
	case req.Op == "dial":
		forward(st, out, req.Port)
		return
	case req.Op == "read" && req.File != nil:
		res, err = readFile(out, *req.File)
	case req.Op == "write" && req.File != nil:
		res, err = writeFile(st, req.File.Path)
	case req.Op == "boot" && req.Boot != nil:
		err = g.boot(*req.Boot)
	case req.Op == "ping":
		text, _ := os.ReadFile("/proc/uptime")
		res.Uptime, _, _ = strings.Cut(string(text), " ")
	case req.Op == "poweroff":
		g.shutDown()
		_ = out.JSON(agent.End, res)
		powerOff()
	default:
		err = fmt.Errorf("unknown request %q", req.Op)
	}
	if err != nil {
		res.Error = err.Error()
	}
	_ = out.JSON(agent.End, res) // an engine that hung up does not want it
}

// forward joins a stream to a port of the guest's loopback, of IPv6 where nobody
// listens at that of IPv4.
func forward(st *yamux.Stream, out *agent.Frames, port int) {
	conn, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", port), 5*time.Second)
	if err != nil {
		if other, otherErr := net.DialTimeout("tcp", fmt.Sprintf("[::1]:%d", port), 5*time.Second); otherErr == nil {
			conn, err = other, nil
		}
	}
	if err != nil {
		_ = out.JSON(agent.End, agent.Result{Error: err.Error()})
		return
	}
	defer conn.Close()
	if out.JSON(agent.End, agent.Result{}) != nil {
		return
	}
	_ = agent.Join(st, conn) // whoever sent or received notices by itself
}
