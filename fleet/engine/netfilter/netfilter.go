// Package netfilter is the network of one machine, in user space: it ends the
// guest's TCP and UDP here, and connects on the guest's behalf to what a policy
// allows. [New] makes one, [Network.Serve] joins it to a network card.
//
// The guest sees a network 10.0.2.0/24 with a gateway that answers nothing but
// pings, and a name server. There is no IPv6 in it. What is refused is refused at
// once, so that programs fail instead of waiting.
package netfilter

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/channel"
	"gvisor.dev/gvisor/pkg/tcpip/link/ethernet"
	"gvisor.dev/gvisor/pkg/tcpip/network/arp"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
)

// Where things are in the network of a machine.
const (
	Guest   = "10.0.2.15"
	Gateway = "10.0.2.2"
	DNS     = "10.0.2.3"
	Prefix  = 24
)

const (
	mtu      = 1500
	nic      = 1
	maxFlows = 256       // connections of a machine at once, of TCP and UDP together
	maxQueue = 512       // frames that wait for the guest
	maxFrame = 68 << 10  // bytes of a frame that QEMU may announce
	maxRoom  = 512 << 10 // bytes that a connection buffers in each direction
	dialWait = 15 * time.Second
)

// Options are a policy and how to carry it out. Empty functions have defaults.
type Options struct {
	Policy Policy
	Dial   func(ctx context.Context, network, address string) (net.Conn, error)
	Lookup func(ctx context.Context, name string) ([]netip.Addr, error) // addresses of IPv4
	Own    func(netip.Addr) bool                                        // an address of this computer

	// Refused is told of what a guest was refused, each once in a while, from any
	// goroutine.
	Refused func(what string)
}

// Network is the network of one machine. Close it.
type Network struct {
	opts  Options
	known learned
	noted notes

	stack *stack.Stack
	link  *channel.Endpoint

	life  context.Context
	end   context.CancelFunc
	mu    sync.Mutex
	flows int
	work  sync.WaitGroup
}

// New makes a network that no card is joined to yet.
func New(opts Options) (*Network, error) {
	if opts.Dial == nil {
		opts.Dial = (&net.Dialer{}).DialContext
	}
	if opts.Lookup == nil {
		opts.Lookup = lookUp
	}
	if opts.Own == nil {
		opts.Own = ownAddress
	}
	if opts.Refused == nil {
		opts.Refused = func(string) {}
	}
	n := &Network{opts: opts}
	n.life, n.end = context.WithCancel(context.Background())
	n.stack = stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol, arp.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol, icmp.NewProtocol4},
	})
	n.link = channel.New(maxQueue, mtu+header.EthernetMinimumSize, "\x52\x55\x0a\x00\x02\x02")
	if err := n.configure(); err != nil {
		n.Close()
		return nil, fmt.Errorf("make a network: %s", err)
	}
	return n, nil
}

// configure gives the stack its addresses, and lets it take what is for others.
func (n *Network) configure() error {
	if err := n.stack.CreateNIC(nic, ethernet.New(n.link)); err != nil {
		return failure{err}
	}
	for _, text := range []string{Gateway, DNS} {
		address := tcpip.ProtocolAddress{Protocol: ipv4.ProtocolNumber, AddressWithPrefix: tcpip.AddressWithPrefix{Address: address(text), PrefixLen: Prefix}}
		if err := n.stack.AddProtocolAddress(nic, address, stack.AddressProperties{}); err != nil {
			return failure{err}
		}
	}
	if err := n.stack.SetSpoofing(nic, true); err != nil {
		return failure{err}
	}
	if err := n.stack.SetPromiscuousMode(nic, true); err != nil {
		return failure{err}
	}
	n.stack.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: nic}})
	receive := tcpip.TCPReceiveBufferSizeRangeOption{Min: tcp.MinBufferSize, Default: 64 << 10, Max: maxRoom}
	send := tcpip.TCPSendBufferSizeRangeOption{Min: tcp.MinBufferSize, Default: 64 << 10, Max: maxRoom}
	if err := n.stack.SetTransportProtocolOption(tcp.ProtocolNumber, &receive); err != nil {
		return failure{err}
	}
	if err := n.stack.SetTransportProtocolOption(tcp.ProtocolNumber, &send); err != nil {
		return failure{err}
	}
	n.stack.SetTransportProtocolHandler(tcp.ProtocolNumber, tcp.NewForwarder(n.stack, 0, maxFlows, n.tcp).HandlePacket)
	n.stack.SetTransportProtocolHandler(udp.ProtocolNumber, udp.NewForwarder(n.stack, n.udp).HandlePacket)
	return n.serveNames()
}

// failure makes an error of one of the stack's.
type failure struct{ err tcpip.Error }

func (f failure) Error() string { return f.err.String() }

func address(text string) tcpip.Address { return tcpip.AddrFrom4(netip.MustParseAddr(text).As4()) }

// addr is an address of the stack's as others write it.
func addr(a tcpip.Address) netip.Addr {
	out, _ := netip.AddrFromSlice(a.AsSlice()) // always four bytes here
	return out
}

// Close ends all connections and waits until everything of the network has ended.
func (n *Network) Close() {
	n.mu.Lock()
	n.end()
	n.mu.Unlock()
	n.link.Close()
	n.stack.Close()
	n.work.Wait()
	n.stack.Wait()
}

// begin counts a flow, until leave. It reports false when there are too many, or the
// network has ended.
func (n *Network) begin() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.life.Err() != nil || n.flows >= maxFlows {
		return false
	}
	n.flows++
	n.work.Add(1)
	return true
}

func (n *Network) leave() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.flows--
	n.work.Done()
}

// Serve joins the network to a card, in the framing of QEMU's streams: four bytes of
// length, then a frame. It returns when the other side hangs up, or ctx or the
// network ends, and closes c. One card at a time.
func (n *Network) Serve(ctx context.Context, c net.Conn) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(n.life, cancel)()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	var sending sync.WaitGroup
	defer sending.Wait()
	defer cancel()
	sending.Go(func() {
		defer cancel()
		n.send(ctx, c)
	})
	err := n.receive(c)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// send gives the card what the stack has for it.
func (n *Network) send(ctx context.Context, w io.Writer) {
	var frame []byte
	for {
		p := n.link.ReadContext(ctx)
		if p == nil {
			return
		}
		frame = append(frame[:0], 0, 0, 0, 0)
		for _, part := range p.AsSlices() {
			frame = append(frame, part...)
		}
		p.DecRef()
		binary.BigEndian.PutUint32(frame, uint32(len(frame)-4))
		if _, err := w.Write(frame); err != nil {
			return
		}
	}
}

// receive gives the stack what the card sends. A guest makes the frames, so those
// that cannot be are dropped.
func (n *Network) receive(r io.Reader) error {
	in := bufio.NewReaderSize(r, 64<<10)
	var head [4]byte
	frame := make([]byte, maxFrame)
	for {
		if _, err := io.ReadFull(in, head[:]); err != nil {
			return err
		}
		size := binary.BigEndian.Uint32(head[:])
		if size > maxFrame {
			return fmt.Errorf("a frame of %d bytes", size)
		}
		if _, err := io.ReadFull(in, frame[:size]); err != nil {
			return err
		}
		if !wanted(frame[:size]) {
			continue
		}
		p := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(frame[:size])})
		n.link.InjectInbound(0, p)
		p.DecRef()
	}
}

// wanted reports whether the stack should see a frame. It takes packets for any
// address, and would answer pings for all of them.
func wanted(frame []byte) bool {
	if len(frame) < header.EthernetMinimumSize || len(frame) > mtu+header.EthernetMinimumSize {
		return false
	}
	if header.Ethernet(frame).Type() != header.IPv4ProtocolNumber {
		return true
	}
	ip := header.IPv4(frame[header.EthernetMinimumSize:])
	if len(ip) < header.IPv4MinimumSize {
		return false
	}
	to := ip.DestinationAddress()
	return ip.TransportProtocol() != header.ICMPv4ProtocolNumber || to == address(Gateway) || to == address(DNS)
}

// notes keeps a guest that tries on and on from filling its log.
type notes struct {
	mu    sync.Mutex
	since time.Time
	told  map[string]bool
}

// maxNotes bounds what is told in each minute.
const maxNotes = 20

// refuse tells what was refused, unless it has been told this minute.
func (n *Network) refuse(what, why string) {
	n.noted.mu.Lock()
	now := time.Now()
	if n.noted.told == nil || now.Sub(n.noted.since) > time.Minute {
		n.noted.since, n.noted.told = now, map[string]bool{}
	}
	tell := !n.noted.told[what] && len(n.noted.told) < maxNotes
	if tell {
		n.noted.told[what] = true
	}
	n.noted.mu.Unlock()
	if tell {
		n.opts.Refused(what + ": " + why)
	}
}
