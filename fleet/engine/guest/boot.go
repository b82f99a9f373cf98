//go:build linux

package guest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"smol-mcp/fleet/engine/agent"
)

// boot makes the guest the machine that b describes. Random numbers, name and
// clock come first: until then the guest is a copy of others.
func (g *guest) boot(b agent.Boot) error {
	if !g.booted.CompareAndSwap(false, true) {
		return errors.New("the machine has booted")
	}
	if err := reseed(b.Entropy); err != nil {
		return fmt.Errorf("reseed the random numbers: %w", err)
	}
	if err := unix.Sethostname([]byte(b.Hostname)); err != nil {
		return fmt.Errorf("set the name: %w", err)
	}
	now := unix.NsecToTimeval(b.UnixNano)
	if err := unix.Settimeofday(&now); err != nil {
		return fmt.Errorf("set the clock: %w", err)
	}
	loadModules("/modules/second")
	if err := mountRoot(b.Grow); err != nil {
		return err
	}
	if _, err := os.Stat(cgroups + "/cgroup.procs"); err == nil {
		g.jobs.Groups = cgroups
	}
	if err := loopbackUp(); err != nil {
		say("loopback: %v", err)
	}
	writeNames(b.Hostname)
	if b.Net != nil {
		if err := joinNetwork(*b.Net); err != nil {
			return fmt.Errorf("join the network: %w", err)
		}
	}
	say("machine %s is up", b.Hostname)
	if b.Workload != nil {
		g.workload(*b.Workload)
	}
	return nil
}

// reseed mixes the engine's bytes in and makes the kernel draw a new key at
// once: without it, two copies of one guest would give out the same numbers.
func reseed(entropy []byte) error {
	f, err := os.OpenFile("/dev/urandom", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	info := make([]byte, 8+len(entropy)) // struct rand_pool_info
	binary.NativeEndian.PutUint32(info, uint32(len(entropy)*8))
	binary.NativeEndian.PutUint32(info[4:], uint32(len(entropy)))
	copy(info[8:], entropy)
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, f.Fd(), unix.RNDADDENTROPY, uintptr(unsafe.Pointer(&info[0]))); e != 0 {
		return e
	}
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, f.Fd(), unix.RNDRESEEDCRNG, 0); e != 0 {
		return e
	}
	return nil
}

// mountRoot lays the machine's own disk over the image, both found in the order
// in which the engine attaches them, and makes the result the root.
func mountRoot(grow bool) error {
	for _, d := range []string{"/lower", "/own", "/new"} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	for _, d := range []struct {
		dev, at string
		flags   uintptr
	}{{"/dev/vda", "/lower", unix.MS_RDONLY}, {"/dev/vdb", "/own", unix.MS_NOATIME}} {
		if _, err := await(d.dev, func() (struct{}, bool) { _, err := os.Stat(d.dev); return struct{}{}, err == nil }); err != nil {
			return err
		}
		if err := unix.Mount(d.dev, d.at, "ext4", d.flags, ""); err != nil {
			return fmt.Errorf("mount %s: %w", d.dev, err)
		}
	}
	if grow {
		if err := growDisk("/own", "/dev/vdb"); err != nil {
			return fmt.Errorf("grow the disk: %w", err)
		}
	}
	// /tmp begins empty with each boot, and on disk, since machines are small.
	if err := os.RemoveAll("/own/upper/tmp"); err != nil {
		return err
	}
	for _, d := range []string{"/own/upper", "/own/work"} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	if err := unix.Mount("overlay", "/new", "overlay", 0, "lowerdir=/lower,upperdir=/own/upper,workdir=/own/work"); err != nil {
		return fmt.Errorf("mount the root: %w", err)
	}
	return enterRoot()
}

// cgroups is where control groups are made; the first of them has all processes.
const cgroups = "/sys/fs/cgroup"

// enterRoot moves into /new, with what an image does not carry.
func enterRoot() error {
	for _, d := range []string{"proc", "sys", "dev"} {
		if err := os.MkdirAll("/new/"+d, 0o755); err != nil {
			return err
		}
		if err := unix.Mount("/"+d, "/new/"+d, "", unix.MS_MOVE, ""); err != nil {
			return fmt.Errorf("move /%s: %w", d, err)
		}
	}
	_ = os.RemoveAll("/modules") // their memory
	_ = os.Remove("/init")
	if err := os.Chdir("/new"); err != nil {
		return err
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("enter the root: %w", err)
	}
	if err := errors.Join(unix.Chroot("."), os.Chdir("/")); err != nil {
		return fmt.Errorf("enter the root: %w", err)
	}
	for _, d := range []string{"/tmp", "/root", "/run", "/etc", "/dev/pts", "/dev/shm"} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	_ = os.Chmod("/tmp", 0o1777)
	for _, m := range []struct{ kind, at, data string }{
		{"tmpfs", "/run", "mode=0755"}, {"tmpfs", "/dev/shm", "mode=1777"},
		{"devpts", "/dev/pts", "ptmxmode=0666,mode=0620,gid=5"}, {"cgroup2", cgroups, ""},
	} {
		if err := unix.Mount(m.kind, m.at, m.kind, unix.MS_NOSUID, m.data); err != nil {
			say("mount %s: %v", m.at, err)
		}
	}
	for name, to := range map[string]string{"fd": "fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"} {
		_ = os.Symlink("/proc/self/"+to, "/dev/"+name)
	}
	return nil
}

// growDisk makes a mounted ext4 as large as its device.
func growDisk(at, dev string) error {
	d, err := os.Open(dev)
	if err != nil {
		return err
	}
	defer d.Close()
	var size uint64
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, d.Fd(), unix.BLKGETSIZE64, uintptr(unsafe.Pointer(&size))); e != 0 {
		return e
	}
	f, err := os.Open(at)
	if err != nil {
		return err
	}
	defer f.Close()
	const resize = 0x40086610 // EXT4_IOC_RESIZE_FS
	blocks := size / 4096
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, f.Fd(), resize, uintptr(unsafe.Pointer(&blocks))); e != 0 {
		return e
	}
	return nil
}

// writeNames writes what programs expect of a machine that has a name. An image
// may have made links of them.
func writeNames(hostname string) {
	for path, text := range map[string]string{
		"/etc/hostname": hostname + "\n",
		"/etc/hosts":    "127.0.0.1 localhost " + hostname + "\n::1 localhost\n",
	} {
		_ = os.Remove(path)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			say("%v", err)
		}
	}
}

func loopbackUp() error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	req, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	req.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, req)
}
