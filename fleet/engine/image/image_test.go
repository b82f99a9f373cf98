//go:build unix

package image

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// entry is a line of a layer: a name, then what it is.
//
//	name            a file with its name as content
//	name/           a directory
//	name -> target  a symbolic link
//	name => target  a hard link
type entry string

func layerOf(t *testing.T, entries ...entry) v1.Layer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i, e := range entries {
		h, content := e.header()
		h.Uid, h.Gid = 1000+i, 2000+i
		if err := errors.Join(w.WriteHeader(h), write(w, content)); err != nil {
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

func write(w io.Writer, text string) error {
	_, err := io.WriteString(w, text)
	return err
}

func (e entry) header() (*tar.Header, string) {
	text := string(e)
	if name, target, ok := strings.Cut(text, " -> "); ok {
		return &tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777}, ""
	}
	if name, target, ok := strings.Cut(text, " => "); ok {
		return &tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: target, Mode: 0o644}, ""
	}
	if strings.HasSuffix(text, "/") {
		return &tar.Header{Typeflag: tar.TypeDir, Name: text, Mode: 0o755}, ""
	}
	name, content, ok := strings.Cut(text, "=")
	if !ok {
		content = name
	}
	return &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o4755, Size: int64(len(content))}, content
}

func imageOf(t *testing.T, layers ...v1.Layer) v1.Image {
	t.Helper()
	img, err := mutate.AppendLayers(empty.Image, layers...)
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = platform.OS, platform.Architecture
	config.Config = v1.Config{Env: []string{"A=b"}, WorkingDir: "/work", User: "app", Entrypoint: []string{"/bin/run"}, Cmd: []string{"x"}}
	if img, err = mutate.ConfigFile(img, config); err != nil {
		t.Fatal(err)
	}
	return img
}

// flat returns the files that an image is flattened to, in the notation of entry.
func flat(t *testing.T, img v1.Image) ([]string, error) {
	t.Helper()
	tr, err := flatten(t.Context(), img, t.TempDir())
	if err != nil {
		return nil, err
	}
	defer tr.close()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := errors.Join(tr.write(w), w.Close()); err != nil {
		t.Fatal(err)
	}
	var out []string
	for r := tar.NewReader(&b); ; {
		h, err := r.Next()
		if err == io.EOF {
			return out, nil
		}
		if err != nil {
			t.Fatal(err)
		}
		content, _ := io.ReadAll(r)
		switch h.Typeflag {
		case tar.TypeSymlink:
			out = append(out, h.Name+" -> "+h.Linkname)
		case tar.TypeLink:
			out = append(out, h.Name+" => "+h.Linkname)
		case tar.TypeDir:
			if h.Name != "./" {
				out = append(out, h.Name)
			}
		default:
			out = append(out, h.Name+"="+string(content))
		}
	}
}

func TestFlatten(t *testing.T) {
	for _, c := range []struct {
		what   string
		layers [][]entry
		want   []string // nil: refused
	}{
		{"later layers win", [][]entry{{"a=1", "b=1"}, {"b=2"}}, []string{"a=1", "b=2"}},
		{"within a layer too", [][]entry{{"a=1", "a=2"}}, []string{"a=2"}},
		{"whiteout", [][]entry{{"d/", "d/a", "d/b"}, {"d/.wh.a"}}, []string{"d/", "d/b=d/b"}},
		{"whiteout of a directory", [][]entry{{"d/", "d/a"}, {".wh.d"}}, []string{}},
		{"whiteout spares its own layer", [][]entry{{"a=1"}, {"a=2", ".wh.a"}}, []string{"a=2"}},
		{"opaque", [][]entry{{"d/", "d/a", "d/e/", "d/e/f"}, {"d/", "d/e/", "d/e/g", "d/.wh..wh..opq", "d/b"}}, []string{"d/", "d/b=d/b", "d/e/", "d/e/g=d/e/g"}},
		{"whiteout and again", [][]entry{{"d/", "d/a"}, {".wh.d", "d/", "d/b"}}, []string{"d/", "d/b=d/b"}},
		{"hard link", [][]entry{{"b=1", "a => b"}}, []string{"a=1", "b => a"}},
		{"hard link to another layer", [][]entry{{"a=1"}, {"b => a"}}, []string{"a=1", "b => a"}},
		{"hard link keeps what was replaced", [][]entry{{"a=1", "b => a"}, {"a=2"}}, []string{"a=2", "b=1"}},
		{"hard link to nothing", [][]entry{{"b => a"}}, nil},
		{"through a link", [][]entry{{"usr/", "usr/lib/", "lib -> usr/lib"}, {"lib/x"}}, []string{"lib -> usr/lib", "usr/", "usr/lib/", "usr/lib/x=lib/x"}},
		{"through a link out of the root", [][]entry{{"d -> ../../../../etc"}, {"d/x"}}, []string{"d -> ../../../../etc", "etc/", "etc/x=d/x"}},
		{"through an absolute link", [][]entry{{"d -> /e"}, {"d/x"}}, []string{"d -> /e", "e/", "e/x=d/x"}},
		{"links in a circle", [][]entry{{"a -> b", "b -> a"}, {"a/x"}}, nil},
		{"names that lead out", [][]entry{{"../../etc/x", "/abs", "./dot", "d/../e"}}, []string{"abs=/abs", "dot=./dot", "e=d/../e", "etc/", "etc/x=../../etc/x"}},
		{"a file where a directory was", [][]entry{{"d/", "d/a"}, {"d=1"}}, []string{"d=1"}},
		{"a directory where a file was", [][]entry{{"d=1"}, {"d/", "d/a"}}, []string{"d/", "d/a=d/a"}},
		{"parents that no entry names", [][]entry{{"x/y/z"}}, []string{"x/", "x/y/", "x/y/z=x/y/z"}},
	} {
		t.Run(c.what, func(t *testing.T) {
			var layers []v1.Layer
			for _, entries := range c.layers {
				layers = append(layers, layerOf(t, entries...))
			}
			got, err := flat(t, imageOf(t, layers...))
			if c.want == nil {
				if err == nil {
					t.Errorf("taken as %q", got)
				}
			} else if err != nil || !slices.Equal(got, c.want) {
				t.Errorf("%v\n got %q\nwant %q", err, got, c.want)
			}
		})
	}
}

// A layer that is not what the image says is refused.
func TestLayerChecked(t *testing.T) {
	img := imageOf(t, layerOf(t, "a=1"))
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config = config.DeepCopy()
	config.RootFS.DiffIDs[0].Hex = strings.Repeat("0", 64)
	if img, err = mutate.ConfigFile(img, config); err != nil {
		t.Fatal(err)
	}
	if _, err := flat(t, img); err == nil || !strings.Contains(err.Error(), "the image says sha256:000") {
		t.Errorf("got %v", err)
	}
	broken := imageOf(t, static.NewLayer([]byte("no archive at all"), types.DockerLayer))
	if _, err := flat(t, broken); err == nil {
		t.Error("a layer that is no archive was taken")
	}
}

func open1(t *testing.T) *Store {
	t.Helper()
	s, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// loopback serves a registry and counts the requests for blobs.
func loopback(t *testing.T, wrap func(http.Handler) http.Handler) (host string, blobs *atomic.Int64) {
	t.Helper()
	blobs = &atomic.Int64{}
	var h http.Handler = registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	counted := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") {
			blobs.Add(1)
		}
		h.ServeHTTP(w, r)
	})
	var served http.Handler = counted
	if wrap != nil {
		served = wrap(counted)
	}
	server := httptest.NewServer(served)
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://"), blobs
}

func push(t *testing.T, ref string, img v1.Image) {
	t.Helper()
	r, err := name.ParseReference(ref)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(r, img); err != nil {
		t.Fatal(err)
	}
}

func TestRegistry(t *testing.T) {
	host, blobs := loopback(t, nil)
	s := open1(t)
	ref := host + "/some/image:tag"
	push(t, ref, imageOf(t, layerOf(t, "a=1"), layerOf(t, "b=1")))
	blobs.Store(0)
	var wg sync.WaitGroup
	for range 4 { // of many at once one fetches
		wg.Go(func() {
			img, err := s.Ensure(t.Context(), ref)
			if err != nil {
				t.Error(err)
				return
			}
			fi, err := os.Stat(img.Disk)
			if err != nil || fi.Mode().Perm() != 0o400 || img.Layers != 2 || img.Packed == 0 || !strings.HasPrefix(img.Manifest, "sha256:") {
				t.Errorf("%v, %v, %+v", err, fi, img)
			}
			if !slices.Equal(img.Env, []string{"A=b"}) || img.Dir != "/work" || img.User != "app" || !slices.Equal(img.Entrypoint, []string{"/bin/run"}) || !slices.Equal(img.Cmd, []string{"x"}) {
				t.Errorf("configuration: %+v", img)
			}
		})
	}
	wg.Wait()
	if n := blobs.Load(); n > 3 { // two layers and the configuration
		t.Errorf("%d blobs fetched", n)
	}
	first, err := s.Ensure(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}

	// The tag moves: Ensure stays with what it has, Pull does not.
	push(t, ref, imageOf(t, layerOf(t, "a=2")))
	if again, err := s.Ensure(t.Context(), ref); err != nil || again.Digest != first.Digest {
		t.Errorf("%+v, %v", again, err)
	}
	moved, err := s.Pull(t.Context(), ref)
	if err != nil || moved.Digest == first.Digest {
		t.Fatalf("%+v, %v", moved, err)
	}
	if again, err := s.Ensure(t.Context(), ref); err != nil || again.Digest != moved.Digest {
		t.Errorf("%+v, %v", again, err)
	}
	if old, err := s.Get(first.Digest); err != nil || len(old.References) != 0 {
		t.Errorf("the old image still has %v, %v", old.References, err)
	}
	if left, _ := filepath.Glob(filepath.Join(s.dir, "new-*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// Names and passwords come from the Docker configuration.
func TestRegistryAuth(t *testing.T) {
	host, _ := loopback(t, func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if user, pass, _ := r.BasicAuth(); user != "me" || pass != "secret" {
				w.Header().Set("WWW-Authenticate", `Basic realm="here"`)
				http.Error(w, `{"errors":[{"code":"UNAUTHORIZED","message":"who are you"}]}`, http.StatusUnauthorized)
				return
			}
			h.ServeHTTP(w, r)
		})
	})
	dir := t.TempDir()
	t.Setenv("DOCKER_CONFIG", dir)
	s := open1(t)
	if _, err := s.Ensure(t.Context(), host+"/image:tag"); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("without a password: %v", err)
	}
	auth := base64.StdEncoding.EncodeToString([]byte("me:secret"))
	config := fmt.Sprintf(`{"auths":{%q:{"auth":%q}}}`, host, auth)
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := s.Ensure(t.Context(), host+"/image:tag")
	if err == nil || !strings.Contains(err.Error(), "MANIFEST_UNKNOWN") && !strings.Contains(err.Error(), "NAME_UNKNOWN") {
		t.Errorf("with the password, of an image that is not there: %v", err)
	}
	if err == nil || !strings.Contains(err.Error(), "check its name and tag") {
		t.Errorf("no advice: %v", err)
	}
}

func TestRegistryRefuses(t *testing.T) {
	s := open1(t)
	for _, ref := range []string{"Not A Ref", "builtin:nothing", "127.0.0.1:1/none:tag", "/no/such/archive.tar"} {
		if img, err := s.Ensure(t.Context(), ref); err == nil {
			t.Errorf("%s gave %+v", ref, img)
		} else if advised := strings.Contains(err.Error(), "cannot be reached"); advised != strings.HasPrefix(ref, "127.") {
			t.Errorf("%s: %v", ref, err)
		}
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	host, _ := loopback(t, nil)
	push(t, host+"/i:t", imageOf(t, layerOf(t, "a")))
	if _, err := s.Ensure(gone, host+"/i:t"); !errors.Is(err, context.Canceled) {
		t.Errorf("a caller that is gone got %v", err)
	}
}

func TestArchives(t *testing.T) {
	img := imageOf(t, layerOf(t, "a=1", "b => a"))
	digest, err := img.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	tag, err := name.NewTag("some/image:tag")
	if err != nil {
		t.Fatal(err)
	}
	docker, oci := filepath.Join(dir, "docker.tar"), filepath.Join(dir, "oci.tar")
	if err := tarball.WriteToFile(docker, tag, img); err != nil {
		t.Fatal(err)
	}
	index, err := layout.Write(filepath.Join(dir, "layout"), empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	if err := index.AppendImage(img); err != nil {
		t.Fatal(err)
	}
	pack(t, filepath.Join(dir, "layout"), oci)
	s := open1(t)
	for _, ref := range []string{docker, oci, "oci-archive:" + oci} {
		got, err := s.Ensure(t.Context(), ref)
		if err != nil || got.Digest != digest.String() || !slices.Contains(got.References, ref) {
			t.Errorf("%s: %v, %+v", ref, err, got)
		}
	}
	if all, err := s.List(); err != nil || len(all) != 1 {
		t.Errorf("%d images of one content, %v", len(all), err)
	}
	bad := filepath.Join(dir, "bad.tar")
	if err := os.WriteFile(bad, []byte("nothing"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Ensure(t.Context(), bad); err == nil {
		t.Error("nothing was taken for an image")
	}
}

// pack writes a directory into an archive.
func pack(t *testing.T, dir, file string) {
	t.Helper()
	out, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	w := tar.NewWriter(out)
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return errors.Join(w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: rel, Mode: 0o644, Size: int64(len(data))}), write(w, string(data)))
	})
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
}

// The store keeps to its bound, oldest first, and to what is in use.
func TestPrune(t *testing.T) {
	host, _ := loopback(t, nil)
	s := open1(t)
	var digests []string
	var size int64
	for i := range 3 {
		ref := fmt.Sprintf("%s/i:%d", host, i)
		push(t, ref, imageOf(t, layerOf(t, entry(fmt.Sprintf("a=%d", i)))))
		img, err := s.Ensure(t.Context(), ref)
		if err != nil {
			t.Fatal(err)
		}
		digests, size = append(digests, img.Digest), img.Size
		if err := os.Chtimes(s.file(img.Digest, ".json"), img.Used, img.Used.Add(-1e9*10+1e9*1)); err != nil {
			t.Fatal(err)
		}
	}
	gone, err := s.Prune(2*size, func(digest string) bool { return digest == digests[0] })
	if err != nil || len(gone) != 1 || gone[0].Digest != digests[1] {
		t.Fatalf("removed %+v, %v", gone, err)
	}
	if _, err := os.Stat(gone[0].Disk); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("its disk: %v", err)
	}
	if gone, err := s.Prune(0, func(string) bool { return false }); err != nil || len(gone) != 2 {
		t.Errorf("removed %+v, %v", gone, err)
	}
}
