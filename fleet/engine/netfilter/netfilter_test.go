package netfilter

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// public1 and public2 are addresses that a policy can open. Nothing in these tests
// connects to them: the networks dial a peer on the loopback instead.
const public1, public2 = "9.9.9.9", "8.8.4.4"

// echo serves connections that get back what they sent, once they have ended.
func echo(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				all, err := io.ReadAll(c)
				if err == nil {
					_, _ = c.Write(all)
				}
			}()
		}
	}()
	return l.Addr().String()
}

func mustPolicy(t *testing.T, open bool, hosts, cidrs []string) Policy {
	t.Helper()
	p, err := NewPolicy(open, hosts, cidrs)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Bytes pass whole in both directions, and the end of one is not the end of the other.
func TestConnection(t *testing.T) {
	w := newWorld(t, Policy{Open: true}, echo(t), nil)
	g := w.join(t)
	c, err := g.dial(t, public1+":80")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	data := make([]byte, 3<<20)
	rand.Read(data)
	go func() {
		_, _ = c.Write(data)
		_ = c.(interface{ CloseWrite() error }).CloseWrite()
	}()
	_ = c.SetDeadline(time.Now().Add(60 * time.Second))
	got, err := io.ReadAll(c)
	if err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d of %d bytes, %v", len(got), len(data), err)
	}
	if dialed, _, refused := w.said(); !slices.Equal(dialed, []string{public1 + ":80"}) || len(refused) > 0 {
		t.Errorf("dialed %q, refused %q", dialed, refused)
	}
}

// An open network reaches neither this computer nor what is around it.
func TestOutOfReach(t *testing.T) {
	peer := echo(t)
	_, port, _ := net.SplitHostPort(peer)
	w := newWorld(t, Policy{Open: true}, peer, nil)
	g := w.join(t)
	addresses := []string{"127.0.0.1", "127.1.2.3", Gateway, DNS, "10.0.2.4", "10.1.2.3", "172.16.0.1", "172.31.255.255", "192.168.1.1",
		"169.254.169.254", "100.64.0.1", "0.1.2.3", "192.0.0.1", "198.18.0.1", "240.0.0.1"}
	all, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		if ip := a.(*net.IPNet).IP.To4(); ip != nil {
			addresses = append(addresses, ip.String())
		}
	}
	var trying sync.WaitGroup
	for _, a := range addresses {
		trying.Go(func() {
			if c, err := g.dial(t, a+":"+port); err == nil {
				c.Close()
				t.Errorf("%s is reached", a)
			}
			if answer, err := g.ask(t, a+":"+port, []byte("x"), 100*time.Millisecond); err == nil {
				t.Errorf("%s answers a datagram with %q", a, answer)
			}
		})
	}
	trying.Wait()
	dialed, _, refused := w.said()
	if len(dialed) > 0 {
		t.Errorf("dialed %q", dialed)
	}
	if !slices.Contains(refused, "connection to 169.254.169.254:"+port+": it is not a public address") {
		t.Errorf("told of %q", refused)
	}
}

// Addresses of this computer are known as such, also public ones.
func TestOwnAddress(t *testing.T) {
	for a, own := range map[string]bool{"127.0.0.1": true, public1: false} {
		if ownAddress(netip.MustParseAddr(a)) != own {
			t.Errorf("%s: want %v", a, own)
		}
	}
	n, err := New(Options{Policy: Policy{Open: true}, Own: func(a netip.Addr) bool { return a.String() == public1 }})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	if why := n.refusal(netip.MustParseAddr(public1)); why != "it is an address of this computer" {
		t.Errorf("a public address of our own: %q", why)
	}
	if why := n.refusal(netip.MustParseAddr(public2)); why != "" {
		t.Errorf("another: %q", why)
	}
}

// Only the gateway and the name server answer pings: no other address was seen to live.
func TestPing(t *testing.T) {
	g := newWorld(t, Policy{Open: true}, echo(t), nil).join(t)
	for to, want := range map[string]bool{Gateway: true, DNS: true, public1: false, "10.0.2.9": false} {
		wait := 5 * time.Second
		if !want {
			wait = 100 * time.Millisecond
		}
		if got := g.ping(t, to, wait); got != want {
			t.Errorf("%s: %v", to, got)
		}
	}
}

// Datagrams pass both ways where connections may.
func TestDatagrams(t *testing.T) {
	server, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	go func() {
		b := make([]byte, 2000)
		for {
			n, from, err := server.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = server.WriteTo(append([]byte("re: "), b[:n]...), from)
		}
	}()
	w := newWorld(t, mustPolicy(t, false, nil, []string{public1}), server.LocalAddr().String(), nil)
	g := w.join(t)
	if got, err := g.ask(t, public1+":123", []byte("time?"), 10*time.Second); err != nil || string(got) != "re: time?" {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := g.ask(t, public2+":123", []byte("time?"), 200*time.Millisecond); err == nil {
		t.Errorf("what is not on the list answers %q", got)
	}
}

// lookUp asks the network's name server.
func (g *guest) lookUp(t *testing.T, name string, kind dnsmessage.Type) (dnsmessage.RCode, []string) {
	t.Helper()
	q := dnsmessage.Message{Header: dnsmessage.Header{ID: 77, RecursionDesired: true}, Questions: []dnsmessage.Question{
		{Name: dnsmessage.MustNewName(name + "."), Type: kind, Class: dnsmessage.ClassINET},
	}}
	packed, err := q.Pack()
	if err != nil {
		t.Fatal(err)
	}
	answer, err := g.ask(t, DNS+":53", packed, 10*time.Second)
	if err != nil {
		t.Fatalf("look-up of %s: %v", name, err)
	}
	var m dnsmessage.Message
	if err := m.Unpack(answer); err != nil || m.ID != 77 || !m.Response || len(m.Questions) != 1 {
		t.Fatalf("%+v, %v", m, err)
	}
	var found []string
	for _, a := range m.Answers {
		found = append(found, netip.AddrFrom4(a.Body.(*dnsmessage.AResource).A).String())
	}
	return m.RCode, found
}

// On a list an address counts once an allowed name was told to have it.
func TestAllowList(t *testing.T) {
	names := map[string]string{"api.good.test": public1, "good.test": public2, "bad.test": "8.8.8.8", "inside.good.test": "10.9.8.7", "xgood.test": "8.8.8.8"}
	w := newWorld(t, mustPolicy(t, false, []string{"*.Good.test."}, []string{"11.0.0.0/8"}), echo(t), names)
	g := w.join(t)
	reach := func(a string) bool {
		c, err := g.dial(t, a+":443")
		if err == nil {
			c.Close()
		}
		return err == nil
	}
	if reach(public1) || reach(public2) || !reach("11.2.3.4") || reach("12.0.0.1") {
		t.Error("before a look-up only the range is within reach")
	}
	for _, c := range []struct {
		name string
		kind dnsmessage.Type
		code dnsmessage.RCode
		want string
	}{
		{"API.good.test", dnsmessage.TypeA, dnsmessage.RCodeSuccess, "[" + public1 + "]"},
		{"api.good.test", dnsmessage.TypeAAAA, dnsmessage.RCodeSuccess, "[]"},
		{"api.good.test", dnsmessage.TypeTXT, dnsmessage.RCodeNotImplemented, "[]"},
		{"none.good.test", dnsmessage.TypeA, dnsmessage.RCodeNameError, "[]"},
		{"inside.good.test", dnsmessage.TypeA, dnsmessage.RCodeRefused, "[]"},
		{"bad.test", dnsmessage.TypeA, dnsmessage.RCodeRefused, "[]"},
		{"bad.test", dnsmessage.TypeTXT, dnsmessage.RCodeRefused, "[]"},
		{"xgood.test", dnsmessage.TypeA, dnsmessage.RCodeRefused, "[]"},
	} {
		if code, found := g.lookUp(t, c.name, c.kind); code != c.code || fmt.Sprint(found) != c.want {
			t.Errorf("%s %v: %v %v, want %v %s", c.name, c.kind, code, found, c.code, c.want)
		}
	}
	if !reach(public1) || reach(public2) || reach("10.9.8.7") || reach("8.8.8.8") {
		t.Error("after the look-up the address of the allowed name is within reach, and no other")
	}
	_, asked, refused := w.said()
	if slices.Contains(asked, "bad.test") || slices.Contains(asked, "xgood.test") {
		t.Errorf("a name that is not on the list was asked for: %q", asked)
	}
	if !slices.Contains(refused, "look-up of bad.test: it is not on the machine's list") {
		t.Errorf("told of %q", refused)
	}
}

// The zero policy opens nothing.
func TestNothingAllowed(t *testing.T) {
	w := newWorld(t, Policy{}, echo(t), map[string]string{"a.test": public1})
	g := w.join(t)
	if code, _ := g.lookUp(t, "a.test", dnsmessage.TypeA); code != dnsmessage.RCodeRefused {
		t.Errorf("a look-up: %v", code)
	}
	if c, err := g.dial(t, public1+":80"); err == nil {
		c.Close()
		t.Error("an address is reached")
	}
	if dialed, asked, _ := w.said(); len(dialed)+len(asked) > 0 {
		t.Errorf("dialed %q, asked for %q", dialed, asked)
	}
}

func TestPolicies(t *testing.T) {
	p := mustPolicy(t, false, []string{"a.test", "1.2.3.4"}, []string{"1.2.3.77/24", "5.6.7.8"})
	if fmt.Sprint(p.Hosts, p.CIDRs) != "[a.test] [1.2.3.0/24 5.6.7.8/32 1.2.3.4/32]" {
		t.Errorf("%+v", p)
	}
	for _, host := range []string{"", "http://a.test", "a..b", "a b", strings.Repeat("a", 64) + ".test", "*", "a.test:80"} {
		if _, err := NewPolicy(false, []string{host}, nil); err == nil {
			t.Errorf("host %q is taken", host)
		}
	}
	for _, cidr := range []string{"", "10.0.0.0/33", "x", "1.2.3.4/", "::/0", "2001:db8::1"} {
		if _, err := NewPolicy(false, nil, []string{cidr}); err == nil {
			t.Errorf("range %q is taken", cidr)
		}
	}
}

// A guest makes its frames as it likes, and the network lives on.
func TestHostileFrames(t *testing.T) {
	w := newWorld(t, Policy{Open: true}, echo(t), nil)
	g := w.join(t)
	random := mathrand.New(mathrand.NewPCG(1, 2))
	good := []byte("\x52\x55\x0a\x00\x02\x02\x52\x54\x00\x12\x34\x56\x08\x00\x45\x00\x00\x28\x00\x00\x00\x00\x40\x06\x00\x00\x0a\x00\x02\x0f\x09\x09\x09\x09")
	for i := range 20_000 {
		frame := make([]byte, random.IntN(2*mtu))
		for j := range frame {
			frame[j] = byte(random.Uint32())
		}
		if i%2 == 0 {
			copy(frame, good)
			if len(frame) > 40 {
				frame[23] = []byte{1, 6, 17, 2}[i/2%4]
			}
		}
		if !send(g.card, frame) {
			t.Fatalf("the network hung up after %d frames", i)
		}
	}
	c, err := g.dial(t, public1+":80")
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	// A length that is no frame's ends the conversation, not the network.
	_, _ = g.card.Write(binary.BigEndian.AppendUint32(nil, 1<<30))
	if c, err = w.join(t).dial(t, public1+":80"); err != nil {
		t.Fatalf("joined again: %v", err)
	}
	c.Close()
}

// Close ends what goes on, and leaves nothing.
func TestClose(t *testing.T) {
	before := runtime.NumGoroutine()
	t.Run("", func(t *testing.T) {
		w := newWorld(t, Policy{Open: true}, echo(t), nil)
		g := w.join(t)
		for range 10 {
			if _, err := g.dial(t, public1+":80"); err != nil {
				t.Fatal(err)
			}
		}
		w.Close()
		if w.begin() {
			t.Error("a flow begins after the end")
		}
	})
	for end := time.Now().Add(10 * time.Second); runtime.NumGoroutine() > before+2; runtime.Gosched() {
		if time.Now().After(end) {
			buf := make([]byte, 1<<20)
			t.Fatalf("%d goroutines before, %d after:\n%s", before, runtime.NumGoroutine(), buf[:runtime.Stack(buf, true)])
		}
	}
}

// What is refused on and on is told of now and then.
func TestNotes(t *testing.T) {
	var told []string
	n, err := New(Options{Refused: func(what string) { told = append(told, what) }})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	for i := range 1000 {
		n.refuse(fmt.Sprintf("connection %d", i%100), "why")
	}
	if len(told) != maxNotes || told[0] != "connection 0: why" {
		t.Errorf("%d: %q", len(told), told[0])
	}
}
