package fleet_test

import (
	"testing"

	"smol-mcp/fleet"
	"smol-mcp/fleet/fleettest"
)

// The client keeps the contract over each generation of the API: fork, branches,
// pause, strict create, and image pulls by the host.
func TestSmolvmContract(t *testing.T) {
	for _, version := range []string{"1.9.3", "1.14.5", "1.18.0", "1.23.0"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			fleettest.Suite(t, func(t *testing.T) fleet.Fleet {
				server := fleettest.StartSmolvm(t, fleettest.SmolvmOptions{Version: version})
				s := fleet.NewSmolvm(server.Dial, fleet.SmolvmOptions{})
				t.Cleanup(func() { s.Close() })
				return s
			}, fleettest.Traits{Image: "docker.io/library/alpine:3.20", Network: fleet.Network{Open: true}, Guest: true})
		})
	}
}
