//go:build unix

package engine

import (
	"context"
	"net/http"
	"slices"
	"strings"

	"smol-mcp/fleet/engine/image"
	"smol-mcp/fleet/engine/machine"
)

// imageInfo is how the API describes an image.
func imageInfo(img image.Image, ref string) map[string]any {
	digest := img.Manifest
	if digest == "" {
		digest = img.Digest
	}
	size := img.Packed
	if size == 0 {
		size = img.Size
	}
	return map[string]any{
		"reference": ref, "digest": digest, "size": size, "architecture": img.Architecture, "os": img.OS, "layerCount": img.Layers,
	}
}

// machineImages lists what a running machine is made of.
func (s *server) machineImages(w http.ResponseWriter, r *call) error {
	rec, err := s.machines.Get(r.Context(), r.vars["name"])
	if err != nil {
		return err
	}
	list := []map[string]any{}
	if img, err := s.machines.Image(rec); err == nil && rec.State == machine.Running {
		list = append(list, imageInfo(img, rec.Image))
	}
	return answer(w, map[string]any{"images": list})
}

// pull prepares an image. All machines share the store, so the machine only has
// to be there; it is not started.
func (s *server) pull(w http.ResponseWriter, r *call) error {
	var b struct {
		Image string `json:"image"`
	}
	if err := decode(r.Request, &b, "PullImageRequest"); err != nil {
		return err
	}
	if b.Image == "" || len(b.Image) > 512 || strings.ContainsAny(b.Image, " \x00\n;|&$`<>") {
		return badRequest("invalid image reference")
	}
	if _, err := s.machines.Get(r.Context(), r.vars["name"]); err != nil {
		return err
	}
	img, err := detached(s, r, func(ctx context.Context) (image.Image, error) { return s.images.Pull(ctx, b.Image) })
	if err != nil {
		return failed("pull image: failed to pull "+b.Image, err)
	}
	s.pruneImages(img.Digest)
	return answer(w, map[string]any{"image": imageInfo(img, b.Image)})
}

// pruneImages keeps the store within its bound.
func (s *server) pruneImages(keep ...string) {
	gone, err := s.images.Prune(s.opts.MaxImages, func(digest string) bool {
		return s.machines.ImageInUse(digest) || slices.Contains(keep, digest)
	})
	if err != nil {
		s.opts.Log.Warn("images not pruned", "err", err)
	}
	for _, img := range gone {
		s.opts.Log.Info("image removed", "digest", img.Digest, "references", img.References)
	}
}
