package tools

import (
	"context"
	"io"

	"smol-mcp/fleet"
)

// What only some fleets can is for principals too. A fleet that cannot says so.

// DownloadPart implements [fleet.PartReader].
func (p private) DownloadPart(ctx context.Context, name, path string, w io.Writer, offset, length int64) (fleet.Part, error) {
	reader, ok := p.Fleet.(fleet.PartReader)
	if !ok {
		return fleet.Part{}, fleet.Errorf(fleet.CodeUnsupported, "read a part of a file of machine "+name, "the fleet reads no parts of files")
	}
	return of(ctx, p, "read a file of", name, func() (fleet.Part, error) {
		return reader.DownloadPart(ctx, name, path, w, offset, length)
	})
}

// RunJob implements [fleet.JobRunner].
func (p private) RunJob(ctx context.Context, name string, j fleet.Job) (fleet.Result, error) {
	runner, ok := p.Fleet.(fleet.JobRunner)
	if !ok {
		return fleet.Result{}, fleet.Errorf(fleet.CodeUnsupported, "run a command in machine "+name, "the fleet has no jobs")
	}
	return of(ctx, p, "run a command in", name, func() (fleet.Result, error) { return runner.RunJob(ctx, name, j) })
}
