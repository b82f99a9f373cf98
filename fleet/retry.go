package fleet

import (
	"context"
	"io"
	"math/rand/v2"
	"time"
)

// Retry returns f with the calls that are safe to repeat repeated when the
// connection broke or the engine was busy: those that only read, and Delete,
// which does nothing the second time. Nothing else is ever sent twice. A [Cloud]
// repeats by itself, as its service asks for, and is returned as it is.
func Retry(f Fleet) Fleet {
	if c, ok := f.(*Cloud); ok {
		return c
	}
	return retrying{f}
}

// retrying passes on what it does not override.
type retrying struct{ Fleet }

const (
	retryTries = 3
	retryPause = 100 * time.Millisecond // doubled each time, give or take a half
)

// again calls do until it succeeds, fails for a lasting reason, or has been
// tried enough.
func again(ctx context.Context, do func() error) error {
	for try, wait := 1, retryPause; ; try, wait = try+1, wait*2 {
		err := do()
		if CodeOf(err) != CodeUnreachable || try == retryTries {
			return err
		}
		if pause(ctx, wait/2+rand.N(wait)) != nil {
			return err
		}
	}
}

func (r retrying) Info(ctx context.Context) (info Info, err error) {
	err = again(ctx, func() error { info, err = r.Fleet.Info(ctx); return err })
	return info, err
}

func (r retrying) List(ctx context.Context) (list []Machine, err error) {
	err = again(ctx, func() error { list, err = r.Fleet.List(ctx); return err })
	return list, err
}

func (r retrying) Get(ctx context.Context, name string) (m Machine, err error) {
	err = again(ctx, func() error { m, err = r.Fleet.Get(ctx, name); return err })
	return m, err
}

func (r retrying) Logs(ctx context.Context, name string, q LogQuery) (page LogPage, err error) {
	err = again(ctx, func() error { page, err = r.Fleet.Logs(ctx, name, q); return err })
	return page, err
}

// Download is repeated as long as w has got nothing.
func (r retrying) Download(ctx context.Context, name, path string, w io.Writer, limit int64) (n int64, err error) {
	var last error
	err = again(ctx, func() error {
		n, last = r.Fleet.Download(ctx, name, path, w, limit)
		if n > 0 {
			return nil
		}
		return last
	})
	if n > 0 {
		err = last
	}
	return n, err
}

// DownloadPart is repeated as long as w has got nothing.
func (r retrying) DownloadPart(ctx context.Context, name, path string, w io.Writer, offset, length int64) (p Part, err error) {
	reader, ok := r.Fleet.(PartReader)
	if !ok {
		return p, &Error{Code: CodeUnsupported, Op: "read a part of " + Quote(path) + " of machine " + name, Why: "the fleet reads no parts of files"}
	}
	var last error
	err = again(ctx, func() error {
		p, last = reader.DownloadPart(ctx, name, path, w, offset, length)
		if p.Bytes > 0 {
			return nil
		}
		return last
	})
	if p.Bytes > 0 {
		err = last
	}
	return p, err
}

// RunJob is sent once, as Exec.
func (r retrying) RunJob(ctx context.Context, name string, j Job) (Result, error) {
	if runner, ok := r.Fleet.(JobRunner); ok {
		return runner.RunJob(ctx, name, j)
	}
	return Result{}, &Error{Code: CodeUnsupported, Op: "run a command in machine " + name, Why: "the fleet has no jobs"}
}

// Delete finds nothing when a try before it was carried out and only its answer
// lost; that is what was asked for.
func (r retrying) Delete(ctx context.Context, name string) (gone Deletion, err error) {
	maybe := false
	err = again(ctx, func() error {
		gone, err = r.Fleet.Delete(ctx, name)
		if maybe && CodeOf(err) == CodeNotFound {
			return nil
		}
		maybe = maybe || MaybeDone(err)
		return err
	})
	return gone, err
}
