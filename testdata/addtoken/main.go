// Command addtoken passes HTTP requests on with a token, for clients that cannot send one:
//
//	TOKEN=... addtoken http://127.0.0.1:8080
//
// It prints its own address and runs until its standard input ends.
package main

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "addtoken:", err)
		os.Exit(1)
	}
}

func run() error {
	if len(os.Args) != 2 {
		return fmt.Errorf("usage: addtoken URL")
	}
	to, err := url.Parse(os.Args[1])
	if err != nil {
		return err
	}
	token := os.Getenv("TOKEN")
	proxy := &httputil.ReverseProxy{
		FlushInterval: -1,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = to.Scheme, to.Host // the Host header stays the client's
			r.Out.Header.Set("Authorization", "Bearer "+token)
			// With the body in hand the answer cannot overtake its end, which would cut the answer off.
			if body, err := io.ReadAll(r.In.Body); err == nil && len(body) > 0 {
				r.Out.Body = io.NopCloser(bytes.NewReader(body))
			}
		},
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Printf("http://localhost:%d\n", listener.Addr().(*net.TCPAddr).Port)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		listener.Close()
	}()
	return http.Serve(listener, proxy)
}
