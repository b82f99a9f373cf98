//go:build unix

package machine

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// setUp is a computer on which all is well, as far as Examine looks before it boots.
func setUp(t *testing.T) Options {
	t.Helper()
	dir := t.TempDir()
	o := Options{Data: filepath.Join(dir, "data"), Cache: filepath.Join(dir, "cache"), QEMU: filepath.Join(dir, "qemu"), Guest: filepath.Join(dir, "guest"), Accel: "tcg"}
	for _, d := range []string{o.Data, o.Cache, o.Cache + "/kernel/6.1.0/modules/kernel"} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	script := "#!/bin/sh\necho QEMU emulator version 7.2.0\n"
	for path, text := range map[string]string{
		o.QEMU: script, o.Guest: "guest", o.Cache + "/kernel/6.1.0/vmlinuz": "kernel", o.Cache + "/kernel/6.1.0/modules/modules.builtin": allBuiltin(),
	} {
		if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return o
}

// allBuiltin is a kernel that has everything built in.
func allBuiltin() string {
	var b strings.Builder
	for _, name := range strings.Fields("virtio_pci virtio_console virtio-rng virtio_net overlay ext4 virtio_blk") {
		b.WriteString("kernel/drivers/" + name + ".ko\n")
	}
	return b.String()
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Each broken set-up is found, with a cause and a remedy.
func TestExamine(t *testing.T) {
	root := os.Geteuid() == 0
	for _, c := range []struct {
		code  string
		level string
		harm  func(t *testing.T, o *Options)
		skip  bool
	}{
		{"", "", func(*testing.T, *Options) {}, false},
		{"qemu_missing", Failure, func(t *testing.T, o *Options) { must(t, os.Remove(o.QEMU)) }, false},
		{"qemu_broken", Failure, func(t *testing.T, o *Options) { must(t, os.WriteFile(o.QEMU, []byte("#!/bin/sh\nexit 1\n"), 0o700)) }, false},
		{"network_unsupported", Warning, func(t *testing.T, o *Options) {
			must(t, os.WriteFile(o.QEMU, []byte("#!/bin/sh\necho QEMU emulator version 6.2.0\n"), 0o700))
		}, false},
		{"guest_broken", Failure, func(t *testing.T, o *Options) { must(t, os.Remove(o.Guest)) }, false},
		{"kernel_missing", Failure, func(t *testing.T, o *Options) { o.Kernel = filepath.Join(o.Cache, "none", "vmlinuz") }, false},
		{"kernel_missing", Failure, func(t *testing.T, o *Options) {
			o.Kernel = o.Cache + "/kernel/6.1.0/vmlinuz"
			must(t, os.Remove(o.Cache+"/kernel/6.1.0/modules/modules.builtin"))
		}, false},
		{"kernel_unusable", Failure, func(t *testing.T, o *Options) {
			must(t, os.WriteFile(o.Cache+"/kernel/6.1.0/modules/modules.builtin", nil, 0o600))
		}, false},
		{"accel_unknown", Warning, func(t *testing.T, o *Options) { must(t, os.Remove(o.QEMU)) }, false},
		{"data_open", Warning, func(t *testing.T, o *Options) { must(t, os.Chmod(o.Data, 0o755)) }, false},
		{"cache_open", Warning, func(t *testing.T, o *Options) { must(t, os.Chmod(o.Cache, 0o750)) }, false},
		{"data_no_directory", Failure, func(t *testing.T, o *Options) {
			must(t, os.Remove(o.Data))
			must(t, os.WriteFile(o.Data, nil, 0o600))
		}, false},
		{"data_owner", Failure, func(t *testing.T, o *Options) { must(t, os.Chown(o.Data, 65534, 65534)) }, !root},
		{"data_readonly", Failure, func(t *testing.T, o *Options) { must(t, os.Chmod(o.Data, 0o500)) }, root},
		{"machine_unreadable", Warning, func(t *testing.T, o *Options) {
			must(t, os.MkdirAll(o.Data+"/machines/vm", 0o700))
			must(t, os.WriteFile(o.Data+"/machines/vm/machine.json", []byte("{"), 0o600))
		}, false},
		{"machine_unreadable", Warning, func(t *testing.T, o *Options) {
			must(t, os.MkdirAll(o.Data+"/machines/vm", 0o700))
			must(t, os.WriteFile(o.Data+"/machines/vm/machine.json", []byte(`{"name":"other"}`), 0o600))
		}, false},
	} {
		t.Run(c.code, func(t *testing.T) {
			if c.skip {
				t.Skip("depends on who runs the tests")
			}
			o := setUp(t)
			c.harm(t, &o)
			var got []string
			for _, f := range Examine(t.Context(), o) {
				got = append(got, f.Code)
				if f.Level != OK && (f.Cause == "" || f.Remedy == "" || f.What == "") {
					t.Errorf("%+v has no cause or remedy", f)
				}
				if f.Code == c.code && f.Level != c.level {
					t.Errorf("%s is a %s, want %s", f.Code, f.Level, c.level)
				}
				if c.code == "" && f.Level != OK && f.Code != "accel_emulated" && f.Code != "space_low" {
					t.Errorf("where all is well: %+v", f)
				}
			}
			if c.code != "" && !slices.Contains(got, c.code) {
				t.Errorf("found %v, want %s", got, c.code)
			}
		})
	}
}

// Why the hardware does not help has a code of its own where we know it.
func TestExamineAccel(t *testing.T) {
	for why, code := range map[string]string{
		"open /dev/kvm: no such file or directory": "kvm_missing",
		"open /dev/kvm: permission denied":         "kvm_denied",
		"kvm: a guest did not boot within 5s":      "kvm_broken",
		"hvf: a guest does not boot: x":            "hvf_broken",
		"the settings ask for it":                  "accel_emulated",
	} {
		if f := accelFinding("tcg", why); f.Code != code || f.Cause != why || code != "accel_emulated" && f.Remedy == "" {
			t.Errorf("%s: %+v", why, f)
		}
	}
	if f := accelFinding("kvm", ""); f.Level != OK {
		t.Errorf("%+v", f)
	}
	for free, code := range map[int64]string{100 << 20: "space_none", 1 << 30: "space_low", 100 << 30: "space_ok"} {
		if f := spaceFinding("/x", free); f.Code != code {
			t.Errorf("%d bytes: %+v", free, f)
		}
	}
	if f := CheckBuiltin(errors.New("no busybox")); f.Code != "busybox_missing" || f.Remedy == "" {
		t.Errorf("%+v", f)
	}
}
