package fleettest_test

import (
	"runtime"
	"testing"

	"smol-mcp/fleet"
	"smol-mcp/fleet/fleettest"
)

func TestMemory(t *testing.T) {
	t.Run("Imitated", func(t *testing.T) {
		fleettest.Suite(t, func(t *testing.T) fleet.Fleet {
			return fleettest.NewMemory(fleettest.MemoryOptions{})
		}, fleettest.Traits{})
	})
	t.Run("Guest", func(t *testing.T) {
		if runtime.GOOS != "linux" {
			t.Skip("scratch guests need Linux")
		}
		fleettest.Suite(t, func(t *testing.T) fleet.Fleet {
			return fleettest.NewMemory(fleettest.MemoryOptions{Guest: fleettest.Guests(t, fleettest.GuestOptions{Image: true})})
		}, fleettest.Traits{Guest: true, Image: "alpine:3.20"})
	})
	t.Run("Retry", func(t *testing.T) {
		fleettest.Suite(t, func(t *testing.T) fleet.Fleet {
			return fleet.Retry(fleettest.NewMemory(fleettest.MemoryOptions{}))
		}, fleettest.Traits{})
	})
}
