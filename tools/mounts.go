package tools

import (
	"os"
	"path"
	"path/filepath"
	"strings"

	"smol-mcp/fleet"
)

// maxMounts bounds the mounts of a machine: each takes a device, and some
// hypervisors do not boot with more than 28.
const maxMounts = 16

// checkMounts refuses host directories outside the allowed roots.
func (c *call) checkMounts(mounts []mountIn) ([]fleet.Mount, error) {
	var checked []fleet.Mount
	for _, m := range mounts {
		source, err := c.allowed("mount "+fleet.Quote(m.Source), m.Source)
		if err != nil {
			return nil, err
		}
		if info, err := os.Stat(source); err != nil || !info.IsDir() {
			return nil, invalid("mount "+fleet.Quote(m.Source), "it is no directory on this computer")
		}
		if !path.IsAbs(m.Target) || path.Clean(m.Target) != m.Target {
			return nil, invalid("mount target "+fleet.Quote(m.Target), "it is no absolute, clean path")
		}
		checked = append(checked, fleet.Mount{Source: source, Target: m.Target, ReadOnly: m.ReadOnly})
	}
	return checked, nil
}

// checkImage refuses an image archive outside the allowed roots: it is a host
// file that the guest would get to read. It returns the image with links resolved.
func (c *call) checkImage(image string) (string, error) {
	if image == "" || len(image) > 512 || strings.HasPrefix(image, "-") || strings.ContainsFunc(image, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
		return "", invalid("image "+fleet.Quote(image), "a reference has 1 to 512 characters, no spaces, and does not begin with -")
	}
	if !isLocalImage(image) {
		return image, nil
	}
	if c.fleet.Target() != localTarget {
		return "", &fleet.Error{Code: fleet.CodeUnsupported, Op: "use image " + fleet.Quote(image), Why: "the cloud cannot see files of this computer", Next: "name an image of a registry"}
	}
	kind, file, found := strings.Cut(image, ":")
	if !found || strings.HasPrefix(image, "/") {
		return c.allowed("image "+fleet.Quote(image), image)
	}
	file, err := c.allowed("image "+fleet.Quote(image), file)
	return kind + ":" + file, err
}

// allowed resolves a host path and returns it when it lies below one of the
// roots of the settings. Links are followed first, so none leads outside.
func (c *call) allowed(what, file string) (string, error) {
	refuse := func(why string) error {
		return &fleet.Error{Code: fleet.CodeInvalid, Op: what, Why: why,
			Next: "use a path below an allowed root, write-file instead, or ask the user to set SMOL_MCP_MOUNT_ROOTS"}
	}
	if len(c.opts.Limits.MountRoots) == 0 {
		return "", refuse("no host path may be used: SMOL_MCP_MOUNT_ROOTS is empty")
	}
	if !filepath.IsAbs(file) {
		return "", refuse("a host path must be absolute")
	}
	resolved, err := filepath.EvalSymlinks(file)
	if err != nil {
		return "", refuse("it does not exist on this computer or cannot be reached")
	}
	for _, root := range c.opts.Limits.MountRoots {
		base, err := filepath.EvalSymlinks(root)
		if err != nil {
			continue
		}
		if inside, err := filepath.Rel(base, resolved); err == nil && filepath.IsLocal(inside) {
			return resolved, nil
		}
	}
	return "", refuse("it lies outside " + strings.Join(c.opts.Limits.MountRoots, ", "))
}
