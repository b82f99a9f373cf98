package httpd

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

// LoopbackHosts are the Host headers that a server on host accepts which only this computer
// reaches: a page elsewhere whose name was made to lead here sends its own.
func LoopbackHosts(host string) []string {
	if strings.Contains(host, ":") {
		host = "[" + strings.Trim(host, "[]") + "]"
	}
	return []string{"localhost", "127.0.0.1", "[::1]", host}
}

// IsLoopback reports whether only this computer reaches what listens on host.
func IsLoopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	addr, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil && addr.IsLoopback()
}

// checkHost refuses requests that pages of other places may have sent: those to a host
// that is not in the list, and those with an Origin that is neither.
func (s *Server) checkHost(w http.ResponseWriter, r *http.Request) bool {
	if s.opts.Hosts != nil && !listed(s.opts.Hosts, r.Host) {
		s.refuse(w, r, http.StatusForbidden, codeForbidden, "host", "forbidden: the Host header names no host of this server; SMOL_MCP_HTTP_ALLOWED_HOSTS lists them")
		return false
	}
	for _, origin := range r.Header.Values("Origin") {
		if !s.knowsOrigin(r, origin) {
			s.refuse(w, r, http.StatusForbidden, codeForbidden, "origin", "forbidden: pages of this Origin may not use this server; SMOL_MCP_HTTP_ALLOWED_ORIGINS lists those that may")
			return false
		}
	}
	return true
}

// knowsOrigin reports whether an origin is listed, or the server's own.
func (s *Server) knowsOrigin(r *http.Request, origin string) bool {
	for _, o := range s.opts.Origins {
		if strings.EqualFold(strings.TrimSuffix(o, "/"), origin) {
			return true
		}
	}
	u, err := url.Parse(origin)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return false // also null
	}
	return strings.EqualFold(u.Host, r.Host) || isLoopbackHost(u.Host) && isLoopbackHost(r.Host) && portOf(u.Host) == portOf(r.Host)
}

func isLoopbackHost(hostport string) bool {
	host, _, ok := splitHost(hostport)
	return ok && IsLoopback(host)
}

func portOf(hostport string) string {
	_, port, _ := splitHost(hostport)
	return port
}

// listed reports whether a Host header is one of hosts. An entry without a port stands
// for all ports.
func listed(hosts []string, header string) bool {
	host, port, ok := splitHost(header)
	if !ok {
		return false
	}
	for _, entry := range hosts {
		h, p, ok := splitHost(entry)
		if ok && strings.EqualFold(h, host) && (p == "" || p == port) {
			return true
		}
	}
	return false
}

// splitHost takes a Host header apart; false when it is none. The brackets of an
// address stay off.
func splitHost(s string) (host, port string, ok bool) {
	if s == "" || strings.ContainsAny(s, "/@?#* \t\\") {
		return "", "", false
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil { // without a port
		host, port = s, ""
		if strings.HasPrefix(s, "[") != strings.HasSuffix(s, "]") || strings.Contains(s, ":") && !strings.HasPrefix(s, "[") {
			return "", "", false
		}
		host = strings.Trim(host, "[]")
	} else if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return "", "", false
	}
	return strings.TrimSuffix(host, "."), port, host != ""
}

// CheckHost says why s is no entry for the list of hosts.
func CheckHost(s string) error {
	if _, _, ok := splitHost(s); !ok {
		return &url.Error{Op: "host", URL: s, Err: errNoHost}
	}
	return nil
}

// CheckOrigin says why s is no entry for the list of origins.
func CheckOrigin(s string) error {
	u, err := url.Parse(s)
	if err != nil || u.Scheme == "" || u.Host == "" || u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.User != nil {
		return &url.Error{Op: "origin", URL: s, Err: errNoOrigin}
	}
	return nil
}
