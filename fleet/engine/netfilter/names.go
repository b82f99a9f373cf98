package netfilter

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
)

const (
	nameTTL  = 30 // seconds that a guest may keep an answer
	nameWait = 8 * time.Second
	maxAddrs = 16 // of a name in one answer, which so fits the smallest of datagrams
)

// lookUp asks the resolver of this computer. The dot at the end keeps its search
// list out.
func lookUp(ctx context.Context, name string) ([]netip.Addr, error) {
	return net.DefaultResolver.LookupNetIP(ctx, "ip4", name+".")
}

// serveNames answers at the name server's address until the network ends.
func (n *Network) serveNames() error {
	server, err := gonet.DialUDP(n.stack, &tcpip.FullAddress{NIC: nic, Addr: address(DNS), Port: 53}, nil, ipv4.ProtocolNumber)
	if err != nil {
		return err
	}
	n.work.Add(1)
	go func() {
		defer n.work.Done()
		defer context.AfterFunc(n.life, func() { server.Close() })()
		n.answerNames(server)
	}()
	return nil
}

func (n *Network) answerNames(server net.PacketConn) {
	datagram := make([]byte, 4096)
	for {
		size, from, err := server.ReadFrom(datagram)
		if err != nil {
			return
		}
		q, ok := readQuestion(datagram[:size])
		if !ok || !n.begin() {
			continue // whoever asks in earnest asks again
		}
		go func() {
			defer n.leave()
			if answer, err := n.answer(q); err == nil {
				_, _ = server.WriteTo(answer, from) // as unsure as datagrams are
			}
		}()
	}
}

// question is what a guest asks.
type question struct {
	head dnsmessage.Header
	dnsmessage.Question
}

func readQuestion(datagram []byte) (question, bool) {
	var p dnsmessage.Parser
	head, err := p.Start(datagram)
	if err != nil || head.Response || head.OpCode != 0 {
		return question{}, false
	}
	q, err := p.Question()
	return question{head, q}, err == nil
}

// answer looks a name up when the policy allows it. Addresses that are out of reach
// anyhow are left out: what the names of this computer's own network are is not for
// guests to know.
func (n *Network) answer(q question) ([]byte, error) {
	name := strings.ToLower(strings.TrimSuffix(q.Name.String(), "."))
	code, found := dnsmessage.RCodeSuccess, []netip.Addr(nil)
	switch {
	case !isName(name):
		code = dnsmessage.RCodeNameError
	case !n.opts.Policy.resolves(name):
		n.refuse("look-up of "+name, "it is not on the machine's list")
		code = dnsmessage.RCodeRefused
	case q.Type == dnsmessage.TypeA && q.Class == dnsmessage.ClassINET:
		code, found = n.addresses(name)
	case q.Type == dnsmessage.TypeAAAA: // there is no IPv6 here
	default:
		code = dnsmessage.RCodeNotImplemented
	}
	return q.reply(code, found)
}

// addresses returns those that the guest may reach, and remembers them.
func (n *Network) addresses(name string) (dnsmessage.RCode, []netip.Addr) {
	ctx, cancel := context.WithTimeout(n.life, nameWait)
	defer cancel()
	all, err := n.opts.Lookup(ctx, name)
	var missing *net.DNSError
	if err != nil {
		if errors.As(err, &missing) && missing.IsNotFound {
			return dnsmessage.RCodeNameError, nil
		}
		return dnsmessage.RCodeServerFailure, nil
	}
	var found []netip.Addr
	for _, a := range all {
		a = a.Unmap()
		if len(found) < maxAddrs && public(a) && !n.opts.Own(a) && (n.opts.Policy.Open || n.known.add(a, time.Now())) {
			found = append(found, a)
		}
	}
	if len(found) == 0 && len(all) > 0 {
		n.refuse("look-up of "+name, "it has no public address")
		return dnsmessage.RCodeRefused, nil
	}
	return dnsmessage.RCodeSuccess, found
}

// reply writes an answer.
func (q question) reply(code dnsmessage.RCode, found []netip.Addr) ([]byte, error) {
	b := dnsmessage.NewBuilder(nil, dnsmessage.Header{
		ID: q.head.ID, Response: true, RecursionDesired: q.head.RecursionDesired, RecursionAvailable: true, RCode: code,
	})
	b.EnableCompression()
	if err := b.StartQuestions(); err != nil {
		return nil, err
	}
	if err := b.Question(q.Question); err != nil {
		return nil, err
	}
	if err := b.StartAnswers(); err != nil {
		return nil, err
	}
	for _, a := range found {
		head := dnsmessage.ResourceHeader{Name: q.Name, Class: dnsmessage.ClassINET, TTL: nameTTL}
		if err := b.AResource(head, dnsmessage.AResource{A: a.As4()}); err != nil {
			return nil, err
		}
	}
	return b.Finish()
}
