//go:build unix

package image

import (
	"archive/tar"
	"errors"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// The builtin image has each applet of this computer's busybox once, and a nohup.
func TestBuiltinTree(t *testing.T) {
	file, err := busyboxPath()
	if err != nil {
		t.Skip(err) // without a static busybox, which .ci/run installs
	}
	tr, err := busyboxTree(file)
	if err != nil {
		t.Fatal(err)
	}
	defer tr.close()
	r, w := io.Pipe()
	go func() {
		out := tar.NewWriter(w)
		w.CloseWithError(errors.Join(tr.write(out), out.Close()))
	}()
	found := map[string]byte{}
	for in := tar.NewReader(r); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		found[h.Name] = h.Typeflag
	}
	list, err := exec.Command(file, "--list-full").Output()
	if err != nil {
		t.Fatal(err)
	}
	applets := strings.Fields(string(list))
	for _, a := range applets {
		if strings.HasSuffix(a, "/sh") && found[a] != tar.TypeSymlink {
			t.Errorf("%s is of type %q", a, found[a])
		}
	}
	if slices.Contains(applets, "usr/bin/nohup") {
		if found["usr/bin/nohup"] != tar.TypeSymlink {
			t.Error("busybox has a nohup, and another is in its place")
		}
	} else if found["usr/bin/nohup"] != tar.TypeReg {
		t.Errorf("nohup is of type %q", found["usr/bin/nohup"])
	}
}

// A builtin image that an older version made is not taken for ours, and the name is ours
// from then on.
func TestBuiltinOfOlderVersion(t *testing.T) {
	if err := CheckBuiltin(); err != nil {
		t.Skip(err) // without a static busybox, which .ci/run installs
	}
	s := open1(t)
	old := Image{Digest: "sha256:" + strings.Repeat("0", 64), References: []string{Builtin}}
	if err := errors.Join(s.write(old), os.WriteFile(s.file(old.Digest, ".ext4"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		img, err := s.Ensure(t.Context(), Builtin)
		if err != nil || img.Digest == old.Digest || !slices.Equal(img.References, []string{Builtin}) {
			t.Fatalf("%+v, %v", img, err)
		}
	}
	if old, err := s.Get(old.Digest); err != nil || len(old.References) != 0 {
		t.Errorf("the older one: %+v, %v", old, err)
	}
}
