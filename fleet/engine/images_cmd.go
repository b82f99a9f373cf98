//go:build unix

package engine

import (
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	"smol-mcp/fleet/engine/image"
	"smol-mcp/fleet/engine/machine"
)

// listed is an image as ListImages prints it.
type listed struct {
	Digest     string    `json:"digest"`
	References []string  `json:"references"`
	Bytes      int64     `json:"bytes"`
	UsedAt     time.Time `json:"usedAt"`
	Machines   []string  `json:"machines"` // that are made of it
}

// ListImages prints the prepared images, those used longest ago first. No daemon
// needs to run.
func ListImages(o Options, asJSON bool, w io.Writer) error {
	store, users, err := openImages(&o)
	if err != nil {
		return err
	}
	all, err := store.List()
	if err != nil {
		return err
	}
	rows := []listed{}
	for _, img := range all {
		rows = append(rows, listed{img.Digest, img.References, img.Size, img.Used, append([]string{}, users[img.Digest]...)})
	}
	if asJSON {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(rows)
	}
	for _, r := range rows {
		used := "no machine"
		if len(r.Machines) > 0 {
			used = strings.Join(r.Machines, ", ")
		}
		fmt.Fprintf(w, "%s  %6d MiB  used %s  %s  (%s)\n", short(r.Digest), r.Bytes>>20, r.UsedAt.Format("2006-01-02 15:04"), strings.Join(r.References, " "), used)
	}
	return nil
}

func short(digest string) string {
	return digest[:min(len(digest), len("sha256:")+12)]
}

// PruneImages removes images that no machine is made of: those beyond
// o.MaxImages bytes, or all of them.
func PruneImages(o Options, all bool, w io.Writer) error {
	store, users, err := openImages(&o)
	if err != nil {
		return err
	}
	bound := o.MaxImages
	if all {
		bound = 0
	}
	gone, err := store.Prune(bound, func(digest string) bool { return len(users[digest]) > 0 })
	for _, img := range gone {
		fmt.Fprintf(w, "removed %s  %d MiB  %s\n", short(img.Digest), img.Size>>20, strings.Join(img.References, " "))
	}
	return err
}

// openImages returns the store, and which machines use which digest.
func openImages(o *Options) (*image.Store, map[string][]string, error) {
	if err := o.Fill(); err != nil {
		return nil, nil, err
	}
	store, err := image.Open(filepath.Join(o.Cache, "images"))
	if err != nil {
		return nil, nil, err
	}
	users, err := machine.Digests(o.Data)
	return store, users, err
}
