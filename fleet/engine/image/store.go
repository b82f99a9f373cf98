//go:build unix

// Package image makes disks of container images: each is fetched, checked and
// flattened once, to a read-only ext4 that all its machines share. Start with
// [Store.Ensure].
package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"sync"
	"syscall"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// Image is a prepared image. It is also what stands in its JSON file.
type Image struct {
	Digest       string    `json:"digest"` // of what the disk is made of: the image's configuration
	References   []string  `json:"references"`
	Manifest     string    `json:"manifest,omitempty"` // digest under which a registry has it
	Architecture string    `json:"architecture"`
	OS           string    `json:"os"`
	Layers       int       `json:"layers"`
	Packed       int64     `json:"packed"` // bytes of the layers as they were fetched
	Env          []string  `json:"env,omitempty"`
	Dir          string    `json:"dir,omitempty"`
	User         string    `json:"user,omitempty"`
	Entrypoint   []string  `json:"entrypoint,omitempty"`
	Cmd          []string  `json:"cmd,omitempty"`
	Used         time.Time `json:"-"`
	Size         int64     `json:"-"` // bytes of the disk
	Disk         string    `json:"-"` // path
}

// Store is a directory of prepared images. Several processes may use one.
type Store struct {
	dir string

	mu   sync.Mutex
	busy map[string]*sync.Mutex // by reference: one fetches, the others wait for it
}

// Open makes the directory where it is missing, and removes what interrupted
// preparations left in it.
func Open(dir string) (*Store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	s := &Store{dir: dir, busy: map[string]*sync.Mutex{}}
	left, err := filepath.Glob(filepath.Join(dir, "new-*"))
	for _, path := range left {
		if f, err := lock(path); err == nil { // else it is another engine's work
			_ = os.RemoveAll(path) // at the next time, then
			f.Close()
		}
	}
	return s, err
}

// work makes a directory for a preparation. It is locked until done is called, or
// this process ends; unlocked it is rubbish.
func (s *Store) work() (dir string, done func(), err error) {
	dir, err = os.MkdirTemp(s.dir, "new-")
	if err != nil {
		return "", nil, err
	}
	f, err := lock(dir)
	if err != nil {
		return "", nil, errors.Join(err, os.RemoveAll(dir))
	}
	return dir, func() {
		_ = os.RemoveAll(dir) // what stays is rubbish
		f.Close()
	}, nil
}

// lock locks a file or directory for as long as it is open.
func lock(path string) (*os.File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// turn waits until nobody else works on key.
func (s *Store) turn(key string) func() {
	s.mu.Lock()
	m := s.busy[key]
	if m == nil {
		m = &sync.Mutex{}
		s.busy[key] = m
	}
	s.mu.Unlock()
	m.Lock()
	return m.Unlock
}

// Ensure returns the image of a reference. One that has been prepared under this
// reference is taken as it is; Pull asks again what the reference means.
func (s *Store) Ensure(ctx context.Context, ref string) (Image, error) {
	defer s.turn(ref)()
	if !IsPath(ref) && ref != Builtin { // those are at hand, so what they are now counts
		if img, ok := s.known(ref); ok {
			return img, s.touch(img)
		}
	}
	return s.prepare(ctx, ref)
}

// Pull is Ensure, but asks the registry what the reference means now.
func (s *Store) Pull(ctx context.Context, ref string) (Image, error) {
	defer s.turn(ref)()
	return s.prepare(ctx, ref)
}

// Get returns a prepared image by its digest.
func (s *Store) Get(digest string) (Image, error) {
	var img Image
	hex, ok := strings.CutPrefix(digest, "sha256:")
	if !ok || strings.ContainsAny(hex, "/.") {
		return img, fmt.Errorf("%q is no digest", digest)
	}
	file := filepath.Join(s.dir, hex+".json")
	data, err := os.ReadFile(file)
	if err != nil {
		return img, err
	}
	if err := json.Unmarshal(data, &img); err != nil {
		return img, fmt.Errorf("%s: %w", file, err)
	}
	img.Disk = filepath.Join(s.dir, hex+".ext4")
	fi, err := os.Stat(img.Disk)
	if err != nil {
		return img, err
	}
	img.Size = fi.Size()
	if fi, err := os.Stat(file); err == nil {
		img.Used = fi.ModTime()
	}
	return img, nil
}

// List returns all images, those used longest ago first.
func (s *Store) List() ([]Image, error) {
	files, err := filepath.Glob(filepath.Join(s.dir, "*.json"))
	if err != nil {
		return nil, err
	}
	var all []Image
	for _, file := range files {
		img, err := s.Get("sha256:" + strings.TrimSuffix(filepath.Base(file), ".json"))
		if err == nil {
			all = append(all, img)
		}
	}
	sort.Slice(all, func(i, j int) bool { return all[i].Used.Before(all[j].Used) })
	return all, nil
}

func (s *Store) known(ref string) (Image, bool) {
	all, err := s.List()
	if err != nil {
		return Image{}, false
	}
	i := slices.IndexFunc(all, func(img Image) bool { return slices.Contains(img.References, ref) })
	if i < 0 {
		return Image{}, false
	}
	return all[i], true
}

// touch notes that an image was used now.
func (s *Store) touch(img Image) error {
	now := time.Now()
	return os.Chtimes(s.file(img.Digest, ".json"), now, now)
}

func (s *Store) file(digest, suffix string) string {
	return filepath.Join(s.dir, strings.TrimPrefix(digest, "sha256:")+suffix)
}

// Prune removes images used longest ago until the disks of all take at most max
// bytes, but none that inUse names. It returns what it removed.
func (s *Store) Prune(max int64, inUse func(digest string) bool) ([]Image, error) {
	all, err := s.List()
	if err != nil {
		return nil, err
	}
	var total int64
	for _, img := range all {
		total += img.Size
	}
	var gone []Image
	for _, img := range all {
		if total <= max || inUse(img.Digest) {
			continue
		}
		// The description goes first: a disk without one is not found.
		if err := errors.Join(os.Remove(s.file(img.Digest, ".json")), os.Remove(img.Disk)); err != nil {
			return gone, err
		}
		total -= img.Size
		gone = append(gone, img)
	}
	return gone, s.dropOrphans()
}

// dropOrphans removes disks whose description is gone.
func (s *Store) dropOrphans() error {
	disks, err := filepath.Glob(filepath.Join(s.dir, "*.ext4"))
	for _, disk := range disks {
		fi, statErr := os.Stat(disk)
		_, jsonErr := os.Stat(strings.TrimSuffix(disk, ".ext4") + ".json")
		if errors.Is(jsonErr, os.ErrNotExist) && statErr == nil && time.Since(fi.ModTime()) > time.Hour {
			err = errors.Join(err, os.Remove(disk))
		}
	}
	return err
}

// prepare fetches what a reference means now, and makes its disk when there is none.
func (s *Store) prepare(ctx context.Context, ref string) (Image, error) {
	if ref == Builtin {
		return s.prepareBuiltin(ctx)
	}
	if strings.HasPrefix(ref, "builtin:") {
		return Image{}, &ReferenceError{fmt.Errorf("the only builtin image is %s", Builtin)}
	}
	work, done, err := s.work()
	if err != nil {
		return Image{}, err
	}
	defer done()
	src, err := open(ctx, ref, work)
	if err != nil {
		return Image{}, err
	}
	img, err := describe(src, ref)
	if err != nil {
		return Image{}, err
	}
	defer s.turn(img.Digest)()
	if have, err := s.Get(img.Digest); err == nil {
		return s.addReference(have, ref)
	}
	t, err := flatten(ctx, src, work)
	if err != nil {
		return Image{}, err
	}
	defer t.close()
	if img, err = s.finish(ctx, img, t, work); err != nil {
		return img, err
	}
	return s.addReference(img, ref)
}

func (s *Store) prepareBuiltin(ctx context.Context) (Image, error) {
	file, err := busyboxPath()
	if err != nil {
		return Image{}, err
	}
	digest, err := busyboxDigest(file)
	if err != nil {
		return Image{}, err
	}
	if img, err := s.Get(digest); err == nil && slices.Contains(img.References, Builtin) {
		return img, s.touch(img)
	} else if err == nil { // an older version was used meanwhile
		return s.addReference(img, Builtin)
	}
	work, done, err := s.work()
	if err != nil {
		return Image{}, err
	}
	defer done()
	t, err := busyboxTree(file)
	if err != nil {
		return Image{}, err
	}
	defer t.close()
	img := Image{Digest: digest, Architecture: platform.Architecture, OS: platform.OS, Layers: 1}
	if img, err = s.finish(ctx, img, t, work); err != nil {
		return img, err
	}
	return s.addReference(img, Builtin)
}

// describe reads what an image says about itself.
func describe(src v1.Image, ref string) (Image, error) {
	digest, err := src.ConfigName()
	if err != nil {
		return Image{}, err
	}
	config, err := src.ConfigFile()
	if err != nil {
		return Image{}, err
	}
	if config.Architecture != "" && config.Architecture != platform.Architecture || config.OS != "" && config.OS != platform.OS {
		return Image{}, fmt.Errorf("it is for %s/%s, and machines here are %s", config.OS, config.Architecture, platform)
	}
	manifest, err := src.Digest()
	if err != nil {
		return Image{}, err
	}
	layers, err := src.Layers()
	if err != nil {
		return Image{}, err
	}
	img := Image{
		Digest: digest.String(), References: []string{ref}, Manifest: manifest.String(),
		Architecture: platform.Architecture, OS: platform.OS, Layers: len(layers),
		Env: config.Config.Env, Dir: config.Config.WorkingDir, User: config.Config.User,
		Entrypoint: config.Config.Entrypoint, Cmd: config.Config.Cmd,
	}
	for _, l := range layers {
		size, err := l.Size()
		if err != nil {
			return Image{}, err
		}
		img.Packed += size
	}
	return img, nil
}

// finish makes the disk of a tree, then the description that makes it findable.
func (s *Store) finish(ctx context.Context, img Image, t *tree, work string) (Image, error) {
	disk := filepath.Join(work, "disk")
	if err := writeDisk(ctx, t, disk); err != nil {
		return img, err
	}
	if err := os.Rename(disk, s.file(img.Digest, ".ext4")); err != nil {
		return img, err
	}
	if err := s.write(img); err != nil {
		return img, err
	}
	return s.Get(img.Digest)
}

// addReference gives an image a reference, and takes it from the one that had it.
func (s *Store) addReference(img Image, ref string) (Image, error) {
	all, err := s.List()
	if err != nil {
		return img, err
	}
	for _, old := range all {
		if old.Digest == img.Digest || !slices.Contains(old.References, ref) {
			continue
		}
		old.References = slices.DeleteFunc(old.References, func(r string) bool { return r == ref })
		if err := s.write(old); err != nil {
			return img, err
		}
	}
	if !slices.Contains(img.References, ref) {
		img.References = append(img.References, ref)
		if err := s.write(img); err != nil {
			return img, err
		}
	}
	return img, s.touch(img)
}

func (s *Store) write(img Image) error {
	data, err := json.MarshalIndent(img, "", "  ")
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(s.dir, "new-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(data)
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), s.file(img.Digest, ".json"))
}
