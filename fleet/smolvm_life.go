package fleet

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// List returns all machines that the engine knows.
func (s *Smolvm) List(ctx context.Context) ([]Machine, error) {
	var out struct {
		Machines []machineInfo `json:"machines"`
	}
	err := s.wire.do(ctx, request{op: "list machines", method: http.MethodGet, path: machinesPath, wait: readWait}, &out)
	if err != nil {
		return nil, err
	}
	return machines(out.Machines), nil
}

// Get returns one machine. One that is unreachable is looked at once more, since
// a machine whose guest connections are all busy looks the same.
func (s *Smolvm) Get(ctx context.Context, name string) (Machine, error) {
	m, err := s.look(ctx, name)
	if err != nil || m.State != Unreachable {
		return m, err
	}
	if err := pause(ctx, 300*time.Millisecond); err != nil {
		return m, nil // what was seen is an answer too
	}
	return s.look(ctx, name)
}

func (s *Smolvm) look(ctx context.Context, name string) (Machine, error) {
	return s.machine(ctx, request{op: "get machine " + name, method: http.MethodGet, wait: readWait}, name, "")
}

// machine sends r about a machine and renders the machine that answers it.
func (s *Smolvm) machine(ctx context.Context, r request, name, below string) (Machine, error) {
	info, err := s.info(ctx, r, name, below)
	return info.machine(), err
}

func (s *Smolvm) info(ctx context.Context, r request, name, below string) (machineInfo, error) {
	if err := CheckAnyName(name); err != nil {
		return machineInfo{}, err
	}
	r.path = machinePath(name, below)
	var info machineInfo
	if err := s.wire.do(ctx, r, &info); err != nil {
		return machineInfo{}, err
	}
	if info.Name != name {
		return machineInfo{}, r.fail(CodeInternal, r.effect, fmt.Errorf("the answer is about machine %s", Quote(info.Name)))
	}
	return info, nil
}

// Start boots a machine, or resumes it when the engine refuses to boot it
// because its memory is kept.
func (s *Smolvm) Start(ctx context.Context, name string, opts StartOptions) (Machine, error) {
	r := request{op: "start machine " + name, method: http.MethodPost, wait: startWait, effect: true}
	query := ""
	if opts.Branchable {
		can, err := s.features(ctx)
		if err != nil {
			return Machine{}, err
		}
		query = "?" + can.branchableQuery + "=true"
	}
	info, err := s.info(ctx, r, name, "/start"+query)
	if err != nil {
		return s.resumeRefused(ctx, name, err)
	}
	if opts.Branchable && info.notBranchable() {
		e := r.fail(CodeConflict, false, errors.New("it runs, but was started without the means to branch it"))
		e.Next = "stop it, then start it branchable"
		return info.machine(), e
	}
	return info.machine(), nil
}

// resumeRefused resumes a machine whose start was refused with err because it
// is paused. Anything else leaves err as it is.
func (s *Smolvm) resumeRefused(ctx context.Context, name string, err error) (Machine, error) {
	switch CodeOf(err) {
	case CodeConflict, CodeInvalid, CodeInternal:
	default:
		return Machine{}, err
	}
	if m, lookErr := s.look(ctx, name); lookErr != nil || m.Word != "paused" {
		return Machine{}, err
	}
	r := request{op: "resume machine " + name, method: http.MethodPost, wait: startWait, effect: true}
	return s.machine(ctx, r, name, "/resume")
}

// Stop shuts a machine down, or suspends it.
func (s *Smolvm) Stop(ctx context.Context, name string, opts StopOptions) (Machine, error) {
	if opts.KeepMemory {
		return s.suspend(ctx, name)
	}
	r := request{op: "stop machine " + name, method: http.MethodPost, wait: stopWait, effect: true}
	return s.machine(ctx, r, name, "/stop")
}

func (s *Smolvm) suspend(ctx context.Context, name string) (Machine, error) {
	r := request{op: "suspend machine " + name, method: http.MethodPost, wait: stopWait, effect: true}
	if err := CheckAnyName(name); err != nil {
		return Machine{}, err
	}
	can, err := s.features(ctx)
	if err != nil {
		return Machine{}, err
	}
	if !can.Suspend {
		return Machine{}, r.fail(CodeUnsupported, false, fmt.Errorf("%s %s cannot keep the memory of a stopped machine", can.engine, can.version))
	}
	m, err := s.machine(ctx, r, name, "/pause")
	if code := CodeOf(err); code == CodeConflict || code == CodeInvalid {
		if now, lookErr := s.look(ctx, name); lookErr == nil && now.Word == "paused" {
			return now, nil
		}
	}
	return m, err
}

// Delete removes a machine and looks whether it is gone.
func (s *Smolvm) Delete(ctx context.Context, name string) (Deletion, error) {
	r := request{op: "delete machine " + name, method: http.MethodDelete, wait: stopWait, effect: true, path: machinePath(name, "")}
	if err := CheckAnyName(name); err != nil {
		return Deletion{}, err
	}
	if err := s.remove(ctx, r); err != nil {
		return Deletion{}, err
	}
	for wait := 100 * time.Millisecond; ; wait *= 2 {
		m, err := s.look(ctx, name)
		if CodeOf(err) == CodeNotFound {
			return Deletion{}, nil
		}
		if err != nil {
			return Deletion{}, r.fail(CodeOf(err), true, fmt.Errorf("it was accepted, but whether the machine is gone was not seen: %w", err))
		}
		if wait > 3*time.Second || pause(ctx, wait) != nil {
			return Deletion{}, r.fail(CodeInternal, true, fmt.Errorf("it was accepted, but the machine is still there (%s, pid %d)", m.Word, m.PID))
		}
	}
}

// remove sends the delete, again while the engine says that the hypervisor has
// not ended yet. A machine that is missing at a later try was removed by an
// earlier one.
func (s *Smolvm) remove(ctx context.Context, r request) error {
	for try, wait := 1, 250*time.Millisecond; ; try, wait = try+1, wait*2 {
		var out struct{}
		err := s.wire.do(ctx, r, &out)
		switch {
		case err == nil, try > 1 && CodeOf(err) == CodeNotFound:
			return nil
		case CodeOf(err) != CodeInternal || !strings.Contains(err.Error(), "still alive") || try == 6:
			return err
		}
		if pause(ctx, wait) != nil {
			return err
		}
	}
}

// pause waits, or returns why it stopped waiting.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
