//go:build unix

package engine

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"smol-mcp/fleet/engine/machine"
)

// machineInfo is how the API describes a machine.
type machineInfo struct {
	Name          string         `json:"name"`
	State         string         `json:"state"`
	CPUs          int            `json:"cpus"`
	MemoryMB      int            `json:"memoryMb"`
	Mounts        []struct{}     `json:"mounts"`
	Ports         []machine.Port `json:"ports"`
	Network       bool           `json:"network"`
	AllowedCIDRs  []string       `json:"allowedCidrs,omitzero"`
	AllowedHosts  []string       `json:"allowedHosts,omitzero"`
	GPU           bool           `json:"gpu"`
	CUDA          bool           `json:"cuda"`
	Forkable      bool           `json:"forkable"`
	ForkpointHeld bool           `json:"forkpointHeld"`
	CreatedAt     int64          `json:"createdAt"`
	StorageGB     int            `json:"storageGb"`
	PID           int            `json:"pid,omitempty"`
	Image         string         `json:"image,omitempty"`
	Engine        string         `json:"engine"`
	Accel         string         `json:"accel"`
	Isolation     string         `json:"isolation"`
}

func (s *server) info(r machine.Record) machineInfo {
	accel, _ := s.machines.Accel()
	i := machineInfo{
		Name: r.Name, State: r.State, CPUs: r.CPUs, MemoryMB: r.MemoryMB, Mounts: []struct{}{}, Ports: append([]machine.Port{}, r.Ports...),
		Network: r.Network || len(r.AllowHosts)+len(r.AllowCIDRs) > 0, AllowedCIDRs: r.AllowCIDRs, AllowedHosts: r.AllowHosts,
		CreatedAt: r.CreatedAt.Unix(), StorageGB: max(r.DiskGB, machine.DiskGB), PID: r.PID(), Image: r.Image,
		Engine: "qemu", Accel: accel, Isolation: s.machines.Isolation(),
	}
	if r.State == machine.Starting { // as it was before
		i.State = machine.Created
		if r.Digest != "" {
			i.State = machine.Stopped
		}
	}
	return i
}

func (s *server) health(w http.ResponseWriter, _ *call) error {
	total, running := s.machines.Count()
	accel, why := s.machines.Accel()
	version, release := s.machines.QEMU()
	h := map[string]any{
		"status": "ok", "version": Version, "uptime_seconds": int(time.Since(s.began).Seconds()),
		"machines": map[string]int{"total": total, "running": running},
		"engine":   "qemu", "accel": accel, "isolation": s.machines.Isolation(), "qemu": version, "kernel": release,
	}
	if accel == "tcg" {
		h["accelWhy"] = why
	}
	return answer(w, h)
}

func (s *server) readyz(w http.ResponseWriter, _ *call) error {
	w.WriteHeader(http.StatusOK)
	return nil
}

func (s *server) list(w http.ResponseWriter, r *call) error {
	all := []machineInfo{}
	for _, rec := range s.machines.List(r.Context()) {
		all = append(all, s.info(rec))
	}
	return answer(w, map[string]any{"machines": all})
}

func (s *server) get(w http.ResponseWriter, r *call) error {
	rec, err := s.machines.Get(r.Context(), r.vars["name"])
	if err != nil {
		return err
	}
	return answer(w, s.info(rec))
}

func (s *server) create(w http.ResponseWriter, r *call) error {
	var c createRequest
	if err := decode(r.Request, &c, "CreateMachineRequest"); err != nil {
		return err
	}
	spec, err := c.spec()
	if err != nil {
		return err
	}
	rec, err := s.machines.Create(spec)
	if err != nil {
		return err
	}
	return answer(w, s.info(rec))
}

// noBody accepts a POST without a body, or with an empty object.
func noBody(r *call) error {
	if r.ContentLength == 0 || r.Body == nil {
		return nil
	}
	return decode(r.Request, &struct{}{}, "")
}

func (s *server) start(w http.ResponseWriter, r *call) error {
	if err := noBody(r); err != nil {
		return err
	}
	rec, err := detached(s, r, func(ctx context.Context) (machine.Record, error) {
		return s.machines.Start(ctx, r.vars["name"])
	})
	if err != nil {
		return failed("start", err)
	}
	s.pruneImages()
	return answer(w, s.info(rec))
}

func (s *server) stop(w http.ResponseWriter, r *call) error {
	rec, err := detached(s, r, func(ctx context.Context) (machine.Record, error) {
		return s.machines.Stop(ctx, r.vars["name"])
	})
	if err != nil {
		return failed("stop", err)
	}
	return answer(w, s.info(rec))
}

func (s *server) remove(w http.ResponseWriter, r *call) error {
	for _, name := range []string{"force", "cascade"} { // nothing to force, and no branches
		if text := r.URL.Query().Get(name); text != "" {
			if _, err := strconv.ParseBool(text); err != nil {
				return plain(http.StatusBadRequest, "Failed to deserialize query string: %s: provided string was not `true` or `false`", name)
			}
		}
	}
	name := r.vars["name"]
	_, err := detached(s, r, func(context.Context) (struct{}, error) { return struct{}{}, s.machines.Delete(name) })
	if err != nil {
		return failed("delete", err)
	}
	s.mu.Lock()
	delete(s.slots, name)
	s.mu.Unlock()
	return answer(w, map[string]string{"deleted": name})
}
