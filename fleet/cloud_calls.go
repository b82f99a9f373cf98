package fleet

import (
	"context"
	"io"
)

// Info tells which service answers.
func (c *Cloud) Info(context.Context) (Info, error) {
	return Info{}, c.unbuilt("ask the cloud what it can do")
}

// List returns the tenant's machines.
func (c *Cloud) List(context.Context) ([]Machine, error) { return nil, c.unbuilt("list machines") }

// Get returns one machine.
func (c *Cloud) Get(_ context.Context, name string) (Machine, error) {
	return Machine{}, c.unbuilt("get machine " + name)
}

// Create makes a machine.
func (c *Cloud) Create(_ context.Context, spec Spec) (Machine, error) {
	return Machine{}, c.unbuilt("create machine " + spec.Name)
}

// Start boots or resumes a machine.
func (c *Cloud) Start(_ context.Context, name string, _ StartOptions) (Machine, error) {
	return Machine{}, c.unbuilt("start machine " + name)
}

// Stop stops or suspends a machine.
func (c *Cloud) Stop(_ context.Context, name string, _ StopOptions) (Machine, error) {
	return Machine{}, c.unbuilt("stop machine " + name)
}

// Delete removes a machine.
func (c *Cloud) Delete(_ context.Context, name string) (Deletion, error) {
	return Deletion{}, c.unbuilt("delete machine " + name)
}

// Branch copies a machine.
func (c *Cloud) Branch(_ context.Context, source string, _ BranchSpec) (Machine, error) {
	return Machine{}, c.unbuilt("branch machine " + source)
}

// Exec runs a command.
func (c *Cloud) Exec(_ context.Context, name string, _ Command) (Result, error) {
	return Result{}, c.unbuilt("run a command in machine " + name)
}

// Download reads a file.
func (c *Cloud) Download(_ context.Context, name, _ string, _ io.Writer, _ int64) (int64, error) {
	return 0, c.unbuilt("read a file of machine " + name)
}

// Upload writes a file.
func (c *Cloud) Upload(_ context.Context, name, _ string, _ io.Reader, _ int64) error {
	return c.unbuilt("write a file of machine " + name)
}

// Logs returns the service's events about a machine.
func (c *Cloud) Logs(_ context.Context, name string, _ LogQuery) (LogPage, error) {
	return LogPage{}, c.unbuilt("read the events of machine " + name)
}

// Pull is not offered.
func (c *Cloud) Pull(_ context.Context, name, _ string) (Image, error) {
	return Image{}, c.unbuilt("pull an image into machine " + name)
}

// Close drops idle connections.
func (c *Cloud) Close() error { return nil }

var _ Fleet = (*Cloud)(nil)
