package httpd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"time"
)

// Bounds of connections.
const (
	DefaultMaxConns = 4096
	DefaultHeadTime = 10 * time.Second
	idleConnTime    = 2 * time.Minute
	maxHeader       = 64 << 10
	drainTime       = time.Second // for the last answers, when all sessions have ended
)

// Listener is where a server is reached.
type Listener struct {
	Net      net.Listener
	Cert     string        // file of the certificate and its chain; empty: no TLS
	Key      string        // file of its key
	MaxConns int           // at once; 0: DefaultMaxConns
	HeadTime time.Duration // for the head of a request to come; 0: DefaultHeadTime
	Log      *slog.Logger
}

// Serve answers requests with handler until ctx ends or the listener fails. Then end is
// called, while the last requests still run; what is not answered soon after it is
// cut off. The error is the listener's, and of end.
func (l Listener) Serve(ctx context.Context, handler http.Handler, end func() error) error {
	set(&l.HeadTime, DefaultHeadTime)
	set(&l.MaxConns, DefaultMaxConns)
	server := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: l.HeadTime,
		IdleTimeout:       idleConnTime,
		MaxHeaderBytes:    maxHeader,
		// "OPTIONS *" is nothing that a server without a token answers either.
		DisableGeneralOptionsHandler: true,
		ErrorLog:                     slog.NewLogLogger(l.Log.Handler(), slog.LevelDebug),
	}
	listener := net.Listener(newBounded(l.Net, l.MaxConns))
	if l.Cert != "" {
		pair := &keyPair{cert: l.Cert, key: l.Key}
		if _, err := pair.get(nil); err != nil {
			_ = l.Net.Close()
			return err
		}
		server.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: pair.get}
	}
	failed := make(chan error, 1)
	go func() { // ends with the listener, below
		if l.Cert != "" {
			failed <- server.ServeTLS(listener, "", "")
			return
		}
		failed <- server.Serve(listener)
	}()
	var err error
	select {
	case <-ctx.Done():
	case err = <-failed:
		failed <- err
	}
	endErr := end()
	drain, cancel := context.WithTimeout(context.Background(), drainTime)
	defer cancel()
	if server.Shutdown(drain) != nil {
		_ = server.Close() // the connections of clients that read nothing
	}
	if served := <-failed; err == nil && !errors.Is(served, http.ErrServerClosed) {
		err = served
	}
	return errors.Join(err, endErr)
}

// bounded is a listener with so many connections at once. More are closed as they come: a
// client that waits without a word would not know why.
type bounded struct {
	net.Listener
	places chan struct{}
}

func newBounded(l net.Listener, most int) *bounded {
	return &bounded{l, make(chan struct{}, most)}
}

// Accept implements [net.Listener].
func (b *bounded) Accept() (net.Conn, error) {
	for {
		conn, err := b.Listener.Accept()
		if err != nil {
			return nil, err
		}
		select {
		case b.places <- struct{}{}:
			return &counted{Conn: conn, free: sync.OnceFunc(func() { <-b.places })}, nil
		default:
			_ = conn.Close()
		}
	}
}

type counted struct {
	net.Conn
	free func()
}

// Close implements [net.Conn].
func (c *counted) Close() error {
	defer c.free()
	return c.Conn.Close()
}

// keyPair is a certificate that is read again when its file has changed.
type keyPair struct {
	cert, key string

	mu     sync.Mutex
	loaded *tls.Certificate
	stamp  stamp
	looked time.Time
}

// get returns the certificate; the last one that was good while a new one is not.
func (k *keyPair) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.loaded != nil && time.Since(k.looked) < lookEvery {
		return k.loaded, nil
	}
	k.looked = time.Now()
	now := stampOf(os.Stat(k.cert))
	if k.loaded != nil && now == k.stamp {
		return k.loaded, nil
	}
	pair, err := k.load()
	if err != nil && k.loaded != nil {
		return k.loaded, nil
	}
	if err != nil {
		return nil, err
	}
	k.loaded, k.stamp = &pair, now
	return k.loaded, nil
}

// CheckKeyPair says why nobody can be served with a certificate and its key.
func CheckKeyPair(cert, key string) error {
	_, err := (&keyPair{cert: cert, key: key}).load()
	return err
}

// load reads the pair, whose key only its owner, and readers of its group, may be able to use.
func (k *keyPair) load() (tls.Certificate, error) {
	pair, err := tls.LoadX509KeyPair(k.cert, k.key)
	if err != nil {
		return pair, err
	}
	info, err := os.Stat(k.key)
	if err == nil && openToOthers(info, 0o027) {
		err = fmt.Errorf("%s: the key is another user's, or others can use it (mode %04o): chown, chmod 600", k.key, info.Mode().Perm())
	}
	return pair, err
}
