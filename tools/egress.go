package tools

import (
	"net/netip"
	"slices"
	"strings"

	"smol-mcp/fleet"
)

// egress is the policy that the arguments ask for. A list takes the place of
// the word, and an empty list is one: nothing may be reached.
func (c *call) egress(word string, hosts, cidrs []string, openByDefault bool) (fleet.Network, error) {
	if hosts == nil && cidrs == nil {
		return fleet.Network{Open: word == "open" || word == "" && openByDefault}, nil
	}
	for _, host := range hosts {
		if !isHostName(host) {
			return fleet.Network{}, invalid("allowHosts "+fleet.Quote(host), "it is no host name, as example.com; addresses go into allowCidrs")
		}
	}
	for _, cidr := range cidrs {
		_, prefixErr := netip.ParsePrefix(cidr)
		_, addrErr := netip.ParseAddr(cidr)
		if prefixErr != nil && addrErr != nil {
			return fleet.Network{}, invalid("allowCidrs "+fleet.Quote(cidr), "it is no address or range, as 192.0.2.0/24")
		}
	}
	return fleet.Network{AllowHosts: hosts, AllowCIDRs: cidrs}, nil
}

// isHostName accepts names of letters, digits, '-' and '_' between dots, with at least one
// letter, so that no address passes for a name; a first part of * stands for subdomains.
func isHostName(host string) bool {
	if len(host) > 253 || !strings.ContainsFunc(host, func(r rune) bool { return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' }) {
		return false
	}
	labels := strings.Split(strings.TrimPrefix(host, "*."), ".")
	return !slices.ContainsFunc(labels, func(label string) bool {
		return label == "" || len(label) > 63 || strings.ContainsFunc(label, func(r rune) bool {
			return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '_'
		})
	})
}

// describe is the policy as results show it.
func describe(n fleet.Network) string {
	switch {
	case n.Blocked():
		return "blocked"
	case n.Open:
		return "open"
	}
	return "allow(" + strings.Join(slices.Concat(n.AllowHosts, n.AllowCIDRs), ",") + ")"
}
