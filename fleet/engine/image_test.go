//go:build unix

package engine_test

import (
	"archive/tar"
	"bytes"
	"io"
	"log"
	"os"
	"os/exec"
	"runtime"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

func quiet() *log.Logger { return log.New(io.Discard, "", 0) }

// file is an entry of a layer.
type file struct {
	name     string
	kind     byte
	mode     int64
	uid, gid int
	content  string
	link     string
}

// busyboxImage is an image with a shell, some users and more files.
func busyboxImage(t *testing.T, config *v1.Config, more ...file) v1.Image {
	t.Helper()
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Skip(err)
	}
	program, err := os.ReadFile(busybox)
	if err != nil {
		t.Fatal(err)
	}
	files := []file{
		{name: "bin", kind: tar.TypeDir, mode: 0o755}, {name: "tmp", kind: tar.TypeDir, mode: 0o1777},
		{name: "bin/busybox", mode: 0o755, content: string(program)},
		{name: "etc/passwd", mode: 0o644, content: "root:x:0:0::/root:/bin/sh\napp:x:1234:2345::/home/app:/bin/sh\n"},
		{name: "etc/group", mode: 0o644, content: "root:x:0:\napp:x:2345:\nextra:x:3456:app,other\n"},
		{name: "home/app", kind: tar.TypeDir, mode: 0o755, uid: 1234, gid: 2345},
	}
	for _, applet := range []string{"sh", "cat", "id", "pwd", "ls", "stat", "sleep", "ps", "true", "echo", "env", "grep", "kill", "sync"} {
		files = append(files, file{name: "bin/" + applet, kind: tar.TypeSymlink, mode: 0o777, link: "busybox"})
	}
	img, err := mutate.AppendLayers(empty.Image, layer(t, files), layer(t, more))
	if err != nil {
		t.Fatal(err)
	}
	cf, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	cf = cf.DeepCopy()
	cf.OS, cf.Architecture = "linux", runtime.GOARCH
	if config != nil {
		cf.Config = *config
	}
	if img, err = mutate.ConfigFile(img, cf); err != nil {
		t.Fatal(err)
	}
	return img
}

func layer(t *testing.T, files []file) v1.Layer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		kind := f.kind
		if kind == 0 {
			kind = tar.TypeReg
		}
		h := &tar.Header{Typeflag: kind, Name: f.name, Mode: f.mode, Uid: f.uid, Gid: f.gid, Size: int64(len(f.content)), Linkname: f.link}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, f.content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil })
	if err != nil {
		t.Fatal(err)
	}
	return l
}
