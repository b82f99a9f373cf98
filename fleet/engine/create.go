//go:build unix

package engine

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"smol-mcp/fleet/engine/image"
	"smol-mcp/fleet/engine/machine"
	"smol-mcp/fleet/engine/netfilter"
)

// createRequest is the body of a create. Integers have smolvm's widths, so that
// what does not fit is refused.
type createRequest struct {
	Name         string       `json:"name"`
	Image        string       `json:"image"`
	CPUs         *uint8       `json:"cpus"`
	MemoryMB     *uint32      `json:"memoryMb"`
	StorageGB    *uint64      `json:"storageGb"`
	Network      bool         `json:"network"`
	AllowedCIDRs []string     `json:"allowedCidrs"`
	AllowedHosts []string     `json:"allowedHosts"`
	Ports        []portFields `json:"ports"`
	Cmd          []string     `json:"cmd"`
	Entrypoint   []string     `json:"entrypoint"`
	Env          []envField   `json:"env"`
	Workdir      string       `json:"workdir"`
}

type portFields struct {
	Host  uint16 `json:"host"`
	Guest uint16 `json:"guest"`
}

type envField struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Sizes of a machine that does not ask, and the smallest that boots.
const (
	defaultCPUs   = 2
	defaultMemory = 2048 // MiB
	minMemory     = 128
	maxMemory     = 1 << 20
	maxCPUs       = 64
	maxDisk       = 4096 // GiB
)

// spec checks a request.
func (c *createRequest) spec() (machine.Spec, error) {
	if c.Name == "" {
		b := make([]byte, 4)
		rand.Read(b)
		c.Name = "vm-" + hex.EncodeToString(b)
	}
	spec := machine.Spec{
		Name: c.Name, Image: c.Image, CPUs: defaultCPUs, MemoryMB: defaultMemory, DiskGB: machine.DiskGB, Network: c.Network,
		AllowHosts: c.AllowedHosts, AllowCIDRs: c.AllowedCIDRs, Entrypoint: c.Entrypoint, Cmd: c.Cmd, Dir: c.Workdir,
	}
	if !validName(c.Name) {
		return spec, badRequest("invalid machine name '%s'", c.Name)
	}
	if c.CPUs != nil {
		spec.CPUs = int(*c.CPUs)
	}
	if c.MemoryMB != nil {
		spec.MemoryMB = int(*c.MemoryMB)
	}
	if c.StorageGB != nil {
		spec.DiskGB = int(min(*c.StorageGB, maxDisk+1))
	}
	switch {
	case spec.CPUs < 1 || spec.CPUs > maxCPUs:
		return spec, badRequest("cpus must be 1 to %d", maxCPUs)
	case spec.MemoryMB < minMemory || spec.MemoryMB > maxMemory:
		return spec, badRequest("memoryMb must be %d to %d on this engine", minMemory, maxMemory)
	case spec.DiskGB < 1 || spec.DiskGB > maxDisk:
		return spec, badRequest("storageGb must be 1 to %d", maxDisk)
	case c.Image == "" && len(c.Cmd)+len(c.Entrypoint) > 0:
		return spec, badRequest("cmd and entrypoint need an image")
	case len(c.Image) > 512 || strings.ContainsAny(c.Image, " \x00\n;|&$`<>"):
		return spec, badRequest("invalid image reference")
	case strings.HasPrefix(c.Image, "builtin:") && c.Image != image.Builtin:
		return spec, badRequest("the only builtin image is %s", image.Builtin)
	case c.Workdir != "" && !strings.HasPrefix(c.Workdir, "/"):
		return spec, badRequest("workdir must be absolute")
	}
	var err error
	if spec.Env, err = environment(c.Env); err != nil {
		return spec, err
	}
	if _, err := netfilter.NewPolicy(false, c.AllowedHosts, c.AllowedCIDRs); err != nil {
		return spec, badRequest("%v", err)
	}
	spec.Ports, err = checkPorts(c.Ports)
	return spec, err
}

// validName is smolvm's rule.
func validName(name string) bool {
	ok := name != "" && len(name) <= 128 && !strings.HasSuffix(name, "-") && !strings.Contains(name, "--") && name[0] != '-' && name[0] != '_'
	return ok && strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") == ""
}

// environment renders variables for a guest. Values stay out of errors.
func environment(vars []envField) ([]string, error) {
	var out []string
	for _, v := range vars {
		if !validVariable(v.Name) || strings.ContainsRune(v.Value, 0) {
			return nil, badRequest("invalid environment variable name or value")
		}
		out = append(out, v.Name+"="+v.Value)
	}
	return out, nil
}

func validVariable(name string) bool {
	if name == "" || len(name) > 256 || '0' <= name[0] && name[0] <= '9' {
		return false
	}
	return strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") == ""
}

func checkPorts(list []portFields) ([]machine.Port, error) {
	var out []machine.Port
	for _, p := range list {
		if p.Host == 0 || p.Guest == 0 {
			return nil, badRequest("port 0 is not allowed")
		}
		port := machine.Port{Host: int(p.Host), Guest: int(p.Guest)}
		if slices.ContainsFunc(out, func(o machine.Port) bool { return o.Host == port.Host }) {
			return nil, badRequest("%s", fmt.Sprintf("duplicate host port %d", port.Host))
		}
		out = append(out, port)
	}
	return out, nil
}
