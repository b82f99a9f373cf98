//go:build linux

package engine_test

import (
	"bytes"
	"crypto/md5"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"smol-mcp/fleet"
)

// The Internet of these tests is a network namespace with a few addresses; the
// computer whose engine is tested is another. A cable joins the two, and nothing
// leads out of them.
const (
	site     = "9.9.9.9"    // on the Internet
	other    = "8.8.4.4"    // there too
	public   = "93.184.1.2" // of the computer, as a cloud's machine may have one
	private  = "10.7.0.2"   // of the computer
	neighbor = "10.7.0.1"   // in its private network
	metadata = "169.254.169.254"
	siteName = "site.test"
)

// internet puts the test's goroutine into the computer's namespace: programs that it
// starts are there, and so are sockets that it opens.
func internet(t *testing.T) {
	t.Helper()
	needMachines(t)
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip(err)
	}
	runtime.LockOSThread() // for good: the thread ends with the test
	if err := syscall.Unshare(syscall.CLONE_NEWNET | syscall.CLONE_NEWNS); errors.Is(err, syscall.EPERM) {
		t.Skip("only root can make networks")
	} else if err != nil {
		t.Fatal(err)
	}
	must(t, syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""))
	resolv := filepath.Join(t.TempDir(), "resolv.conf")
	must(t, os.WriteFile(resolv, []byte("nameserver "+site+"\nsearch site.test\n"), 0o644))
	must(t, syscall.Mount(resolv, "/etc/resolv.conf", "", syscall.MS_BIND, ""))
	far, done := make(chan int), make(chan struct{})
	var outside sync.WaitGroup
	t.Cleanup(func() {
		close(done)
		outside.Wait()
	})
	outside.Go(func() {
		runtime.LockOSThread()
		if err := syscall.Unshare(syscall.CLONE_NEWNET); err != nil {
			t.Error(err)
			close(far)
			return
		}
		far <- syscall.Gettid()
		<-far
		serveInternet(t, done)
	})
	tid := <-far
	ip(t, "link set lo up")
	ip(t, "link add cable type veth peer name far")
	ip(t, fmt.Sprintf("link set far netns %d", tid))
	ip(t, "addr add "+public+"/24 dev cable")
	ip(t, "addr add "+private+"/24 dev cable")
	ip(t, "link set cable up")
	far <- 0
	eventually(t, "the cable is there", func() bool { return ipTry("route replace default via 93.184.1.1") == nil })
}

func ipTry(line string) error {
	if out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %v: %s", line, err, out)
	}
	return nil
}

func ip(t *testing.T, line string) {
	t.Helper()
	if err := ipTry(line); err != nil {
		t.Fatal(err)
	}
}

// serveInternet sets up the Internet's end and serves until done.
func serveInternet(t *testing.T, done chan struct{}) {
	for _, line := range []string{
		"link set lo up", "link set far up", "addr add 93.184.1.1/24 dev far", "addr add " + neighbor + "/24 dev far",
		"addr add " + site + "/32 dev lo", "addr add " + other + "/32 dev lo", "addr add " + metadata + "/32 dev lo",
	} {
		if err := ipTry(line); err != nil {
			t.Error(err)
			return
		}
	}
	web, err := net.Listen("tcp4", "0.0.0.0:80")
	if err != nil {
		t.Error(err)
		return
	}
	defer web.Close()
	go http.Serve(web, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/bulk" {
			_, _ = w.Write(bulk())
			return
		}
		fmt.Fprintf(w, "page of %s\n", r.Context().Value(http.LocalAddrContextKey))
	}))
	names, err := net.ListenPacket("udp4", site+":53")
	if err != nil {
		t.Error(err)
		return
	}
	defer names.Close()
	go serveNames(names)
	<-done
}

// bulk is more than any buffer on the way holds.
func bulk() []byte { return bytes.Repeat([]byte("0123456789abcdef"), 1<<20) }

// serveNames knows site.test, and a name of the private network.
func serveNames(c net.PacketConn) {
	b := make([]byte, 2000)
	for {
		n, from, err := c.ReadFrom(b)
		if err != nil {
			return
		}
		var m dnsmessage.Message
		if m.Unpack(b[:n]) != nil || len(m.Questions) != 1 {
			continue
		}
		m.Response, m.Additionals = true, nil
		q := m.Questions[0]
		address := map[string]string{siteName + ".": site, "inside.test.": neighbor}[q.Name.String()]
		if address == "" {
			m.RCode = dnsmessage.RCodeNameError
		} else if q.Type == dnsmessage.TypeA {
			m.Answers = []dnsmessage.Resource{{
				Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: 1},
				Body:   &dnsmessage.AResource{A: [4]byte(net.ParseIP(address).To4())},
			}}
		}
		if packed, err := m.Pack(); err == nil {
			_, _ = c.WriteTo(packed, from)
		}
	}
}

// fetch gets a page in the guest. It is empty where there is none.
func fetch(t *testing.T, f fleet.Fleet, vm, at string) string {
	t.Helper()
	host, port, found := strings.Cut(at, ":")
	if !found {
		port = "80"
	}
	return sh(t, f, vm, "printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 5 "+host+" "+port+" 2>/dev/null | sed '1,/^\\r*$/d'")
}

// hostServes listens at all addresses of the computer, and tells what reached it.
func hostServes(t *testing.T, at string) (port string, reached func() []string) {
	t.Helper()
	l, err := net.Listen("tcp4", at)
	must(t, err)
	t.Cleanup(func() { l.Close() })
	var mu sync.Mutex
	var all []string
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			all = append(all, c.LocalAddr().String())
			mu.Unlock()
			_, _ = c.Read(make([]byte, 1000)) // else the answer may come before the question
			_, _ = io.WriteString(c, "HTTP/1.0 200 OK\r\n\r\nthe host's own\n")
			c.Close()
		}
	}()
	return fmt.Sprint(l.Addr().(*net.TCPAddr).Port), func() []string {
		mu.Lock()
		defer mu.Unlock()
		return append([]string(nil), all...)
	}
}

// An open network reaches the Internet, and neither the computer itself nor what is
// around it; also after the engine was killed.
func TestOpenNetwork(t *testing.T) {
	t.Parallel()
	internet(t)
	_, reached := hostServes(t, "0.0.0.0:80")
	p := spawn(t, nil)
	f := p.client(t)
	vm := booted(t, f, fleet.Spec{Name: "open", Network: fleet.Network{Open: true}})
	if m, err := f.Get(t.Context(), vm); err != nil || m.Network != "open" {
		t.Errorf("%+v, %v", m, err)
	}
	if got := fetch(t, f, vm, site); got != "page of "+site+":80\n" {
		t.Errorf("the site: %q", got)
	}
	for _, at := range []string{"127.0.0.1", "10.0.2.2", "10.0.2.3", public, private, neighbor, metadata} {
		if got := fetch(t, f, vm, at); got != "" {
			t.Errorf("%s is reached: %q", at, got)
		}
	}
	if got := sh(t, f, vm, "nslookup "+siteName+"; nslookup inside.test; cat /etc/resolv.conf"); !strings.Contains(got, site) || strings.Contains(got, neighbor) || !strings.Contains(got, "nameserver 10.0.2.3") {
		t.Errorf("names: %q", got)
	}
	page, err := f.Logs(t.Context(), vm, fleet.LogQuery{Tail: 100})
	if err != nil || !strings.Contains(strings.Join(page.Lines, "\n"), "smol-engine: refused connection to "+metadata+":80: it is not a public address") {
		t.Errorf("the console has %q, %v", page.Lines, err)
	}
	p.again(t)
	f = p.client(t)
	eventually(t, "the network is there again", func() bool { return fetch(t, f, vm, site) != "" })
	if got := fetch(t, f, vm, public); got != "" {
		t.Errorf("the computer is reached: %q", got)
	}
	if all := reached(); len(all) > 0 {
		t.Errorf("connections to the computer: %q", all)
	}
}

// Whoever runs the engine: no address of this computer is reached from a machine.
func TestHostOutOfReach(t *testing.T) {
	p := spawn(t, nil)
	port, reached := hostServes(t, "0.0.0.0:0")
	f := p.client(t)
	vm := booted(t, f, fleet.Spec{Name: "open", Network: fleet.Network{Open: true}})
	addresses := []string{"127.0.0.1", "10.0.2.2", "10.0.2.3"}
	all, err := net.InterfaceAddrs()
	must(t, err)
	for _, a := range all {
		if ip := a.(*net.IPNet).IP.To4(); ip != nil {
			addresses = append(addresses, ip.String())
		}
	}
	for _, a := range addresses {
		if got := fetch(t, f, vm, a+":"+port); got != "" {
			t.Errorf("%s is reached: %q", a, got)
		}
	}
	if all := reached(); len(all) > 0 {
		t.Errorf("connections to the computer: %q", all)
	}
	if _, err := http.Get("http://127.0.0.1:" + port + "/"); err != nil || len(reached()) != 1 {
		t.Errorf("it can be reached from here: %q, %v", reached(), err)
	}
}

// With a list, the names and ranges on it are reached and nothing else.
func TestListedNetwork(t *testing.T) {
	t.Parallel()
	internet(t)
	p := spawn(t, nil)
	f := p.client(t)
	byName := booted(t, f, fleet.Spec{Name: "by-name", Network: fleet.Network{AllowHosts: []string{siteName}}})
	if got := fetch(t, f, byName, site); got != "" {
		t.Errorf("an address nobody asked for is reached: %q", got)
	}
	if got := sh(t, f, byName, "nslookup "+siteName+"; nslookup inside.test || true"); !strings.Contains(got, site) || strings.Contains(got, neighbor) {
		t.Errorf("names: %q", got)
	}
	if one, two := fetch(t, f, byName, site), fetch(t, f, byName, other); one == "" || two != "" {
		t.Errorf("by name: %q, and another: %q", one, two)
	}
	byRange := booted(t, f, fleet.Spec{Name: "by-range", Network: fleet.Network{AllowCIDRs: []string{"8.8.0.0/16", "10.0.0.0/8"}}})
	if one, two, three := fetch(t, f, byRange, other), fetch(t, f, byRange, site), fetch(t, f, byRange, neighbor); one == "" || two+three != "" {
		t.Errorf("by range: %q, another: %q, and a private one: %q", one, two, three)
	}
	if m, err := f.Get(t.Context(), byRange); err != nil || m.Network != "allow(8.8.0.0/16,10.0.0.0/8)" {
		t.Errorf("%+v, %v", m, err)
	}
}

// Many bytes pass, and a stop while they do is none that waits.
func TestNetworkBulk(t *testing.T) {
	t.Parallel()
	internet(t)
	p := spawn(t, nil)
	f := p.client(t)
	vm := booted(t, f, fleet.Spec{Name: "bulk", Network: fleet.Network{Open: true}})
	begun := time.Now()
	if got := sh(t, f, vm, "printf 'GET /bulk HTTP/1.0\\r\\n\\r\\n' | nc -w 20 "+site+" 80 | sed '1,/^\\r*$/d' | md5sum; cat /sys/class/net/eth0/carrier"); got != fmt.Sprintf("%x  -\n1\n", md5.Sum(bulk())) {
		t.Errorf("what came has the sum %q", got)
	}
	t.Logf("16 MiB in %v", time.Since(begun))
	if _, err := f.Stop(t.Context(), vm, fleet.StopOptions{}); err != nil {
		t.Error(err)
	}
	if got := fetch(t, f, vm, site); got == "" { // which starts it
		t.Error("after a stop and a start there is no network")
	}
}
