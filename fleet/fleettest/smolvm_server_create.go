package fleettest

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

var (
	machineName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,127}$`)
	envName     = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,255}$`)
)

func (s *smolvmServer) create(r *call) reply {
	var c createRequest
	var fields []string
	if atLeast(r.version, "1.22.2") {
		fields = fieldNames("CreateMachineRequest", r.version)
	}
	if re := r.decode(&c, fields); re != nil {
		return *re
	}
	if c.Name == "" {
		c.Name = "vm-" + randomHex(4)
	}
	if re := c.check(r.version); re != nil {
		return *re
	}
	m, re := s.reserve(machineRecord{Create: c, State: "created", CreatedAt: time.Now().Unix()})
	if re != nil {
		return *re
	}
	defer m.life.Unlock()
	if re := s.save(m, func(*machineRecord) {}); re != nil {
		return *re
	}
	return s.described(m)
}

// reserve takes the record's name for a new machine, of which nothing but the
// directory is on disk yet, and returns it with its lifecycle lock held.
func (s *smolvmServer) reserve(rec machineRecord) (*smolvmMachine, *reply) {
	name := rec.Create.Name
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.machines[name] != nil {
		return nil, conflict("machine '%s' already exists", name)
	}
	if err := os.MkdirAll(s.dir(name), 0o755); err != nil {
		return nil, ref(failed("create: %v", err))
	}
	m := &smolvmMachine{slots: make(chan struct{}, guestSlots), rec: rec}
	m.life.Lock()
	s.machines[name] = m
	return m, nil
}

// check validates as smolvm does, in its order as far as it is known.
func (c *createRequest) check(version string) *reply {
	if !machineName.MatchString(c.Name) || strings.Contains(c.Name, "--") || strings.HasSuffix(c.Name, "-") {
		return badRequest("invalid machine name '%s'", c.Name)
	}
	if c.Image == "" && c.From == "" && (len(c.Cmd) > 0 || len(c.Entrypoint) > 0) {
		return badRequest("cmd and entrypoint need an image")
	}
	if c.registryImage() && !c.networked() && !atLeast(version, "1.23.0") {
		return badRequest("image '%s' is pulled inside the machine, which needs network access: set network or allowedHosts", c.Image)
	}
	if valueOr(c.CPUs, 1) < 1 || valueOr(c.MemoryMB, 64) < 64 || valueOr(c.StorageGB, 1) < 1 || valueOr(c.OverlayGB, 1) < 1 {
		return badRequest("cpus, storageGb and overlayGb must be at least 1, memoryMb at least 64")
	}
	for _, e := range c.Env {
		if !envName.MatchString(e.Name) {
			return badRequest("invalid environment variable name")
		}
	}
	for _, cidr := range c.AllowedCIDRs {
		_, err := netip.ParsePrefix(cidr)
		_, err2 := netip.ParseAddr(cidr)
		if err != nil && err2 != nil {
			return badRequest("invalid CIDR '%s'", cidr)
		}
	}
	if re := c.checkPorts(); re != nil {
		return re
	}
	return c.checkMounts()
}

func (c *createRequest) checkPorts() *reply {
	seen := map[uint16]bool{}
	for _, p := range c.Ports {
		if p.Host == 0 || p.Guest == 0 {
			return badRequest("port 0 is not allowed")
		}
		if seen[p.Host] {
			return badRequest("duplicate host port %d", p.Host)
		}
		seen[p.Host] = true
	}
	return nil
}

func (c *createRequest) checkMounts() *reply {
	seen := map[string]bool{}
	for i := range c.Mounts {
		m := &c.Mounts[i]
		m.Tag = fmt.Sprintf("smolvm%d", i)
		fi, err := os.Stat(m.Source)
		switch {
		case !filepath.IsAbs(m.Source) || !strings.HasPrefix(m.Target, "/"):
			return badRequest("mount source and target must be absolute")
		case err != nil || !fi.IsDir():
			return badRequest("mount source '%s' is not a directory", m.Source)
		case seen[m.Target]:
			return badRequest("duplicate mount target '%s'", m.Target)
		case forbiddenMount(m.Source):
			return badRequest("mounting '%s' is not allowed", m.Source)
		}
		seen[m.Target] = true
	}
	return nil
}

func forbiddenMount(source string) bool {
	p := filepath.Clean(source)
	if p == "/" || p == "/var" {
		return true
	}
	for _, d := range strings.Fields("/etc /usr /bin /sbin /lib /boot /proc /sys /dev /run /var/run /var/log") {
		if p == d || strings.HasPrefix(p, d+"/") {
			return true
		}
	}
	return false
}
