package fleet_test

import (
	"context"
	"testing"

	"smol-mcp/fleet"
	"smol-mcp/fleet/fleettest"
)

// cloud returns a client of a fake cloud, of its first tenant.
func cloud(t *testing.T, server *fleettest.CloudFake, change ...func(*fleet.CloudOptions)) *fleet.Cloud {
	opts := fleet.CloudOptions{URL: server.URL(), Token: key(fleettest.CloudToken), Owner: "install-a"}
	for _, f := range change {
		f(&opts)
	}
	c := fleet.NewCloud(opts)
	t.Cleanup(func() { c.Close() })
	return c
}

// The client keeps the contract over services of several kinds.
func TestCloudContract(t *testing.T) {
	for _, kind := range []struct {
		name string
		opts fleettest.CloudOptions
	}{
		{"New", fleettest.CloudOptions{}},
		{"Old", fleettest.CloudOptions{Old: true}},
		{"Bare", fleettest.CloudOptions{Problem: true, NoPause: true, NoFiles: true, BareKids: true}},
	} {
		t.Run(kind.name, func(t *testing.T) {
			fleettest.Suite(t, func(t *testing.T) fleet.Fleet {
				return cloud(t, fleettest.StartCloud(t, kind.opts))
			}, fleettest.Traits{Image: "alpine:3.20", Guest: true, Remote: true, Text: kind.opts.Old})
		})
	}
}

// key is a source that always gives the same key.
func key(token string) func(context.Context) (string, error) {
	return func(context.Context) (string, error) { return token, nil }
}
