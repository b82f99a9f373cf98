package tools

import (
	"context"
	"io"
	"slices"

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

// notThere is what a principal hears of another one's machine: the words for a name
// that does not exist.
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
	if err == nil && hidden {
		err = notThere(op, name)
	}
	return err
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
	if err := p.may(ctx, "get machine", name); err != nil {
		return fleet.Machine{}, err
	}
	return p.Fleet.Get(ctx, name)
}

// Start implements [fleet.Fleet].
func (p private) Start(ctx context.Context, name string, opts fleet.StartOptions) (fleet.Machine, error) {
	if err := p.may(ctx, "start machine", name); err != nil {
		return fleet.Machine{}, err
	}
	return p.Fleet.Start(ctx, name, opts)
}

// Stop implements [fleet.Fleet].
func (p private) Stop(ctx context.Context, name string, opts fleet.StopOptions) (fleet.Machine, error) {
	if err := p.may(ctx, "stop machine", name); err != nil {
		return fleet.Machine{}, err
	}
	return p.Fleet.Stop(ctx, name, opts)
}

// Delete implements [fleet.Fleet].
func (p private) Delete(ctx context.Context, name string) (fleet.Deletion, error) {
	if err := p.may(ctx, "delete machine", name); err != nil {
		return fleet.Deletion{}, err
	}
	return p.Fleet.Delete(ctx, name)
}

// Branch implements [fleet.Fleet].
func (p private) Branch(ctx context.Context, source string, spec fleet.BranchSpec) (fleet.Machine, error) {
	if err := p.may(ctx, "branch machine", source); err != nil {
		return fleet.Machine{}, err
	}
	return p.Fleet.Branch(ctx, source, spec)
}

// Exec implements [fleet.Fleet].
func (p private) Exec(ctx context.Context, name string, cmd fleet.Command) (fleet.Result, error) {
	if err := p.may(ctx, "run a command in", name); err != nil {
		return fleet.Result{}, err
	}
	return p.Fleet.Exec(ctx, name, cmd)
}

// Download implements [fleet.Fleet].
func (p private) Download(ctx context.Context, name, path string, w io.Writer, limit int64) (int64, error) {
	if err := p.may(ctx, "read a file of", name); err != nil {
		return 0, err
	}
	return p.Fleet.Download(ctx, name, path, w, limit)
}

// Upload implements [fleet.Fleet].
func (p private) Upload(ctx context.Context, name, path string, r io.Reader, size int64) error {
	if err := p.may(ctx, "write a file of", name); err != nil {
		return err
	}
	return p.Fleet.Upload(ctx, name, path, r, size)
}

// Logs implements [fleet.Fleet].
func (p private) Logs(ctx context.Context, name string, q fleet.LogQuery) (fleet.LogPage, error) {
	if err := p.may(ctx, "read the console of", name); err != nil {
		return fleet.LogPage{}, err
	}
	return p.Fleet.Logs(ctx, name, q)
}

// Pull implements [fleet.Fleet].
func (p private) Pull(ctx context.Context, name, image string) (fleet.Image, error) {
	if err := p.may(ctx, "pull an image into", name); err != nil {
		return fleet.Image{}, err
	}
	return p.Fleet.Pull(ctx, name, image)
}
