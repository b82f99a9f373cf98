//go:build linux

package guest

import (
	"fmt"
	"net/netip"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"smol-mcp/fleet/engine/agent"
)

// joinNetwork gives the network card its address, and tells programs of the way out
// and of the name server.
func joinNetwork(n agent.Net) error {
	card, err := await("the network card", func() (string, bool) {
		entries, _ := os.ReadDir("/sys/class/net")
		for _, e := range entries {
			if e.Name() != "lo" {
				return e.Name(), true
			}
		}
		return "", false
	})
	if err != nil {
		return err
	}
	address, err := netip.ParseAddr(n.Address)
	if err != nil {
		return err
	}
	gateway, err := netip.ParseAddr(n.Gateway)
	if err != nil {
		return err
	}
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	mask := ^uint32(0) << (32 - n.Prefix)
	for _, step := range []struct {
		request uint
		value   []byte
	}{
		{unix.SIOCSIFADDR, address.AsSlice()},
		{unix.SIOCSIFNETMASK, []byte{byte(mask >> 24), byte(mask >> 16), byte(mask >> 8), byte(mask)}},
		{unix.SIOCSIFFLAGS, nil},
	} {
		req, err := unix.NewIfreq(card)
		if err != nil {
			return err
		}
		if step.value == nil {
			req.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
		} else if err := req.SetInet4Addr(step.value); err != nil {
			return err
		}
		if err := unix.IoctlIfreq(s, step.request, req); err != nil {
			return fmt.Errorf("set up %s: %w", card, err)
		}
	}
	if err := addRoute(s, gateway); err != nil {
		return fmt.Errorf("route by %s: %w", gateway, err)
	}
	_ = os.Remove("/etc/resolv.conf") // an image may have made a link of it
	return os.WriteFile("/etc/resolv.conf", []byte("nameserver "+n.DNS+"\n"), 0o644)
}

// route is the kernel's struct rtentry on machines of 64 bits.
type route struct {
	_                 uint64
	to, gateway, mask unix.RawSockaddrInet4
	flags             uint16
	_                 [2]uint64
	metric            int16
	_, mtu, window    uint64
	_                 uint16
}

// addRoute makes gateway the way to everywhere.
func addRoute(socket int, gateway netip.Addr) error {
	any := unix.RawSockaddrInet4{Family: unix.AF_INET}
	r := route{to: any, gateway: any, mask: any, flags: unix.RTF_UP | unix.RTF_GATEWAY}
	r.gateway.Addr = gateway.As4()
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(socket), unix.SIOCADDRT, uintptr(unsafe.Pointer(&r))); e != 0 {
		return e
	}
	return nil
}
