//go:build unix

package machine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"smol-mcp/fleet/engine/agent"
	"smol-mcp/fleet/engine/qmp"
)

// vm is how a QEMU is to be started.
type vm struct {
	dir      string // its working directory: sockets and logs are there
	uuid     string
	memoryMB int
	cpus     int
	ram      string // file behind the guest's memory; empty is memory of QEMU alone
	share    bool   // what the guest writes goes to that file; else it is a private view of it
	image    string // read-only disk; empty is a placeholder, for a guest that waits
	disk     string // its own disk
	incoming bool   // wait for a saved state
	card     bool   // a network card
	plugged  bool   // the card's other end is a socket; a template's is nothing, so that its state has none of it
	console  string // file that the console goes to; empty is a socket
}

// args is the command line. Names of files in dir are relative: the path of a
// socket may have a hundred bytes at most.
func (h host) args(v vm) []string {
	memory := fmt.Sprintf("memory-backend-ram,id=ram,size=%dM", v.memoryMB)
	if v.ram != "" {
		memory = fmt.Sprintf("memory-backend-file,id=ram,size=%dM,mem-path=%s,share=%s", v.memoryMB, comma(v.ram), onOff(v.share))
	}
	image, disk := "driver=null-co,node-name=image,read-only=on,size=65536", "driver=null-co,node-name=disk,size=65536"
	if v.image != "" {
		image = "driver=raw,node-name=image,read-only=on,file.driver=file,file.locking=off,file.filename=" + comma(v.image)
		disk = "driver=raw,node-name=disk,discard=unmap,file.driver=file,file.filename=" + comma(v.disk)
	}
	console := "socket,id=console,path=console.sock,server=on,wait=off"
	if v.console != "" {
		console = "file,id=console,path=" + comma(v.console)
	}
	args := append(h.common(h.accel, v.memoryMB, v.cpus),
		"-name", "smol-"+comma(filepath.Base(v.dir)), "-uuid", v.uuid, "-object", memory,
		"-kernel", h.boot.Kernel, "-initrd", h.boot.Initrd, "-append", kernelLine+" console="+hostArch().console,
		"-chardev", console, "-serial", "chardev:console",
		"-device", "virtio-serial-pci,id=serial",
		"-chardev", "socket,id=agent,path=agent.sock,server=on,wait=off",
		"-device", "virtserialport,bus=serial.0,chardev=agent,name="+agent.PortName,
		"-blockdev", image, "-device", "virtio-blk-pci,drive=image",
		"-blockdev", disk, "-device", "virtio-blk-pci,drive=disk",
		"-object", "rng-random,id=rng,filename=/dev/urandom", "-device", "virtio-rng-pci,rng=rng",
		"-qmp", "unix:qmp.sock,server=on,wait=off",
	)
	switch {
	case v.card && v.plugged:
		args = append(args, "-netdev", "stream,id=net,server=on,addr.type=unix,addr.path=net.sock", "-device", "virtio-net-pci,id=card,netdev=net,romfile=")
	case v.card:
		args = append(args, "-device", "virtio-net-pci,id=card,romfile=")
	}
	if v.incoming {
		args = append(args, "-incoming", "defer", "-S")
	}
	return args
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

// comma writes a comma as QEMU's option lists take it.
func comma(text string) string { return strings.ReplaceAll(text, ",", ",,") }

// spawn starts a QEMU in a session of its own, with nothing open of ours but a log.
// The caller records it.
func (m *Manager) spawn(v vm) (*process, error) {
	for _, sock := range socketsOf(v.dir) {
		if err := os.Remove(sock); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
	}
	out, err := os.OpenFile(filepath.Join(v.dir, "qemu.log"), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	cmd := exec.Command(m.host.qemu, m.host.args(v)...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = v.dir, out, out
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{PID: cmd.Process.Pid, Begun: begun(cmd.Process.Pid), BootID: m.host.bootID}
	go func() { _ = cmd.Wait() }() // ends with QEMU, which may outlive us
	return p, nil
}

// monitor connects to QEMU's monitor, as soon as it listens. It fails when the
// process ends before.
func (m *Manager) monitor(ctx context.Context, dir string, p *process) (*qmp.Client, error) {
	for wait := 2 * time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		conn, err := dialIn(ctx, dir, "qmp.sock")
		if err == nil {
			q, err := qmp.Dial(ctx, conn)
			if err != nil && awaitEnd(ctx, p.PID, p.Begun, time.Second) {
				return nil, m.ended(dir) // which says more than a connection that broke
			}
			return q, err
		}
		if !p.alive(m.host.bootID) {
			return nil, m.ended(dir)
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, fmt.Errorf("QEMU does not listen: %w (%w)", err, context.Cause(ctx))
		}
	}
}

// ended says why a QEMU is gone, with its own last words.
func (m *Manager) ended(dir string) error {
	m.settle(dir)
	said, _ := os.ReadFile(filepath.Join(dir, "qemu.log"))
	console, _ := os.ReadFile(filepath.Join(dir, "console.log"))
	return errors.New(lastSaid(tail(said, 400), tail(console, 400)))
}

// lastSaid tells of an end what there is to tell.
func lastSaid(said, console string) string {
	text := "QEMU ended"
	if said == "" && console == "" {
		return text + " without a word"
	}
	if said != "" {
		text += "; it printed: " + said
	}
	if console != "" {
		text += "; the console ends with: " + console
	}
	return text
}

// dialIn connects to a socket in a directory, however long the directory's name is.
func dialIn(ctx context.Context, dir, name string) (*net.UnixConn, error) {
	path := filepath.Join(dir, name)
	if len(path) > 100 {
		short, closeDir, err := shortPath(dir)
		if err != nil {
			return nil, err
		}
		defer closeDir()
		path = filepath.Join(short, name)
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	return conn.(*net.UnixConn), nil
}
