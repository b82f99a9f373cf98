package httpd_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"smol-mcp/httpd"
)

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

// Streams on which nothing is said say that they live, in both revisions, and what comes
// after that is still read.
func TestKeepAlive(t *testing.T) {
	r := newRig(t, func(o *httpd.Options) { o.KeepAlive = 250 * time.Millisecond })
	c, m := r.client().open(), r.modern()
	for what, begin := range map[string]func() (<-chan string, func()){
		"news": func() (<-chan string, func()) { return c.stream("GET", "") },
		"old":  func() (<-chan string, func()) { return c.stream("POST", c.body("work", `{}`)) },
		"new":  func() (<-chan string, func()) { return m.stream("POST", m.body("work", `{}`), m.named("work")...) },
	} {
		lines := first(begin()) // one at a time: whoever works takes the release
		for range 3 {
			awaitLine(t, lines, ": still there")
		}
		if what == "news" {
			continue
		}
		r.release <- struct{}{}
		awaitLine(t, lines, `"done"`)
	}
	// An error that would have been the whole answer becomes an event of the stream.
	bad := first(m.stream("POST", strings.Replace(m.body("work", `{}`), `"name":"work"`, `"name":"work","task":{}`, 1), m.named("work")...))
	awaitLine(t, bad, ": still there")
	r.release <- struct{}{}
	awaitLine(t, bad, "data: ")
}

func first(lines <-chan string, _ func()) <-chan string { return lines }

// A session that takes its time to open is told by its id, which stands in the header: nothing is
// sent before that is known.
func TestSlowOpening(t *testing.T) {
	every := 10 * time.Millisecond
	r := newRig(t, func(o *httpd.Options) {
		o.KeepAlive = every
		open := o.Open
		o.Open = func(in httpd.Opening) (httpd.Session, error) {
			s, err := open(in)
			s.Server().AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
				return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
					if method == "initialize" {
						<-time.After(20 * every) // many beats
					}
					return next(ctx, method, req)
				}
			})
			return s, err
		}
	})
	c := r.client().open() // with an id
	if p := c.call("echo", `{}`); p.status != 200 {
		t.Errorf("a call: %d %s", p.status, p.body)
	}
}

// A client that reads nothing is cut off, and what it asked for goes on without it.
func TestSlowReader(t *testing.T) {
	r := newRig(t, func(o *httpd.Options) { o.WriteTime = 200 * time.Millisecond })
	c := r.client().open()
	const size = 8 << 20 // more than sockets hold, on both ends
	big := c.body("echo", `{"x":"`+strings.Repeat("x", size)+`"}`)
	r.dial("POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + right + "\r\nMcp-Session-Id: " + c.session +
		"\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\n" + fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(big), big))
	eventually(t, "the answer is given up", func() bool { return len(r.log.lines("a client takes nothing")) > 0 })
	if p := c.post(ping); p.status != 200 {
		t.Errorf("afterwards: %d", p.status)
	}
}

// certificate writes a self-signed certificate and its key.
func certificate(t testing.TB, cert, key, name string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), DNSNames: []string{name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	for path, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "EC PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// Over TLS, in both versions of HTTP; a new certificate is taken without a restart.
func TestTLS(t *testing.T) {
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	certificate(t, cert, key, "one.example")
	r := newRig(t)
	address, _ := r.listen(httpd.Listener{Cert: cert, Key: key})
	presented := func(h2 bool) string {
		transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: h2}
		defer transport.CloseIdleConnections()
		c := r.client()
		c.version = ""
		req := c.request(t.Context(), "POST", initialize)
		req.URL.Scheme, req.URL.Host, req.Host = "https", address, "localhost"
		res, err := transport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		if err != nil || res.StatusCode != 200 || !strings.Contains(string(text), "protocolVersion") || h2 != (res.ProtoMajor == 2) {
			t.Fatalf("%s %s %v %s", res.Proto, res.Status, err, text)
		}
		return res.TLS.PeerCertificates[0].DNSNames[0]
	}
	if name := presented(false); name != "one.example" {
		t.Error(name)
	}
	if name := presented(true); name != "one.example" {
		t.Error(name)
	}
	certificate(t, cert, key, "second.example")
	eventually(t, "the new certificate is shown", func() bool { return presented(true) == "second.example" })
	conn, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS11})
	if err == nil {
		conn.Close()
		t.Error("TLS 1.1 is spoken")
	}
	n, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := (httpd.Listener{Net: n, Cert: cert, Key: cert, Log: discard()}).Serve(t.Context(), r.server.Handler(), func() error { return nil }); err == nil {
		t.Error("a certificate without its key is served")
	}
	if runtime.GOOS == "windows" {
		return // modes do not say who may read a file
	}
	if n, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(key, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := (httpd.Listener{Net: n, Cert: cert, Key: key, Log: discard()}).Serve(t.Context(), r.server.Handler(), func() error { return nil }); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("a key that others can read: %v", err)
	}
}
