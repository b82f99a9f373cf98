//go:build unix

package engine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"smol-mcp/fleet/engine/image"
	"smol-mcp/fleet/engine/machine"
)

// Examine looks at all that a daemon with these options needs.
func Examine(ctx context.Context, o Options) ([]machine.Finding, error) {
	if err := o.Fill(); err != nil {
		return nil, err
	}
	out := machine.Examine(ctx, machine.Options{Data: o.Data, Cache: o.Cache, QEMU: o.QEMU, Kernel: o.Kernel, Guest: o.Guest, Accel: o.Accel})
	out = append(out, machine.CheckBuiltin(image.CheckBuiltin()))
	return append(out, examineImages(filepath.Join(o.Cache, "images"), o.MaxImages)), nil
}

func examineImages(dir string, most int64) machine.Finding {
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) { // looking makes nothing
		return machine.Finding{Code: "images_ok", Level: machine.OK, What: "no prepared images yet"}
	}
	store, err := image.Open(dir)
	if err != nil {
		return machine.Finding{Code: "images_unreadable", Level: machine.Failure, What: "images cannot be kept in " + dir, Cause: err.Error(), Remedy: "see to its rights"}
	}
	all, err := store.List()
	if err != nil {
		return machine.Finding{Code: "images_unreadable", Level: machine.Failure, What: "images cannot be listed", Cause: err.Error(), Remedy: "see to the rights of " + dir}
	}
	var total int64
	for _, img := range all {
		total += img.Size
	}
	what := fmt.Sprintf("%d prepared images, %d MiB", len(all), total>>20)
	if total > most {
		return machine.Finding{Code: "images_large", Level: machine.Warning, What: what, Cause: "machines use more than the bound", Remedy: "delete machines that are not needed"}
	}
	return machine.Finding{Code: "images_ok", Level: machine.OK, What: what}
}
