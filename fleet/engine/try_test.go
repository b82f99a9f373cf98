//go:build linux

package engine_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"smol-mcp/fleet"
)

// The five calls of the worked example, through the server's standard streams, an
// engine that it starts by itself, and real machines.
func TestWorkedExample(t *testing.T) {
	needMachines(t)
	run := workshop(t)
	out := run("smol-mcp", "try")
	for _, want := range []string{"target local: qemu", `"image":"builtin:busybox"`, "exit code 3", "stderr: a word on stderr", "/root/greeting", "deleted mcp-", "session ended"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in:\n%s", want, out)
		}
	}
}

// The same with a Debian that has python3, from a registry.
func TestWorkedExampleDebian(t *testing.T) {
	needMachines(t)
	img := debianImage(t)
	server := httptest.NewServer(registry.New(registry.Logger(quiet())))
	defer server.Close()
	ref := strings.TrimPrefix(server.URL, "http://") + "/debian/python3:12"
	tag, err := name.ParseReference(ref)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(tag, img); err != nil {
		t.Fatal(err)
	}
	run := workshop(t)
	out := run("smol-mcp", "try", "--image", ref)
	for _, want := range []string{ref, "exit code 3", "hello from mcp-", "deleted mcp-", "session ended"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in:\n%s", want, out)
		}
	}
	d := start(t)
	f := d.client(t)
	begun := time.Now()
	vm := booted(t, f, fleet.Spec{Name: "vm", Image: ref})
	cold := time.Since(begun)
	if got := sh(t, f, vm, `python3 -c 'import sys; print([6*7, sys.version_info[0]])'; echo $WHERE; head -1 /etc/os-release`); !strings.HasPrefix(got, "[42, 3]\nhere\nPRETTY_NAME=\"Debian") {
		t.Errorf("got %q", got)
	}
	pulled, err := f.Pull(t.Context(), vm, ref)
	if err != nil || pulled.LayerCount != 2 || pulled.Architecture != runtime.GOARCH {
		t.Errorf("%+v, %v", pulled, err)
	}
	t.Logf("%d MiB packed; fetched, prepared and started in %v", pulled.Size>>20, cold.Round(10*time.Millisecond))
}

// workshop is a directory with all programs and a home of its own. The returned
// function runs one of them.
func workshop(t *testing.T) func(argv ...string) string {
	t.Helper()
	must(t, build("smol-mcp"))
	home, err := os.MkdirTemp("", "w") // short, for the socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(home) })
	shareCache(t, home+"/cache")
	return func(argv ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), filepath.Join(shared.programs, argv[0]), argv[1:]...)
		cmd.Env = []string{
			"HOME=" + home, "XDG_RUNTIME_DIR=" + home, "XDG_CACHE_HOME=" + home + "/cache", "XDG_DATA_HOME=" + home + "/data",
			"PATH=" + os.Getenv("PATH"), "SMOL_MCP_ENGINE=qemu", "SMOL_MCP_MEMORY_MB=512", "SMOL_MCP_CPUS=1",
		}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", strings.Join(argv, " "), err, out)
		}
		return string(out)
	}
}

// shareCache makes a cache directory in which engines find the kernel that all tests
// use, and their templates.
func shareCache(t *testing.T, dir string) {
	t.Helper()
	must(t, os.MkdirAll(dir, 0o700))
	must(t, os.MkdirAll(shared.dir+"/cache/kernel", 0o700))
	release := filepath.Base(filepath.Dir(shared.kernel))
	if err := os.Symlink(filepath.Dir(shared.kernel), filepath.Join(shared.dir, "cache", "kernel", release)); err != nil && !errors.Is(err, fs.ErrExist) {
		t.Fatal(err)
	}
	must(t, os.Symlink(shared.dir+"/cache", dir+"/smol-engine"))
}

// debianImage is assembled from the packages of the distribution.
func debianImage(t *testing.T, more ...string) v1.Image {
	t.Helper()
	for _, program := range []string{"apt-get", "apt-cache", "dpkg-deb"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip(err)
		}
	}
	dir := t.TempDir()
	must(t, os.Chmod(dir, 0o755))
	list := closure(t, append(more, "dash", "coreutils", "sed", "grep", "python3-minimal", "base-files")...)
	download := exec.Command("apt-get", append([]string{"-q", "-o", "APT::Sandbox::User=root", "download"}, list...)...)
	download.Dir = dir
	if out, err := download.CombinedOutput(); err != nil {
		t.Skipf("no packages: %v: %s", err, out)
	}
	debs, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	must(t, err)
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, deb := range debs {
		out, err := exec.Command("dpkg-deb", "--fsys-tarfile", deb).Output()
		must(t, err)
		must(t, copyEntries(w, out))
	}
	must(t, w.Close())
	packages, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil })
	must(t, err)
	img, err := mutate.AppendLayers(empty.Image, packages, layer(t, []file{
		{name: "bin/sh", kind: tar.TypeSymlink, mode: 0o777, link: "dash"},
		{name: "etc/passwd", mode: 0o644, content: "root:x:0:0:root:/root:/bin/sh\n"},
		{name: "etc/group", mode: 0o644, content: "root:x:0:\n"},
	}))
	must(t, err)
	cf, err := img.ConfigFile()
	must(t, err)
	cf = cf.DeepCopy()
	cf.OS, cf.Architecture, cf.Config = "linux", runtime.GOARCH, v1.Config{Env: []string{"WHERE=here"}, Cmd: []string{"python3"}}
	img, err = mutate.ConfigFile(img, cf)
	must(t, err)
	return img
}

// copyEntries adds all of an archive to another.
func copyEntries(w *tar.Writer, archive []byte) error {
	for r := tar.NewReader(bytes.NewReader(archive)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		if _, err := io.Copy(w, r); err != nil {
			return err
		}
	}
}

// closure returns packages with all that they depend on.
func closure(t *testing.T, names ...string) []string {
	t.Helper()
	args := strings.Fields("depends --recurse --important --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces --no-enhances")
	out, err := exec.Command("apt-cache", append(args, names...)...).Output()
	if err != nil {
		t.Skipf("no packages: %v", err)
	}
	seen := map[string]bool{}
	var all []string
	for line := range strings.Lines(string(out)) {
		line = strings.TrimSpace(line)
		if line != "" && !strings.ContainsAny(line, " <>|") && !seen[line] {
			seen[line] = true
			all = append(all, line)
		}
	}
	return all
}
