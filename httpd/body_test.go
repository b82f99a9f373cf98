package httpd_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"smol-mcp/httpd"
)

// dial opens a connection to the server and sends text.
func (r *rig) dial(text string) net.Conn {
	r.t.Helper()
	host, _, _ := strings.Cut(strings.TrimPrefix(r.url, "http://"), "/")
	conn, err := net.Dial("tcp", host)
	if err != nil {
		r.t.Fatal(err)
	}
	_ = conn.(*net.TCPConn).SetReadBuffer(4096)
	r.t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	if _, err := io.WriteString(conn, text); err != nil {
		r.t.Fatal(err)
	}
	return conn
}

func answerOf(t testing.TB, conn net.Conn) *http.Response {
	t.Helper()
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

const head = "POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + right + "\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\n"

// A body that is compressed is refused for that, and not for what it looks like.
func TestCoded(t *testing.T) {
	r := newRig(t)
	for coding, status := range map[string]int{"gzip": 415, "identity": 200} {
		res := answerOf(t, r.dial(head+"Content-Encoding: "+coding+"\r\n"+fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(initialize), initialize)))
		if text, _ := io.ReadAll(io.LimitReader(res.Body, 200)); res.StatusCode != status || status == 415 && !strings.Contains(string(text), "Content-Encoding") {
			t.Errorf("%s: %s %s", coding, res.Status, text)
		}
	}
}

// W26: a body over the limit is answered, whether its size is said before or not.
func TestTooLarge(t *testing.T) {
	r := newRig(t, func(o *httpd.Options) { o.MaxBody = 1000 })
	c := r.client().open()
	fits := c.body("echo", `{"x":"`+strings.Repeat("x", 800)+`"}`)
	if p := c.post(fits); p.status != 200 {
		t.Errorf("%d bytes: %d %s", len(fits), p.status, p.body)
	}
	if p := c.post(fits + strings.Repeat(" ", 1001-len(fits))); p.status != 413 || p.code(t) != -32005 {
		t.Errorf("1001 bytes: %d %s", p.status, p.body)
	}
	for what, text := range map[string]string{
		"announced": head + "Content-Length: 1000000000\r\n\r\n{",
		"in chunks": head + "Transfer-Encoding: chunked\r\n\r\n" + strings.Repeat("100\r\n"+strings.Repeat("x", 256)+"\r\n", 4),
		"expecting": head + "Content-Length: 1000000000\r\nExpect: 100-continue\r\n\r\n",
	} {
		if res := answerOf(t, r.dial(text)); res.StatusCode != 413 {
			t.Errorf("%s: %s", what, res.Status)
		}
	}
	// Many clients read no answer before all is sent, which is more than net/http reads on.
	large := newRig(t, func(o *httpd.Options) { o.MaxBody = 1 << 20 })
	conn := large.dial(head + fmt.Sprintf("Content-Length: %d\r\n\r\n", 3<<20))
	if _, err := io.WriteString(conn, strings.Repeat("x", 3<<20)); err != nil {
		t.Fatal(err)
	}
	if res := answerOf(t, conn); res.StatusCode != 413 {
		t.Errorf("sent to its end: %s", res.Status)
	}
	usual := newRig(t)
	c = usual.client().open()
	if p := c.call("echo", `{"x":"`+strings.Repeat("x", 9<<20)+`"}`); p.status != 200 {
		t.Errorf("9 MiB: %d", p.status)
	}
	if p := c.call("echo", `{"x":"`+strings.Repeat("x", 16<<20)+`"}`); p.status != 413 {
		t.Errorf("over 16 MiB: %d", p.status)
	}
}

// A body that does not come is not waited for, and one that comes slowly but steadily is.
func TestSlowBody(t *testing.T) {
	r := newRig(t, func(o *httpd.Options) { o.BodyTime = 200 * time.Millisecond })
	for what, text := range map[string]string{
		"nothing":    head + "Content-Length: 100\r\n\r\n",
		"a part":     head + "Content-Length: 100\r\n\r\n{",
		"in a chunk": head + "Transfer-Encoding: chunked\r\n\r\n5\r\n{",
	} {
		if res := answerOf(t, r.dial(text)); res.StatusCode != 408 {
			t.Errorf("%s: %s", what, res.Status)
		}
	}
	conn := r.dial(head + fmt.Sprintf("Content-Length: %d\r\n\r\n", len(initialize)))
	for i := range 6 { // in a second
		time.Sleep(100 * time.Millisecond) // the client is slow
		if _, err := io.WriteString(conn, initialize[i*len(initialize)/6:(i+1)*len(initialize)/6]); err != nil {
			t.Fatal(err)
		}
	}
	if res := answerOf(t, conn); res.StatusCode != 200 {
		t.Errorf("a slow one: %s", res.Status)
	}
	broken := r.dial(head + "Transfer-Encoding: chunked\r\n\r\nzz\r\n")
	if res := answerOf(t, broken); res.StatusCode != 400 {
		t.Errorf("a broken one: %s", res.Status)
	}
}

// listen serves r's sessions on a listener of our own.
func (r *rig) listen(l httpd.Listener) (address string, stop func() error) {
	r.t.Helper()
	n, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		r.t.Fatal(err)
	}
	l.Net, l.Log = n, discard()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- l.Serve(ctx, r.server.Handler(), func() error { return nil }) }()
	stop = func() error {
		cancel()
		select {
		case err := <-done:
			done <- err
			return err
		case <-time.After(10 * time.Second):
			return fmt.Errorf("Serve does not end")
		}
	}
	r.t.Cleanup(func() { _ = stop() })
	return n.Addr().String(), stop
}

// A client that does not finish the head of its request is cut off.
func TestSlowHead(t *testing.T) {
	r := newRig(t)
	address, _ := r.listen(httpd.Listener{HeadTime: 200 * time.Millisecond})
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	begin := time.Now()
	go func() { // ends with the connection
		for _, err := io.WriteString(conn, "POST /mcp HTTP/1.1\r\n"); err == nil; _, err = io.WriteString(conn, "X: y\r\n") {
			time.Sleep(10 * time.Millisecond) // the client is slow
		}
	}()
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	_, _ = io.Copy(io.Discard, conn) // until the server's end, or its reset
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("cut off after %v", took)
	}
	big := r.dial("GET /mcp HTTP/1.1\r\nHost: localhost\r\nX-Big: " + strings.Repeat("x", 2<<20) + "\r\n\r\n")
	if res := answerOf(t, big); res.StatusCode != 431 {
		t.Errorf("a large head: %s", res.Status)
	}
}

// Nothing is answered without a token, not even what net/http would answer by itself.
func TestOptionsOfAll(t *testing.T) {
	r := newRig(t)
	address, _ := r.listen(httpd.Listener{})
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	fmt.Fprint(conn, "OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n")
	if res := answerOf(t, conn); res.StatusCode != 401 {
		t.Errorf("%s", res.Status)
	}
}

// Connections over the limit are closed as they come; others go on.
func TestMaxConns(t *testing.T) {
	r := newRig(t)
	address, stop := r.listen(httpd.Listener{MaxConns: 2})
	dial := func() net.Conn {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		_ = conn.SetDeadline(time.Now().Add(time.Minute))
		return conn
	}
	ask := func(conn net.Conn) error {
		fmt.Fprintf(conn, "GET /healthz HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n\r\n", right)
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err == nil && res.StatusCode != 200 {
			err = fmt.Errorf("%s", res.Status)
		}
		return err
	}
	one, two := dial(), dial()
	for _, conn := range []net.Conn{one, two, one} {
		if err := ask(conn); err != nil {
			t.Fatal(err)
		}
	}
	if err := ask(dial()); err == nil {
		t.Error("a third connection is served")
	}
	two.Close()
	eventually(t, "there is room again", func() bool { return ask(dial()) == nil })
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// A batch is answered as older revisions want it, within its bound.
func TestBatch(t *testing.T) {
	r := newRig(t)
	c := r.client().open()
	batch := func(n int) string {
		var all []string
		for i := range n {
			all = append(all, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"ping"}`, i))
		}
		return "[" + strings.Join(all, ",") + "]"
	}
	if p := c.post(batch(32), "Mcp-Protocol-Version", "2025-03-26"); p.status != 200 || strings.Count(p.body, `"result"`) != 32 {
		t.Errorf("32: %d %s", p.status, p.body)
	}
	if p := c.post("\n "+batch(33), "Mcp-Protocol-Version", "2025-03-26"); p.status != 400 || !strings.Contains(p.body, "more than 32") {
		t.Errorf("33: %d %s", p.status, p.body)
	}
	if p := c.post(batch(2)); p.status != 400 || p.code(t) != -32600 {
		t.Errorf("a newer revision: %d %s", p.status, p.body)
	}
}

// Methods that are not there are no fault of the request: the session goes on.
func TestUnknownMethod(t *testing.T) {
	r := newRig(t)
	c := r.client().open()
	if p := c.post(`{"jsonrpc":"2.0","id":"a\u0022b","method":"no/such"}`); p.status != 200 || p.code(t) != -32601 || p.message(t)["id"] != `a"b` {
		t.Errorf("%d %s", p.status, p.body)
	}
	if p := c.post(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":7}}`); p.message(t)["error"] == nil {
		t.Errorf("odd params: %d %s", p.status, p.body)
	}
	for what, body := range map[string]string{"no JSON": `{`, "two": ping + ping, "a list": `[[]]`, "other bytes": "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\",\"params\":{\"x\":\"\xff\"}}", "null": `{"jsonrpc":"2.0","id":null,"method":"ping"}`, "fraction": `{"jsonrpc":"2.0","id":1.5,"method":"no/such"}`} {
		if p := c.post(body); p.status != 400 || p.code(t) >= 0 {
			t.Errorf("%s: %d %s", what, p.status, p.body)
		}
	}
	if p := c.post(ping); p.status != 200 {
		t.Errorf("afterwards: %d %s", p.status, p.body)
	}
	if p := c.do("PUT", ping); p.status != 405 || p.header.Get("Allow") == "" {
		t.Errorf("PUT: %d %v %s", p.status, p.header, p.body)
	}
}

// The access log names who, what and how it ended, and neither arguments nor results.
func TestAccessLog(t *testing.T) {
	r := newRig(t)
	c := r.client().open()
	if p := c.post(c.body("echo", `{"target":"local","name":"mcp-x","secret":"hush"}`), "X-Request-Id", "req-1"); p.header.Get("X-Request-Id") != "req-1" {
		t.Errorf("the request's id: %v", p.header)
	}
	if p := c.post(ping, "X-Request-Id", "no good\" id"); len(p.header.Get("X-Request-Id")) != 16 {
		t.Errorf("a bad id: %v", p.header)
	}
	c.call("own", `{}`)
	if n := len(r.log.lines("msg=request", "tool=own", "target=here")); n != 1 {
		t.Errorf("a call without a target: %d lines", n)
	}
	lines := r.log.lines("msg=request", "principal=a", "method=tools/call", "tool=echo", "target=local", "machine=mcp-x", "outcome=ok", "request=req-1", "ms=", "session="+c.session[:8])
	if len(lines) != 1 || bytes.Contains([]byte(r.log.String()), []byte("hush")) {
		t.Errorf("log:\n%s", r.log.String())
	}
}
