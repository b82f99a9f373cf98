package cli

import (
	"context"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The end of the server is in time although calls run in both eras, a client reads news and
// another one sends nothing more of its request; it leaves nothing (W2).
func TestHTTPEndAmongCalls(t *testing.T) {
	p := newHTTPPlace(t)
	s := p.start()
	one, modern := s.raw(theToken), s.raw(theToken)
	modern.modern = true
	if err := one.open(); err != nil {
		t.Fatal(err)
	}
	ends := make(chan error, 2)
	for name, r := range map[string]*rawSession{"mcp-one": one, "mcp-modern": modern} {
		if _, err := r.call(t.Context(), "create-machine", map[string]any{"image": "alpine:3.20", "network": "open", "name": name}); err != nil {
			t.Fatal(err)
		}
		go func() {
			out, err := r.call(context.Background(), "run-command", map[string]any{"name": name, "command": "touch /root/begun; sleep 600", "waitSecs": 300, "timeoutSecs": 600})
			if err == nil {
				t.Errorf("a call that was cut short is answered as a success: %s", out)
			}
			ends <- err
		}()
		eventually(t, "the command runs", 20*time.Second, func() bool {
			_, err := r.call(t.Context(), "read-file", map[string]any{"name": name, "path": "/root/begun"})
			return err == nil
		})
	}
	news, err := one.request(t.Context(), http.MethodGet, "")
	if err != nil {
		t.Fatal(err)
	}
	stream, err := s.http.Do(news)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Body.Close()
	body, unfinished := io.Pipe()
	defer unfinished.Close()
	slow, err := one.request(t.Context(), http.MethodPost, "")
	if err != nil {
		t.Fatal(err)
	}
	slow.Body, slow.ContentLength = body, 1000
	go func() {
		if res, err := s.http.Do(slow); err == nil {
			res.Body.Close()
		}
	}()

	begin := time.Now()
	s.end(syscall.SIGTERM) // with exit code 143
	if took := time.Since(begin); took > endBudget+2*time.Second {
		t.Errorf("the end took %v", took)
	}
	for range 2 {
		<-ends
	}
	if left := p.machines(); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

// The log of the start says which doors stand open.
func TestHTTPOpenDoors(t *testing.T) {
	for what, c := range map[string]struct {
		env    []string
		told   []string
		untold []string
	}{
		"the loopback":      {nil, nil, []string{"Host header is not checked", "unencrypted"}},
		"all addresses":     {[]string{"SMOL_MCP_HTTP_HOST=0.0.0.0"}, []string{"Host header is not checked", "unencrypted"}, nil},
		"with allowed ones": {[]string{"SMOL_MCP_HTTP_HOST=0.0.0.0", "SMOL_MCP_HTTP_ALLOWED_HOSTS=machines.example"}, []string{"unencrypted"}, []string{"Host header is not checked"}},
	} {
		t.Run(what, func(t *testing.T) {
			s := newHTTPPlace(t, c.env...).start()
			req, err := s.raw(theToken).request(t.Context(), http.MethodPost, initialize)
			if err != nil {
				t.Fatal(err)
			}
			req.Host = "any.example"
			res, err := s.http.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			res.Body.Close()
			if served := res.StatusCode == 200; served != (what == "all addresses") {
				t.Errorf("a request to any host: %s", res.Status)
			}
			s.end(syscall.SIGTERM)
			for _, word := range c.told {
				if !strings.Contains(s.log.String(), word) {
					t.Errorf("it does not tell %q", word)
				}
			}
			for _, word := range c.untold {
				if strings.Contains(s.log.String(), word) {
					t.Errorf("it tells %q", word)
				}
			}
		})
	}
}
