package store

import (
	"errors"
	"fmt"
	"time"
)

// Failures of the store as a whole. Their texts say more; test with errors.Is.
var (
	// ErrBusy: another process held the lock of state.db for too long.
	ErrBusy = errors.New("the state file is locked by another process")
	// ErrFull: the wish cannot be written down, so nothing may be created.
	ErrFull = errors.New("no room to record it")
	// ErrCorrupt: state.db is damaged and could not be set aside.
	ErrCorrupt = errors.New("the state file is damaged")
	// ErrPlace: no directory is fit to hold the records.
	ErrPlace = errors.New("no usable directory for state")
	// ErrKept: whose a kept machine is cannot be read, so nobody is shown it.
	ErrKept = errors.New("it is not known whose the machine is")
	// ErrStale: the record has changed hands or phase since it was read.
	ErrStale = errors.New("the record has changed")
	// ErrClosed: the store was closed.
	ErrClosed = errors.New("the store is closed")
)

// ExistsError says that a name has a record already, in whatever phase.
type ExistsError struct{ Record Record }

// Error names the phase, and so what to do.
func (e *ExistsError) Error() string {
	r := e.Record
	switch r.Phase {
	case Deleting:
		return fmt.Sprintf("machine %s is being deleted", r.Name)
	case Gone:
		return fmt.Sprintf("machine %s was deleted; its name is free again in %d s", r.Name, 1+max(0, r.Due-r.now)/int64(time.Second))
	case Creating:
		return fmt.Sprintf("machine %s is being created", r.Name)
	}
	return fmt.Sprintf("machine %s exists", r.Name)
}

// badRow is a stored value that cannot be believed.
type badRow struct{ bucket, key, why string }

func (e *badRow) Error() string {
	return fmt.Sprintf("row %s/%q: %s", e.bucket, e.key, e.why)
}
