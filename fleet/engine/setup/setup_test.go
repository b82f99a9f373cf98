//go:build linux

package setup

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// computer is a PATH with some programs, each a line of shell, and nothing else.
func computer(t *testing.T, programs map[string]string) string {
	t.Helper()
	bin := t.TempDir()
	for name, line := range programs {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+line+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", bin)
	return bin
}

// What is missing is named, with the commands of each kind of system; only with apt we
// do it ourselves.
func TestPlan(t *testing.T) {
	cache := t.TempDir()
	for manager, want := range map[string]string{
		"apt-get": "apt-get install -y -q --no-install-recommends qemu-system-", "dnf": "sudo dnf install -y --setopt=install_weak_deps=False qemu-system-",
		"pacman": "sudo pacman -S --needed qemu-base busybox", "zypper": "sudo zypper install --no-recommends qemu-", "": "",
	} {
		t.Run(manager, func(t *testing.T) {
			programs := map[string]string{}
			if manager != "" {
				programs[manager] = "exit 9"
			}
			computer(t, programs)
			steps := Plan(t.Context(), cache, "")
			if len(steps) == 0 {
				t.Fatal("nothing is missing")
			}
			if text := strings.Join(steps[0].Do, "\n"); !strings.Contains(text, want) {
				t.Errorf("install: %q", text)
			}
			byHand := manager != "apt-get" || os.Geteuid() != 0
			if steps[0].Hand != byHand {
				t.Errorf("by hand: %v", steps[0].Hand)
			}
			err := steps[0].Run(t.Context(), &bytes.Buffer{})
			if err == nil || byHand && !strings.Contains(err.Error(), "by hand") {
				t.Errorf("run: %v", err)
			}
			last := steps[len(steps)-1]
			if !strings.Contains(last.What, "kernel") || last.Hand != (manager != "apt-get") {
				t.Errorf("the kernel: %+v", last)
			}
		})
	}
}

// debian is a computer whose apt has one kernel.
func debian(t *testing.T) {
	t.Helper()
	computer(t, map[string]string{
		"apt-cache": `for last; do :; done
case $last in
linux-image-cloud-*) echo "$last"; echo "  Depends: linux-image-6.1.0-9-cloud" ;;
esac`,
		"apt-get": `for last; do :; done
case "$*" in *download*) : >"$last.deb" ;; *) exit 1 ;; esac`,
		"dpkg-deb": `/bin/mkdir -p "$3/boot" "$3/lib/modules/6.1.0-9-cloud/kernel"
echo kernel >"$3/boot/vmlinuz-6.1.0-9-cloud"
for m in virtio_pci virtio_console virtio-rng virtio_net overlay ext4 virtio_blk; do echo "kernel/$m.ko"; done >"$3/lib/modules/6.1.0-9-cloud/modules.builtin"
: >"$3/lib/modules/6.1.0-9-cloud/modules.dep"`,
	})
}

// A kernel is fetched with apt and unpacked into the cache, and nothing else is
// touched; a second time nothing is missing.
func TestKernel(t *testing.T) {
	debian(t)
	cache := t.TempDir()
	var out bytes.Buffer
	step := whichSystem().kernel(cache)
	if err := step.Run(t.Context(), &out); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	place := filepath.Join(cache, "kernel", "6.1.0-9-cloud")
	for _, file := range []string{"vmlinuz", "modules/modules.builtin"} {
		if _, err := os.Stat(filepath.Join(place, file)); err != nil {
			t.Error(err)
		}
	}
	if left, _ := os.ReadDir(filepath.Join(cache, "kernel")); len(left) != 1 {
		t.Errorf("left behind: %v", left)
	}
	if !strings.Contains(out.String(), "+ apt-get") || !strings.Contains(out.String(), "kernel 6.1.0-9-cloud is in "+place) {
		t.Errorf("it says %q", out.String())
	}
	for _, s := range Plan(t.Context(), cache, "") {
		if strings.Contains(s.What, "kernel") {
			t.Errorf("still missing: %+v", s)
		}
	}
}

// Where apt fails nothing stays, and the reason is told.
func TestKernelFails(t *testing.T) {
	for what, change := range map[string]map[string]string{
		"no such package": {"apt-cache": "exit 100", "apt-get": "exit 0"},
		"no network":      {"apt-cache": "exit 100", "apt-get": "echo no network >&2; exit 100"},
		"a bad archive":   {"dpkg-deb": "exit 2"},
		"an empty one":    {"dpkg-deb": "exit 0"},
	} {
		t.Run(what, func(t *testing.T) {
			debian(t)
			for name, line := range change {
				file := filepath.Join(os.Getenv("PATH"), name)
				if err := os.WriteFile(file, []byte("#!/bin/sh\n"+line+"\n"), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			cache := t.TempDir()
			var out bytes.Buffer
			if err := fetchKernel(t.Context(), filepath.Join(cache, "kernel"), &out); err == nil {
				t.Error("no error")
			}
			if left, _ := os.ReadDir(filepath.Join(cache, "kernel")); len(left) != 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}
