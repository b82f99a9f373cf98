package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strconv"
	"syscall"
	"time"

	"smol-mcp/fleet"
	"smol-mcp/httpd"
	"smol-mcp/tools"
)

const httpHelp = `Clients send one of the server's tokens with each request, as "Authorization:
Bearer TOKEN" or "x-smol-mcp-token: TOKEN". Without a token there is no server:
SMOL_MCP_AUTH_TOKEN (or a file, SMOL_MCP_AUTH_TOKEN_FILE) sets one, and "smol-mcp
token new NAME" makes named ones. Each has sessions and machines of its own.

A session, and its machines, end with the client's DELETE, or when nothing of it
has run for SMOL_MCP_HTTP_SESSION_IDLE_SECS.
`

func httpFlags() []option {
	return []option{
		{"host", "ADDRESS", "listen here; default 127.0.0.1, or httpHost of the settings"},
		{"port", "N", "listen on this port; default 8080, or httpPort of the settings"},
		{"path", "PATH", "path of the endpoint; default /mcp, or httpPath of the settings"},
		{"log-format", "FORMAT", "text or json"},
	}
}

// httpFlag is the setting that each flag stands for.
var httpFlag = map[string]string{"host": "httpHost", "port": "httpPort", "path": "httpPath", "log-format": "logFormat"}

// principalMark keeps the principals of tokens apart from other words in the records.
const principalMark = "token:"

// runHTTP serves many clients over Streamable HTTP.
func runHTTP(c *call) error {
	r, err := resolve(os.LookupEnv, c.flags["config"])
	if err == nil {
		err = r.override(c.flags, httpFlag)
	}
	if err != nil {
		return err
	}
	log, flush := newLog(c.stderr, r.LogFormat)
	defer flush()
	tokens, err := httpTokens(&r.Config, os.LookupEnv, log)
	if err != nil {
		return err
	}
	signals, stopSignals := watchSignals()
	defer stopSignals()
	if err := checkTLS(&r.Config); err != nil {
		return err
	}
	listener, err := listen(c, &r.Config)
	if err != nil {
		return err
	}
	p := wire(&r.Config, "http", log)
	server := httpd.New(httpd.Options{
		Path:        r.HTTPPath,
		Hosts:       acceptedHosts(&r.Config),
		Origins:     r.HTTPOrigins,
		Tokens:      tokens,
		Open:        p.open,
		Version:     fullVersion(),
		Log:         log,
		Idle:        secs(r.HTTPIdleSecs),
		MaxSessions: r.HTTPMaxSessions,
	})
	p.reaper.Start()
	tellListening(&r.Config, listener.Addr(), tokens, log)
	l := &httpLife{
		listener: httpd.Listener{Net: listener, Cert: r.HTTPCert, Key: r.HTTPKey, Log: log},
		server:   server, closers: p.closers, signals: signals, log: log,
		budget: endBudget, share: httpShare,
	}
	code, err := l.run()
	if err != nil {
		log.Error("clean-up", "error", err)
	}
	return exitCode(code)
}

// listen opens the address of the settings. A host that is none of this computer is a
// setting that cannot be used; a port that somebody has is a failure.
func listen(c *call, to *Config) (net.Listener, error) {
	address := net.JoinHostPort(to.HTTPHost, strconv.Itoa(to.HTTPPort))
	listener, err := net.Listen("tcp", address)
	var unknown *net.DNSError
	switch {
	case err == nil:
		return listener, nil
	case errors.As(err, &unknown), errors.Is(err, syscall.EADDRNOTAVAIL):
		where := "SMOL_MCP_HTTP_HOST (httpHost)"
		if c.has("host") {
			where = "--host"
		}
		return nil, &settingError{where: where, why: fmt.Sprintf("cannot listen on %s: %v", address, err), hint: "it has to be an address of this computer, or a name of one"}
	}
	return nil, fmt.Errorf("cannot listen on %s: %w; --host and --port choose another place", address, err)
}

// open makes the session of a client, with what its token permits.
func (p *parts) open(o httpd.Opening) (httpd.Session, error) {
	opts := p.options
	opts.Principal = principalMark + o.Token.Name
	opts.Permit = func() tools.Permit {
		now := o.Current()
		return tools.Permit{ReadOnly: now.ReadOnly, Tools: now.Tools, Machines: now.Machines}
	}
	if o.Token.Targets != nil {
		opts.Fleets = slices.DeleteFunc(slices.Clone(opts.Fleets), func(f fleet.Fleet) bool { return !slices.Contains(o.Token.Targets, f.Target()) })
	}
	if len(opts.Fleets) == 0 {
		return nil, fmt.Errorf("forbidden: the token %s is for targets that this server does not serve", o.Token.Name)
	}
	if o.Lease != nil {
		opts.Lease = func(make bool) *tools.Session {
			lease, _ := o.Lease(make).(*tools.Session)
			return lease
		}
	}
	return tools.New(opts, o.Kind), nil
}

// checkTLS refuses a certificate that no client could be served with.
func checkTLS(c *Config) error {
	if c.HTTPCert == "" {
		return nil
	}
	if err := httpd.CheckKeyPair(c.HTTPCert, c.HTTPKey); err != nil {
		return &settingError{where: "SMOL_MCP_HTTP_TLS_CERT and SMOL_MCP_HTTP_TLS_KEY", why: "TLS cannot be served: " + err.Error(),
			hint: "the first is a PEM file of the certificate with its chain, the second of its key, which is private"}
	}
	return nil
}

// acceptedHosts are the Host headers to accept; nil: any.
func acceptedHosts(c *Config) []string {
	if len(c.HTTPHosts) == 0 && httpd.IsLoopback(c.HTTPHost) {
		return httpd.LoopbackHosts(c.HTTPHost)
	}
	return c.HTTPHosts
}

// tellListening says where the server is, and what of its doors stands open.
func tellListening(c *Config, at net.Addr, tokens *httpd.Tokens, log *slog.Logger) {
	scheme := "http"
	if c.HTTPCert != "" {
		scheme = "https"
	}
	log.Info("listening", "url", scheme+"://"+at.String()+c.HTTPPath, "tokens", tokens.Count())
	if acceptedHosts(c) == nil {
		log.Warn("the Host header is not checked; the token guards the server. SMOL_MCP_HTTP_ALLOWED_HOSTS lists the hosts to accept")
	}
	if scheme == "http" && !httpd.IsLoopback(c.HTTPHost) {
		log.Warn("tokens travel unencrypted; set SMOL_MCP_HTTP_TLS_CERT and SMOL_MCP_HTTP_TLS_KEY, or let a proxy add TLS")
	}
	if len(c.MountRoots) > 0 {
		log.Warn("clients of this server may mount directories of this computer", "roots", c.MountRoots)
	}
}

// httpShare is the part of the budget for the end in which sessions are ended. The rest is
// for the last answers, and for closing what all sessions shared.
const httpShare = 6 * time.Second

// httpLife is an HTTP server from its start to its clean-up. It ends at a signal, or when
// nothing can be listened to any more.
type httpLife struct {
	listener httpd.Listener
	server   *httpd.Server
	closers  []closer // after all sessions, in this order
	signals  <-chan os.Signal
	log      *slog.Logger
	budget   time.Duration // endBudget
	share    time.Duration // httpShare
}

// run serves until there is a reason to end, cleans up, and returns the exit code.
func (l *httpLife) run() (code int, err error) {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	ended := make(chan struct{}) // closed when the server was told to end
	served := make(chan error, 1)
	go func() { // waited for in cleanUp, within the budget
		served <- l.listener.Serve(ctx, l.server.Handler(), func() error {
			close(ended)
			ctx, cancel := context.WithTimeout(context.Background(), l.share)
			defer cancel()
			return l.server.Close(ctx)
		})
	}()
	code = exitOK
	signalled := false
	select {
	case sig := <-l.signals:
		code, signalled = signalCode(sig), true
		l.log.Info("ending", "reason", sig.String())
	case <-ended:
		code = exitFailure
		l.log.Error("ending", "reason", "the listener failed")
	case err := <-served:
		served <- err
		code = exitFailure
	}
	stop()
	return cleanUp(l.signals, l.budget, code, signalled, func() error {
		err := <-served
		if closeErr := closeAll(l.closers); err == nil {
			err = closeErr
		}
		return err
	})
}
