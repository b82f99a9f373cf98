//go:build unix

package machine

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"smol-mcp/fleet/engine/kernel"
)

// A saved state is used only where all is as it was: whatever differs, the key does.
func TestTemplateKey(t *testing.T) {
	program := filepath.Join(t.TempDir(), "qemu")
	must(t, os.WriteFile(program, []byte("one"), 0o700))
	base := host{qemu: program, version: "7.2.0", accel: "tcg", boot: kernel.Boot{Key: "k"}}
	first := base.key(512, 1, false)
	if again := base.key(512, 1, false); again != first {
		t.Errorf("%s is not %s", again, first)
	}
	for what, other := range map[string]func(h *host) string{
		"memory":      func(h *host) string { return h.key(1024, 1, false) },
		"CPUs":        func(h *host) string { return h.key(512, 2, false) },
		"card":        func(h *host) string { return h.key(512, 1, true) },
		"version":     func(h *host) string { h.version = "7.2.1"; return h.key(512, 1, false) },
		"accelerator": func(h *host) string { h.accel = "kvm"; return h.key(512, 1, false) },
		"kernel":      func(h *host) string { h.boot.Key = "other"; return h.key(512, 1, false) },
		"program": func(h *host) string { // built again, with the same version
			must(t, os.WriteFile(program, []byte("another"), 0o700))
			must(t, os.Chtimes(program, time.Now(), time.Now().Add(time.Hour)))
			return h.key(512, 1, false)
		},
	} {
		h := base
		if key := other(&h); key == first {
			t.Errorf("another %s has the same key", what)
		}
	}
}
