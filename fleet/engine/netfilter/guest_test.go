package netfilter

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/channel"
	"gvisor.dev/gvisor/pkg/tcpip/link/ethernet"
	"gvisor.dev/gvisor/pkg/tcpip/network/arp"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"
)

// guest is a machine's end of a network: another stack, with the machine's address.
type guest struct {
	*stack.Stack
	link *channel.Endpoint
	card net.Conn // writes of frames go to the network as they are
}

// world is a network under test, and what it was asked for.
type world struct {
	*Network
	mu      sync.Mutex
	dialed  []string
	asked   []string
	refused []string
}

// newWorld makes a network whose connections all end at peer, on the loopback, and
// whose names are those of the map.
func newWorld(t *testing.T, p Policy, peer string, names map[string]string) *world {
	t.Helper()
	w := &world{}
	n, err := New(Options{
		Policy: p,
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			w.mu.Lock()
			w.dialed = append(w.dialed, address)
			w.mu.Unlock()
			var d net.Dialer
			return d.DialContext(ctx, network, peer)
		},
		Lookup: func(_ context.Context, name string) ([]netip.Addr, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.asked = append(w.asked, name)
			if a, ok := names[name]; ok {
				return []netip.Addr{netip.MustParseAddr(a)}, nil
			}
			return nil, &net.DNSError{Err: "no such host", Name: name, IsNotFound: true}
		},
		Refused: func(what string) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.refused = append(w.refused, what)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	w.Network = n
	t.Cleanup(n.Close)
	return w
}

func (w *world) said() (dialed, asked, refused []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string(nil), w.dialed...), append([]string(nil), w.asked...), append([]string(nil), w.refused...)
}

// join gives the network a guest.
func (w *world) join(t *testing.T) *guest {
	t.Helper()
	near, far := net.Pipe()
	g := &guest{card: near, link: channel.New(512, mtu+header.EthernetMinimumSize, "\x52\x54\x00\x12\x34\x56")}
	g.Stack = stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol, arp.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol, icmp.NewProtocol4},
	})
	if err := g.CreateNIC(nic, ethernet.New(g.link)); err != nil {
		t.Fatal(err)
	}
	own := tcpip.ProtocolAddress{Protocol: ipv4.ProtocolNumber, AddressWithPrefix: tcpip.AddressWithPrefix{Address: address(Guest), PrefixLen: Prefix}}
	if err := g.AddProtocolAddress(nic, own, stack.AddressProperties{}); err != nil {
		t.Fatal(err)
	}
	g.SetRouteTable([]tcpip.Route{
		{Destination: own.AddressWithPrefix.Subnet(), NIC: nic},
		{Destination: header.IPv4EmptySubnet, Gateway: address(Gateway), NIC: nic},
	})
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() { _ = w.Serve(ctx, far) })
	work.Go(func() {
		for p := g.link.ReadContext(ctx); p != nil; p = g.link.ReadContext(ctx) {
			if !send(near, p.ToView().AsSlice()) {
				return
			}
		}
	})
	work.Go(func() {
		var head [4]byte
		for {
			if _, err := io.ReadFull(near, head[:]); err != nil {
				return
			}
			frame := make([]byte, binary.BigEndian.Uint32(head[:]))
			if _, err := io.ReadFull(near, frame); err != nil {
				return
			}
			g.link.InjectInbound(0, stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(frame)}))
		}
	})
	t.Cleanup(func() {
		cancel()
		near.Close()
		g.link.Close()
		work.Wait()
		g.Destroy()
	})
	return g
}

func send(w io.Writer, frame []byte) bool {
	_, err := w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(frame))), frame...))
	return err == nil
}

func full(t *testing.T, at string) tcpip.FullAddress {
	t.Helper()
	a, err := netip.ParseAddrPort(at)
	if err != nil {
		t.Fatal(err)
	}
	return tcpip.FullAddress{NIC: nic, Addr: tcpip.AddrFrom4(a.Addr().As4()), Port: a.Port()}
}

// dial connects as a program of the guest's.
func (g *guest) dial(t *testing.T, at string) (net.Conn, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	return gonet.DialContextTCP(ctx, g.Stack, full(t, at), ipv4.ProtocolNumber)
}

// ask sends a datagram and waits for one.
func (g *guest) ask(t *testing.T, at string, datagram []byte, wait time.Duration) ([]byte, error) {
	t.Helper()
	to := full(t, at)
	c, err := gonet.DialUDP(g.Stack, nil, &to, ipv4.ProtocolNumber)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write(datagram); err != nil {
		return nil, err
	}
	_ = c.SetReadDeadline(time.Now().Add(wait))
	answer := make([]byte, mtu)
	n, err := c.Read(answer)
	return answer[:n], err
}

// ping reports whether an address answers an echo request.
func (g *guest) ping(t *testing.T, to string, wait time.Duration) bool {
	t.Helper()
	var queue waiter.Queue
	ep, err := g.NewEndpoint(icmp.ProtocolNumber4, ipv4.ProtocolNumber, &queue)
	if err != nil {
		t.Fatal(err)
	}
	c := gonet.NewUDPConn(&queue, ep)
	defer c.Close()
	if err := ep.Connect(tcpip.FullAddress{NIC: nic, Addr: address(to)}); err != nil {
		t.Fatal(err)
	}
	echo := header.ICMPv4(make([]byte, header.ICMPv4MinimumSize))
	echo.SetType(header.ICMPv4Echo)
	if _, err := c.Write(echo); err != nil {
		return false
	}
	_ = c.SetReadDeadline(time.Now().Add(wait))
	_, readErr := c.Read(make([]byte, 100))
	return readErr == nil
}
