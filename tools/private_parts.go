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
	if err := p.may(ctx, "read a file of", name); err != nil {
		return fleet.Part{}, err
	}
	return reader.DownloadPart(ctx, name, path, w, offset, length)
}

// RunJob implements [fleet.JobRunner].
func (p private) RunJob(ctx context.Context, name string, j fleet.Job) (fleet.Result, error) {
	runner, ok := p.Fleet.(fleet.JobRunner)
	if !ok {
		return fleet.Result{}, fleet.Errorf(fleet.CodeUnsupported, "run a command in machine "+name, "the fleet has no jobs")
	}
	if err := p.may(ctx, "run a command in", name); err != nil {
		return fleet.Result{}, err
	}
	return runner.RunJob(ctx, name, j)
}
