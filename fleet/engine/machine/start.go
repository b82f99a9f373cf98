//go:build unix

package machine

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"smol-mcp/fleet/engine/agent"
	"smol-mcp/fleet/engine/image"
	"smol-mcp/fleet/engine/netfilter"
)

// startWait bounds a start after its image is there.
const startWait = 2 * time.Minute

// Start brings a machine to running and returns when its guest has answered. It
// does nothing for one that runs, unless its guest is silent: then it ends that and
// boots anew. A start that fails leaves the machine as it was.
func (m *Manager) Start(ctx context.Context, name string) (Record, error) {
	vm, release, err := m.claim(name)
	if err != nil {
		return Record{}, err
	}
	defer release()
	ctx, cancel := vm.abortable(ctx)
	defer cancel(nil)
	r := m.seen(vm)
	if r.State == Running {
		if m.answers(ctx, vm) {
			return r, nil
		}
		if ctx.Err() != nil { // which says nothing of the guest
			return r, context.Cause(ctx)
		}
		m.opts.Log.Warn("machine runs, and its guest is silent; it is started anew", "machine", name)
		if err := m.undo(vm, Stopped); err != nil {
			return r, err
		}
		r = m.seen(vm)
	}
	if err := m.supports(r.Spec); err != nil { // QEMU may be another than at the create
		return r, err
	}
	img, err := m.image(ctx, r)
	if err != nil {
		return r, fmt.Errorf("pull image: failed to pull %s: %w", r.Image, err)
	}
	vm.wants(img.Digest)
	defer vm.wants("")
	ports, err := m.publish(vm, r.Ports)
	if err != nil {
		return r, err
	}
	begun := time.Now()
	if err := m.boot(ctx, vm, img); err != nil {
		ports.close()
		return r, errors.Join(fmt.Errorf("boot: %w", err), m.undo(vm, r.State))
	}
	vm.mu.Lock()
	if vm.record.State == Running {
		vm.ports = ports
	} else { // it has ended since, and was seen to
		ports.close()
	}
	vm.mu.Unlock()
	m.opts.Log.Info("machine started", "machine", name, "took", time.Since(begun).Round(time.Millisecond))
	return m.seen(vm), nil
}

// wants keeps an image from being pruned that no record names yet.
func (vm *machine) wants(digest string) {
	vm.mu.Lock()
	vm.wanted = digest
	vm.mu.Unlock()
}

// abortable returns a context that ends when the machine is deleted.
func (vm *machine) abortable(ctx context.Context) (context.Context, context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	vm.mu.Lock()
	defer vm.mu.Unlock()
	if vm.going > 0 {
		cancel(errDeleting)
	}
	vm.abort = cancel // of an earlier start it is spent
	return ctx, cancel
}

// image returns what is under the machine's disk. After the first start that is
// the same content for ever: what the machine has written lies over it.
func (m *Manager) image(ctx context.Context, r Record) (image.Image, error) {
	ref := r.Image
	if ref == "" {
		ref = image.Builtin
	}
	if r.Digest == "" {
		return m.opts.Images.Ensure(ctx, ref)
	}
	if img, err := m.opts.Images.Get(r.Digest); err == nil {
		return img, nil
	}
	img, err := m.opts.Images.Ensure(ctx, pinned(ref, r.Manifest))
	if err == nil && img.Digest != r.Digest {
		err = fmt.Errorf("it is %s now, and the machine was made from %s, which is no longer there", img.Digest, r.Digest)
	}
	return img, err
}

// pinned names the very image that a reference meant.
func pinned(ref, manifest string) string {
	if manifest == "" || image.IsPath(ref) || strings.Contains(ref, "@") {
		return ref
	}
	if slash, colon := strings.LastIndexByte(ref, '/'), strings.LastIndexByte(ref, ':'); colon > slash {
		ref = ref[:colon]
	}
	return ref + "@" + manifest
}

// undo ends what a failed start left.
func (m *Manager) undo(vm *machine, state string) error {
	vm.mu.Lock()
	vm.letGo()
	r := vm.record
	vm.mu.Unlock()
	if err := r.Process.kill(m.host.bootID, r.UUID); err != nil {
		return err
	}
	return vm.change(func(r *Record) { r.State, r.Process = state, nil })
}

// boot starts QEMU and makes its guest the machine.
func (m *Manager) boot(ctx context.Context, mach *machine, img image.Image) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startWait, fmt.Errorf("the guest did not answer within %v", startWait))
	defer cancel()
	r := m.seen(mach)
	v := vm{dir: mach.dir, uuid: newUUID(), memoryMB: r.MemoryMB, cpus: r.CPUs, image: img.Disk, disk: filepath.Join(mach.dir, "disk.raw"), card: r.Networked(), plugged: true}
	template := ""
	if !m.opts.Cold {
		var err error
		if template, err = m.template(ctx, r.MemoryMB, r.CPUs, v.card); err == nil {
			v.ram, v.incoming = filepath.Join(template, "ram"), true
		} else if ctx.Err() != nil {
			return err
		} else {
			m.opts.Log.Warn("no template, so the machine boots by itself", "machine", r.Name, "err", err)
		}
	}
	err := mach.change(func(r *Record) {
		r.State, r.UUID, r.Process, r.Digest, r.Manifest = Starting, v.uuid, nil, img.Digest, img.Manifest
	})
	if err != nil {
		return err
	}
	if !isFile(v.disk) {
		if err := makeDisk(v.disk, r.DiskGB); err != nil {
			return err
		}
	}
	p, err := m.begin(ctx, mach, v, template)
	if err != nil {
		return err
	}
	ctx, stop := m.whileRuns(ctx, mach, p)
	defer stop()
	if err := m.introduce(ctx, mach, img); err != nil {
		if !p.alive(m.host.bootID) {
			return m.ended(v.dir)
		}
		return err
	}
	return mach.change(func(r *Record) { r.State = Running })
}

// begin starts a machine's QEMU, from a template where there is one. A template that
// does not load is dropped, and the machine boots by itself.
func (m *Manager) begin(ctx context.Context, mach *machine, v vm, template string) (*process, error) {
	for {
		p, err := m.spawn(v)
		if err != nil {
			return nil, err
		}
		if err := mach.change(func(r *Record) { r.Process = p }); err != nil {
			return nil, err
		}
		m.take(mach, p, false)
		if !v.incoming {
			return p, nil
		}
		err = m.resume(ctx, v, template, p)
		if err == nil || ctx.Err() != nil {
			return p, err
		}
		m.opts.Log.Warn("template does not load; it is dropped, and the machine boots by itself", "machine", mach.name(), "err", err)
		if err := errors.Join(p.kill(m.host.bootID, v.uuid), os.RemoveAll(template)); err != nil {
			return nil, err
		}
		v.ram, v.incoming = "", false
	}
}

// resume continues a template.
func (m *Manager) resume(ctx context.Context, v vm, template string, p *process) error {
	q, err := m.monitor(ctx, v.dir, p)
	if err != nil {
		return err
	}
	defer q.Close()
	f, err := os.Open(filepath.Join(template, "state"))
	if err != nil {
		return err
	}
	defer f.Close()
	err = q.Load(ctx, f)
	if err == nil && v.card { // the saved card has no peer, which is as a cable pulled out
		err = q.Do(ctx, "set_link", map[string]any{"name": "card", "up": true}, nil)
	}
	if err != nil && awaitEnd(ctx, p.PID, p.Begun, 100*time.Millisecond) {
		return m.ended(v.dir)
	}
	return err
}

// introduce tells a guest which machine it is.
func (m *Manager) introduce(ctx context.Context, vm *machine, img image.Image) error {
	c, err := vm.theLink().get(ctx)
	if err != nil {
		return err
	}
	r := m.seen(vm)
	entropy := make([]byte, 64)
	rand.Read(entropy)
	b := agent.Boot{Entropy: entropy, UnixNano: time.Now().UnixNano(), Hostname: hostname(r.Name), Grow: r.DiskGB > DiskGB}
	if r.Networked() {
		b.Net = &agent.Net{Address: netfilter.Guest, Prefix: netfilter.Prefix, Gateway: netfilter.Gateway, DNS: netfilter.DNS}
	}
	if argv := workload(r.Spec, img); len(argv) > 0 {
		e := Process(r, img, agent.Exec{Argv: argv})
		b.Workload = &e
	}
	_, err = c.Call(ctx, agent.Request{Op: "boot", Boot: &b})
	return err
}

// hostname is a machine's name as hosts may be called: letters, digits and '-', at most 63.
func hostname(name string) string {
	name = strings.ReplaceAll(name, "_", "-")
	return strings.TrimRight(name[:min(len(name), 63)], "-")
}

// workload is the program that the machine is for: of the wish, else of the image.
func workload(spec Spec, img image.Image) []string {
	if len(spec.Entrypoint)+len(spec.Cmd) > 0 {
		return append(append([]string{}, spec.Entrypoint...), spec.Cmd...)
	}
	return append(append([]string{}, img.Entrypoint...), img.Cmd...)
}

// defaultPath is for images that set none.
const defaultPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Process adds to a program what the image and the machine say for all of theirs:
// environment, user and working directory.
func Process(r Record, img image.Image, e agent.Exec) agent.Exec {
	env := append([]string{defaultPath}, img.Env...)
	e.Env = append(append(env, r.Env...), e.Env...)
	for _, dir := range []string{r.Dir, img.Dir} {
		if e.Dir == "" {
			e.Dir = dir
		}
	}
	if e.User == "" {
		e.User = img.User
	}
	return e
}

// Image returns the prepared image of a machine that has been started.
func (m *Manager) Image(r Record) (image.Image, error) { return m.opts.Images.Get(r.Digest) }
