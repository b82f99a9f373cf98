package netfilter

import (
	"context"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"
)

// goal is where a guest wants to.
func goal(id stack.TransportEndpointID) netip.AddrPort {
	return netip.AddrPortFrom(addr(id.LocalAddress), id.LocalPort)
}

// tcp takes a connection of the guest's to any address. The guest's succeeds when
// ours did; a goroutine of the stack runs it.
func (n *Network) tcp(r *tcp.ForwarderRequest) {
	if !n.begin() {
		r.Complete(true)
		return
	}
	defer n.leave()
	to := goal(r.ID())
	if why := n.refusal(to.Addr()); why != "" {
		n.refuse("connection to "+to.String(), why)
		r.Complete(true)
		return
	}
	ctx, cancel := context.WithTimeout(n.life, dialWait)
	defer cancel()
	out, err := n.opts.Dial(ctx, "tcp4", to.String())
	if err != nil {
		r.Complete(true)
		return
	}
	defer out.Close()
	var queue waiter.Queue
	ep, failed := r.CreateEndpoint(&queue)
	r.Complete(false)
	if failed != nil {
		return
	}
	ep.SocketOptions().SetKeepAlive(true)
	in := gonet.NewTCPConn(&queue, ep)
	defer in.Close()
	defer context.AfterFunc(n.life, func() {
		in.Close()
		out.Close()
	})()
	join(in, out)
}

// join copies between two connections until both directions have ended.
func join(a, b net.Conn) {
	var both sync.WaitGroup
	pipe := func(to, from net.Conn) {
		_, err := io.Copy(to, from)
		half, ok := to.(interface{ CloseWrite() error })
		if err == nil && ok && half.CloseWrite() == nil {
			return
		}
		a.Close() // a break in one direction ends both
		b.Close()
	}
	both.Go(func() { pipe(a, b) })
	both.Go(func() { pipe(b, a) })
	both.Wait()
}

// How long a flow of UDP is kept that nothing passes through.
const (
	idle     = time.Minute
	idleName = 10 * time.Second // of a question to a name server
)

// udp takes the first datagram to an address. The stack waits for it, and tells the
// guest that nobody listens there when it returns false.
func (n *Network) udp(r *udp.ForwarderRequest) bool {
	to := goal(r.ID())
	if why := n.refusal(to.Addr()); why != "" {
		n.refuse("datagram to "+to.String(), why)
		return false
	}
	if !n.begin() {
		return true // dropped, as a busy network does
	}
	out, err := n.opts.Dial(n.life, "udp4", to.String()) // sends nothing, so does not wait
	if err != nil {
		n.leave()
		return false
	}
	var queue waiter.Queue
	ep, failed := r.CreateEndpoint(&queue)
	if failed != nil {
		out.Close()
		n.leave()
		return true
	}
	in := gonet.NewUDPConn(&queue, ep)
	wait := idle
	if to.Port() == 53 {
		wait = idleName
	}
	go func() {
		defer n.leave()
		defer context.AfterFunc(n.life, func() {
			in.Close()
			out.Close()
		})()
		exchange(in, out, wait)
	}()
	return true
}

// exchange passes datagrams until there are none for as long as wait.
func exchange(a, b net.Conn, wait time.Duration) {
	timer := time.AfterFunc(wait, func() {
		a.Close()
		b.Close()
	})
	defer timer.Stop()
	var both sync.WaitGroup
	pass := func(to, from net.Conn) {
		defer a.Close()
		defer b.Close()
		datagram := make([]byte, mtu) // larger ones are cut off by no guest of this network
		for {
			size, err := from.Read(datagram)
			if err != nil {
				return
			}
			timer.Reset(wait)
			if _, err := to.Write(datagram[:size]); err != nil {
				return
			}
		}
	}
	both.Go(func() { pass(a, b) })
	both.Go(func() { pass(b, a) })
	both.Wait()
}
