package fleet

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/url"
	"strings"
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
	opts CloudOptions
}

// NewCloud returns the cloud's fleet. Nothing is sent before the first call.
func NewCloud(opts CloudOptions) *Cloud {
	if opts.URL == "" {
		opts.URL = DefaultCloudURL
	}
	opts.URL = strings.TrimRight(opts.URL, "/")
	return &Cloud{opts: opts}
}

// CheckCloudURL refuses addresses to which no key may be sent: all but https,
// and plain http to other computers.
func CheckCloudURL(address string) error {
	u, err := url.Parse(address)
	switch {
	case err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "":
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

// Target returns "cloud".
func (c *Cloud) Target() string { return "cloud" }

// Account returns the fingerprint of the tenant whose machines these are: records
// are kept by it, so that another tenant's key neither deletes nor forgets
// them. It stays the same for the life of c. A key that was seen before
// needs no request.
func (c *Cloud) Account(ctx context.Context) (string, error) {
	return "", c.unbuilt("ask whose key it is")
}

// Usable says, without a request, why no call can succeed now: CloudNotConfigured
// or CloudUnauthorized; nil when there is no known reason.
func (c *Cloud) Usable(ctx context.Context) error { return c.unbuilt("use the cloud") }

func (c *Cloud) unbuilt(op string) error {
	return Errorf(CodeUnsupported, op, "the cloud client is under construction")
}
