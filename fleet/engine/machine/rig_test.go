//go:build unix

package machine

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"smol-mcp/fleet/engine/agent"
	"smol-mcp/fleet/engine/image"
)

// asQEMU has the test binary stand for QEMU.
const asQEMU = "SMOL_TEST_AS_QEMU"

func TestMain(m *testing.M) {
	if os.Getenv(asQEMU) == "" {
		os.Exit(m.Run())
	}
	if err := briefQEMU(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// briefQEMU is a QEMU whose guest answers that it has booted, and ends within the next millisecond.
func briefQEMU() error {
	l, err := net.Listen("unix", "agent.sock")
	if err != nil {
		return err
	}
	_, st, _, err := guestOf(l)
	if err != nil {
		return err
	}
	f := agent.Frames{W: st}
	if err := f.JSON(agent.End, agent.Result{}); err != nil {
		return err
	}
	time.Sleep(rand.N(time.Millisecond)) // so that the end meets all that a start does last
	return nil
}

// guestOf takes the first request of whoever connects to a guest; its conversation is open until
// conn is closed.
func guestOf(l net.Listener) (conn, st net.Conn, request []byte, err error) {
	if conn, err = l.Accept(); err != nil {
		return nil, nil, nil, err
	}
	s, err := agent.Answer(conn)
	if err == nil {
		st, err = s.AcceptStream()
	}
	if err == nil {
		_, request, err = agent.ReadFrame(st, nil, agent.MaxRequest)
	}
	return conn, st, request, err
}

// managerOf is a manager of a computer with that QEMU, and of one machine, m. Its directory has a
// short path, for sockets.
func managerOf(t *testing.T, qemu string, spec Spec) (m *Manager, vm *machine) {
	t.Helper()
	dir, err := os.MkdirTemp("", "m")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	images, err := image.Open(filepath.Join(dir, "images"))
	must(t, err)
	m = &Manager{
		opts:     Options{Data: dir, Cache: dir, Images: images, Cold: true, Log: slog.New(slog.DiscardHandler)},
		host:     host{qemu: qemu, accel: "tcg", bootID: bootID()},
		machines: map[string]*machine{},
	}
	m.life, m.end = context.WithCancel(context.Background())
	must(t, os.Mkdir(filepath.Join(dir, "machines"), 0o700))
	spec.Name, spec.CPUs, spec.MemoryMB = "m", 1, 128
	_, err = m.Create(spec)
	must(t, err)
	vm, err = m.find("m")
	must(t, err)
	t.Cleanup(func() { // as Close
		m.end()
		vm.mu.Lock()
		vm.letGo()
		vm.mu.Unlock()
		m.work.Wait()
	})
	return m, vm
}

// running has a program stand for the QEMU of a machine, and returns where the guest listens. The
// program ends by itself when finish is called.
func running(t *testing.T, vm *machine) (qemu *exec.Cmd, guest net.Listener, finish func() error) {
	t.Helper()
	qemu = exec.Command("cat")
	in, err := qemu.StdinPipe()
	must(t, err)
	must(t, qemu.Start())
	t.Cleanup(func() { _ = qemu.Process.Kill(); _ = qemu.Wait() })
	guest, err = net.Listen("unix", filepath.Join(vm.dir, "agent.sock"))
	must(t, err)
	t.Cleanup(func() { guest.Close() })
	p := &process{PID: qemu.Process.Pid, Begun: begun(qemu.Process.Pid), BootID: bootID()}
	must(t, vm.change(func(r *Record) { r.State, r.Process = Running, p }))
	return qemu, guest, in.Close
}
