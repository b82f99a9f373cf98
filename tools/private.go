package tools

import (
	"context"
	"io"
	"slices"
	"strings"

	"smol-mcp/fleet"
	"smol-mcp/store"
)

// share gives a session of a principal its view of the fleets, and its lease.
func (s *Session) share() {
	if lease := s.opts.Lease; lease != nil {
		s.records.ShareWith(func(make bool) *store.Session {
			if l := lease(make); l != nil {
				return l.records
			}
			return nil
		})
	}
	if s.opts.Principal == "" {
		return
	}
	s.opts.Fleets = slices.Clone(s.opts.Fleets)
	for i, f := range s.opts.Fleets {
		s.opts.Fleets[i] = private{f, s}
	}
}

// private is a fleet as a principal sees it: machines of another one are not there,
// be they on record or kept. Those that nobody here has made for a principal, as the user
// of this computer and other programs do, are everybody's.
type private struct {
	fleet.Fleet
	s *Session
}

// whole is a fleet with the machines of all principals, to count them.
func whole(f fleet.Fleet) fleet.Fleet {
	if p, ok := f.(private); ok {
		return p.Fleet
	}
	return f
}

// hides reports whether a machine is recorded for another principal, which this one
// must not see.
func (s *Session) hides(rec store.Record) bool {
	return s.opts.Principal != "" && rec.Phase != store.Gone && rec.Principal() != s.opts.Principal
}

// notThere is what a principal hears of another one's machine, and of a name that does not
// exist: one is not to be told from the other.
func notThere(op, name string) error {
	return fleet.Errorf(fleet.CodeNotFound, op+" "+name, "there is no machine of that name")
}

// conceals reports whether a machine is another principal's, which this one must not
// see. rec is its record, if it was found. The record speaks as long as there is one. It is read
// first: where it is gone, whose the machine is was written down before.
func (s *Session) conceals(key store.Key, rec store.Record, found bool) (bool, error) {
	switch {
	case s.opts.Principal == "":
		return false, nil
	case found && rec.Phase != store.Gone:
		return s.hides(rec), nil
	}
	kept, found, err := s.opts.Store.KeptBy(key)
	return found && kept.Principal != s.opts.Principal, err
}

// may refuses the name of another principal's machine. What cannot be told is
// refused too.
func (p private) may(ctx context.Context, op, name string) error {
	key, err := p.key(ctx, name)
	if err != nil {
		return err
	}
	rec, found, err := p.s.records.Use(ctx, key)
	if err != nil {
		return err
	}
	hidden, err := p.s.conceals(key, rec, found)
	if err == nil && !hidden && p.Target() != localTarget && (!found || strings.HasPrefix(name, idPrefix)) {
		hidden, err = p.hidesID(ctx, key)
	}
	if err == nil && hidden {
		err = notThere(op, name)
	}
	return err
}

// idPrefix begins the ids of the cloud. Whoever names a machine so may mean another by it.
const idPrefix = "mach-"

// hidesID reports whether a name is the id of a machine that is hidden: elsewhere ids work in
// place of names. What is kept under the name is a machine of that name.
func (p private) hidesID(ctx context.Context, key store.Key) (bool, error) {
	if _, kept, err := p.s.opts.Store.KeptBy(key); err != nil || kept && !strings.HasPrefix(key.Name, idPrefix) {
		return false, err
	}
	m, err := p.Fleet.Get(ctx, key.Name)
	switch {
	case fleet.CodeOf(err) == fleet.CodeNotFound, err == nil && m.Name == key.Name:
		return false, nil
	case err != nil:
		return false, err
	}
	key.Name = m.Name
	rec, found, err := p.s.records.Use(ctx, key)
	if err != nil {
		return false, err
	}
	return p.s.conceals(key, rec, found)
}

// plain is an error of the fleet about a machine, in the words of notThere where there is
// none. What is not found may also be a file of it, and some refusals come before the machine is looked for.
func (p private) plain(ctx context.Context, op, name string, err error) error {
	switch fleet.CodeOf(err) {
	case fleet.CodeNotFound, fleet.CodeConflict, fleet.CodeInvalid, fleet.CodeUnsupported:
	default:
		return err
	}
	if fleet.MaybeDone(err) {
		return err
	}
	if _, look := p.Fleet.Get(ctx, name); fleet.CodeOf(look) != fleet.CodeNotFound {
		return err
	}
	return notThere(op, name)
}

// of carries out what a principal wants of a machine, unless it must not see it.
func of[T any](ctx context.Context, p private, op, name string, do func() (T, error)) (T, error) {
	if err := p.may(ctx, op, name); err != nil {
		return *new(T), err
	}
	done, err := do()
	return done, p.plain(ctx, op, name, err)
}

func (p private) key(ctx context.Context, name string) (store.Key, error) {
	return p.s.keyOf(ctx, &site{fleet: p.Fleet}, name)
}

// List implements [fleet.Fleet].
func (p private) List(ctx context.Context) ([]fleet.Machine, error) {
	all, err := p.Fleet.List(ctx)
	if err != nil {
		return nil, err
	}
	owners, gone, err := p.owners(ctx, all)
	if err != nil {
		return nil, err
	}
	p.forgetKept(ctx, gone)
	return slices.DeleteFunc(slices.Clone(all), func(m fleet.Machine) bool {
		principal, known := owners[m.Name]
		return known && principal != p.s.opts.Principal
	}), nil
}

// Get implements [fleet.Fleet].
func (p private) Get(ctx context.Context, name string) (fleet.Machine, error) {
	return of(ctx, p, "get machine", name, func() (fleet.Machine, error) { return p.Fleet.Get(ctx, name) })
}

// Start implements [fleet.Fleet].
func (p private) Start(ctx context.Context, name string, opts fleet.StartOptions) (fleet.Machine, error) {
	return of(ctx, p, "start machine", name, func() (fleet.Machine, error) { return p.Fleet.Start(ctx, name, opts) })
}

// Stop implements [fleet.Fleet].
func (p private) Stop(ctx context.Context, name string, opts fleet.StopOptions) (fleet.Machine, error) {
	return of(ctx, p, "stop machine", name, func() (fleet.Machine, error) { return p.Fleet.Stop(ctx, name, opts) })
}

// Delete implements [fleet.Fleet].
func (p private) Delete(ctx context.Context, name string) (fleet.Deletion, error) {
	return of(ctx, p, "delete machine", name, func() (fleet.Deletion, error) { return p.Fleet.Delete(ctx, name) })
}

// Branch implements [fleet.Fleet].
func (p private) Branch(ctx context.Context, source string, spec fleet.BranchSpec) (fleet.Machine, error) {
	return of(ctx, p, "branch machine", source, func() (fleet.Machine, error) { return p.Fleet.Branch(ctx, source, spec) })
}

// Exec implements [fleet.Fleet].
func (p private) Exec(ctx context.Context, name string, cmd fleet.Command) (fleet.Result, error) {
	return of(ctx, p, "run a command in", name, func() (fleet.Result, error) { return p.Fleet.Exec(ctx, name, cmd) })
}

// Download implements [fleet.Fleet].
func (p private) Download(ctx context.Context, name, path string, w io.Writer, limit int64) (int64, error) {
	return of(ctx, p, "read a file of", name, func() (int64, error) { return p.Fleet.Download(ctx, name, path, w, limit) })
}

// Upload implements [fleet.Fleet].
func (p private) Upload(ctx context.Context, name, path string, r io.Reader, size int64) error {
	_, err := of(ctx, p, "write a file of", name, func() (struct{}, error) {
		return struct{}{}, p.Fleet.Upload(ctx, name, path, r, size)
	})
	return err
}

// Logs implements [fleet.Fleet].
func (p private) Logs(ctx context.Context, name string, q fleet.LogQuery) (fleet.LogPage, error) {
	return of(ctx, p, "read the console of", name, func() (fleet.LogPage, error) { return p.Fleet.Logs(ctx, name, q) })
}

// Pull implements [fleet.Fleet].
func (p private) Pull(ctx context.Context, name, image string) (fleet.Image, error) {
	return of(ctx, p, "pull an image into", name, func() (fleet.Image, error) { return p.Fleet.Pull(ctx, name, image) })
}
