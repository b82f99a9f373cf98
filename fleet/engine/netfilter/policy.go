package netfilter

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"
)

// Policy is what a machine may reach. The zero value is nothing at all. Whatever it
// says, addresses that are not public, and those of this computer, are out of reach.
type Policy struct {
	Open  bool           // every public address
	Hosts []string       // names, in lower case, each with its subdomains
	CIDRs []netip.Prefix // IPv4 ranges
}

// NewPolicy checks lists as a request names them: names, ranges, and single addresses.
func NewPolicy(open bool, hosts, cidrs []string) (Policy, error) {
	p := Policy{Open: open}
	for _, host := range hosts {
		if _, err := netip.ParseAddr(host); err == nil {
			cidrs = append(slices.Clip(cidrs), host) // smolvm takes addresses here too
			continue
		}
		name := strings.ToLower(strings.TrimSuffix(strings.TrimPrefix(host, "*."), "."))
		if !isName(name) {
			return p, fmt.Errorf("'%s' is not the name of a host", host)
		}
		p.Hosts = append(p.Hosts, name)
	}
	for _, cidr := range cidrs {
		prefix, err := netip.ParsePrefix(cidr)
		if addr, addrErr := netip.ParseAddr(cidr); err != nil && addrErr == nil {
			prefix, err = netip.PrefixFrom(addr, addr.BitLen()), nil
		}
		if err != nil {
			return p, fmt.Errorf("invalid CIDR '%s'", cidr)
		}
		if !prefix.Addr().Is4() {
			return p, fmt.Errorf("CIDR '%s': the networks of this engine have no IPv6, so leave it out", cidr)
		}
		p.CIDRs = append(p.CIDRs, prefix.Masked())
	}
	return p, nil
}

// isName reports whether text could be asked of a name server.
func isName(text string) bool {
	if text == "" || len(text) > 253 {
		return false
	}
	for label := range strings.SplitSeq(text, ".") {
		if label == "" || len(label) > 63 || strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
			return false
		}
	}
	return true
}

// resolves reports whether the name may be looked up. With ranges alone none may: a
// look-up reaches whoever serves the name, and can carry anything there.
func (p Policy) resolves(name string) bool {
	if p.Open {
		return true
	}
	for _, h := range p.Hosts {
		if name == h || strings.HasSuffix(name, "."+h) {
			return true
		}
	}
	return false
}

// notPublic are the ranges that no policy opens: this host, private and shared
// networks, link-local ones with the metadata services of clouds, documentation,
// benchmarks, multicast and what is reserved.
var notPublic = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("100.64.0.0/10"),
	netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("169.254.0.0/16"), netip.MustParsePrefix("172.16.0.0/12"),
	netip.MustParsePrefix("192.0.0.0/24"), netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("192.88.99.0/24"),
	netip.MustParsePrefix("192.168.0.0/16"), netip.MustParsePrefix("198.18.0.0/15"), netip.MustParsePrefix("198.51.100.0/24"),
	netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("224.0.0.0/4"), netip.MustParsePrefix("240.0.0.0/4"),
}

// public reports whether an address is one of the Internet's, of IPv4.
func public(addr netip.Addr) bool {
	if !addr.Is4() {
		return false
	}
	for _, p := range notPublic {
		if p.Contains(addr) {
			return false
		}
	}
	return true
}

// ownAddress reports whether an address is one of this computer's: of an interface, or
// one that it routes to itself, as load balancers set up. No packet is sent.
func ownAddress(addr netip.Addr) bool {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return true // not known, so not allowed
	}
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok {
			if own, ok := netip.AddrFromSlice(n.IP); ok && own.Unmap() == addr {
				return true
			}
		}
	}
	c, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, 9)))
	if err != nil {
		return false // there is no way there, and a connection will say so
	}
	defer c.Close()
	from, ok := c.LocalAddr().(*net.UDPAddr)
	return ok && from.AddrPort().Addr().Unmap() == addr
}

// Addresses that an allowed name was told to have are allowed for a while, and a
// guest keeps being told them while it asks.
const (
	learnFor = 10 * time.Minute
	maxLearn = 4096
)

// learned are addresses that allowed names had, and until when they count.
type learned struct {
	mu    sync.Mutex
	until map[netip.Addr]time.Time
}

// add notes an address. It reports false when there are too many.
func (l *learned) add(addr netip.Addr, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.until == nil {
		l.until = map[netip.Addr]time.Time{}
	}
	if len(l.until) >= maxLearn {
		for a, t := range l.until {
			if now.After(t) {
				delete(l.until, a)
			}
		}
		if len(l.until) >= maxLearn {
			return false
		}
	}
	l.until[addr] = now.Add(learnFor)
	return true
}

func (l *learned) has(addr netip.Addr, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return now.Before(l.until[addr])
}

// refusal says why an address is out of reach; empty when it is not.
func (n *Network) refusal(addr netip.Addr) string {
	switch {
	case !public(addr):
		return "it is not a public address"
	case n.opts.Own(addr):
		return "it is an address of this computer"
	case n.opts.Policy.Open || n.known.has(addr, time.Now()):
		return ""
	}
	for _, c := range n.opts.Policy.CIDRs {
		if c.Contains(addr) {
			return ""
		}
	}
	return "it is not on the machine's list"
}
