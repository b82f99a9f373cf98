//go:build unix

package image

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// IsPath reports whether a reference names a file of this computer.
func IsPath(ref string) bool {
	_, archive := strings.CutPrefix(ref, "oci-archive:")
	return archive || strings.HasPrefix(ref, "/")
}

// platform is what our machines run.
var platform = v1.Platform{OS: "linux", Architecture: runtime.GOARCH}

// open returns the image behind a reference that is not builtin. What it needs
// of disk goes into dir.
func open(ctx context.Context, ref, dir string) (v1.Image, error) {
	if IsPath(ref) {
		return openArchive(strings.TrimPrefix(ref, "oci-archive:"), dir)
	}
	r, err := name.ParseReference(ref)
	if err != nil {
		return nil, &ReferenceError{err}
	}
	img, err := remote.Image(r, remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain), remote.WithPlatform(platform))
	return img, advise(err)
}

// advise says what to do about the failure of a registry.
func advise(err error) error {
	var answer *transport.Error
	var network *net.OpError
	switch {
	case errors.As(err, &answer) && (answer.StatusCode == http.StatusNotFound || answer.StatusCode == http.StatusUnauthorized || answer.StatusCode == http.StatusForbidden):
		return fmt.Errorf("%w; the registry has no such image, or not for everybody: check its name and tag, or have the user log in with docker login", err)
	case errors.As(err, &network):
		return fmt.Errorf("%w; the registry cannot be reached from this computer: %s needs none", err, Builtin)
	}
	return err
}

// ReferenceError is a reference that cannot be one.
type ReferenceError struct{ err error }

func (e *ReferenceError) Error() string { return e.err.Error() }

// openArchive opens what docker save or an OCI tool wrote, perhaps gzipped.
func openArchive(file, dir string) (v1.Image, error) {
	if fi, err := os.Stat(file); err != nil {
		return nil, err
	} else if !fi.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no file", file)
	}
	opener := func() (io.ReadCloser, error) { return openPlain(file) }
	manifest, err := tarball.LoadManifest(opener)
	switch {
	case err == nil && len(manifest) != 1:
		return nil, fmt.Errorf("%s holds %d images, and it must be one", file, len(manifest))
	case err == nil:
		return tarball.Image(opener, nil)
	}
	img, ociErr := openOCI(opener, filepath.Join(dir, "oci"))
	if ociErr != nil {
		return nil, fmt.Errorf("%s is no image: neither of docker save (%w) nor of OCI (%w)", file, err, ociErr)
	}
	return img, nil
}

// openPlain opens a file, through gzip where it is one.
func openPlain(file string) (io.ReadCloser, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	in := bufio.NewReaderSize(f, 256<<10)
	if magic, _ := in.Peek(2); string(magic) != "\x1f\x8b" {
		return struct {
			io.Reader
			io.Closer
		}{in, f}, nil
	}
	z, err := gzip.NewReader(in)
	if err != nil {
		f.Close()
		return nil, err
	}
	return struct {
		io.Reader
		io.Closer
	}{z, f}, nil
}

// openOCI unpacks an archive of an OCI layout.
func openOCI(opener tarball.Opener, dir string) (v1.Image, error) {
	if err := unpackLayout(opener, dir); err != nil {
		return nil, err
	}
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return nil, err
	}
	return choose(index, 0)
}

// choose finds the image for our platform, also in an index of an index.
func choose(index v1.ImageIndex, depth int) (v1.Image, error) {
	m, err := index.IndexManifest()
	if err != nil {
		return nil, err
	}
	for _, d := range m.Manifests {
		if d.Platform != nil && !d.Platform.Satisfies(platform) && !(len(m.Manifests) == 1 && d.Platform.OS == "") {
			continue
		}
		switch {
		case d.MediaType.IsImage():
			return index.Image(d.Digest)
		case d.MediaType.IsIndex() && depth < 3:
			inner, err := index.ImageIndex(d.Digest)
			if err != nil {
				return nil, err
			}
			return choose(inner, depth+1)
		}
	}
	return nil, fmt.Errorf("it has nothing for %s", platform)
}

// unpackLayout unpacks the files that an OCI layout has, and no other: their
// names are all known.
func unpackLayout(opener tarball.Opener, dir string) error {
	r, err := opener()
	if err != nil {
		return err
	}
	defer r.Close()
	left := int64(maxUnpacked)
	for in := tar.NewReader(r); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		file := path.Clean(h.Name)
		if h.Typeflag != tar.TypeReg || !isLayout(file) {
			continue
		}
		if left -= h.Size; left < 0 {
			return fmt.Errorf("more than %d bytes", int64(maxUnpacked))
		}
		if err := extract(in, filepath.Join(dir, filepath.FromSlash(file))); err != nil {
			return err
		}
	}
}

func isLayout(file string) bool {
	if file == "oci-layout" || file == "index.json" {
		return true
	}
	rest, ok := strings.CutPrefix(file, "blobs/sha256/")
	return ok && len(rest) == 64 && strings.Trim(rest, "0123456789abcdef") == ""
}

func extract(r io.Reader, file string) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	return errors.Join(err, f.Close())
}
