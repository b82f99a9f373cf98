package fleet

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"time"
)

// DefaultCloudURL is where smol cloud answers.
const DefaultCloudURL = "https://api.smolmachines.com"

// CloudOptions say which account of which service a [Cloud] works for.
type CloudOptions struct {
	// URL is the address of the API: https, or http of this computer's loopback.
	// Empty: DefaultCloudURL.
	URL string

	// Token returns the key to send. It is asked for each request, so it has to be
	// cheap and should look whether its source changed. An empty key
	// means that the cloud is not configured.
	Token func(ctx context.Context) (string, error)

	// TokenName is what errors call the key's source. Empty: SMOL_CLOUD_TOKEN.
	TokenName string

	// Owner is the random id of this installation. It marks the machines that are
	// created, where anybody who may list them can see it. Empty: one that
	// lasts as long as the Cloud.
	Owner string

	// Dir is where the account of a key is remembered, so that it is known
	// without a request. Nil: it is asked for once in each process.
	Dir func() (string, error)

	Log *slog.Logger // nil: nothing is logged

	Now   func() time.Time                                 // nil: time.Now
	Pause func(ctx context.Context, d time.Duration) error // nil: a wait that ends with ctx
}

// Cloud is the fleet of smol cloud. It repeats what is safe twice by itself, so
// it needs no [Retry], and never more than the service's limits allow.
type Cloud struct {
	opts  CloudOptions
	wire  wire
	pool  *http.Transport
	keys  *keyring
	limit limiter
	names nameCache
	lists lists
	can   cloudFeatures

	life context.Context // ends at Close
	end  context.CancelFunc
	work sync.WaitGroup
}

// What one request to the cloud may take. What the guest does is bounded by the
// command's own timeout and by readiness, see the methods.
const (
	cloudReadWait   = 30 * time.Second
	cloudCreateWait = 60 * time.Second
	cloudStartWait  = 300 * time.Second // an old service boots before it answers
	cloudStopWait   = 120 * time.Second
	cloudBranchWait = 300 * time.Second
	cloudExecSlack  = 30 * time.Second // beyond the command's own timeout
	cloudDialWait   = 20 * time.Second // for a connection, its encryption included
)

const cloudMachines = "/v1/machines"

// NewCloud returns the cloud's fleet. Nothing is sent before the first call.
func NewCloud(opts CloudOptions) *Cloud {
	opts.URL = plainURL(cmp.Or(opts.URL, DefaultCloudURL))
	opts.TokenName = cmp.Or(opts.TokenName, "SMOL_CLOUD_TOKEN")
	opts.Owner = cmp.Or(opts.Owner, randomID(8))
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if opts.Pause == nil {
		opts.Pause = pause
	}
	c := &Cloud{opts: opts, keys: newKeyring()}
	c.limit = limiter{now: opts.Now, pause: opts.Pause}
	c.life, c.end = context.WithCancel(context.Background())
	c.pool = &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            cloudDialer(opts.URL),
		ForceAttemptHTTP2:      true,
		TLSHandshakeTimeout:    10 * time.Second,
		DisableCompression:     true,             // a file's bytes are wanted as they are
		IdleConnTimeout:        30 * time.Second, // before the service's side gives it up, as we send the next request
		MaxIdleConnsPerHost:    16,
		MaxResponseHeaderBytes: 64 << 10,
	}
	c.wire = wire{transport: c.pool, base: opts.URL, dialWait: cloudDialWait, denied: CodeCloudUnauthorized, hide: c.keys.hide}
	return c
}

// cloudDialer connects within ten seconds, and where the key would not be
// encrypted to this computer only, whatever its name stands for.
func cloudDialer(base string) func(context.Context, string, string) (net.Conn, error) {
	d := &net.Dialer{Timeout: 10 * time.Second}
	if strings.HasPrefix(base, "http:") {
		d.ControlContext = func(_ context.Context, _, address string, _ syscall.RawConn) error {
			host, _, err := net.SplitHostPort(address)
			if err == nil && !isLoopback(host) {
				err = fmt.Errorf("%s is not this computer, and plain http would show the key to the network", host)
			}
			return err
		}
	}
	return d.DialContext
}

// CheckCloudURL refuses addresses to which no key may be sent: all but https,
// and plain http to other computers.
func CheckCloudURL(address string) error {
	u, err := url.Parse(address)
	switch {
	case err != nil || u.Hostname() == "" || u.User != nil || u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return errors.New("it is no address of a service, as https://host or https://host:port/path")
	case u.Scheme == "https":
		return nil
	case u.Scheme == "http" && isLoopback(u.Hostname()):
		return nil
	case u.Scheme == "http":
		return errors.New("plain http would show the key to the network: use https")
	}
	return errors.New("it is neither https nor http")
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// plainURL spells an address in one way, since accounts are told apart by it.
func plainURL(address string) string {
	u, err := url.Parse(strings.TrimSpace(address))
	if err != nil || u.Host == "" {
		return address
	}
	u.Host = strings.ToLower(u.Host)
	if port := u.Port(); u.Scheme == "https" && port == "443" || u.Scheme == "http" && port == "80" {
		u.Host = strings.TrimSuffix(u.Host, ":"+port)
	}
	return strings.TrimRight(u.String(), "/")
}

// Target returns "cloud".
func (c *Cloud) Target() string { return "cloud" }

// Close ends what goes on in the background and drops idle connections.
func (c *Cloud) Close() error {
	c.end()
	c.work.Wait()
	c.pool.CloseIdleConnections()
	return nil
}

// cloudPath is the path of a machine and of what is below it. An id comes from the
// service, and is escaped all the same.
func cloudPath(id, below string) string { return cloudMachines + "/" + url.PathEscape(id) + below }

// randomID returns n random bytes in hex.
func randomID(n int) string {
	b := make([]byte, n)
	rand.Read(b)
	return hex.EncodeToString(b)
}
