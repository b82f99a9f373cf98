//go:build !linux

package fleettest

import (
	"errors"
	"io"
	"io/fs"

	"smol-mcp/fleet"
)

// Guest is a scratch machine; it exists on Linux only.
type Guest struct{}

var errNoGuest = errors.New("guest: scratch guests need Linux")

// OpenGuest fails here.
func OpenGuest(dir string, opts GuestOptions) (*Guest, error) { return nil, errNoGuest }

func (*Guest) Dir() string                                { return "" }
func (*Guest) Run(fleet.Command) (fleet.Result, error)    { return fleet.Result{}, errNoGuest }
func (*Guest) Spawn(fleet.Command) (int, error)           { return 0, errNoGuest }
func (*Guest) ReadFile(string) ([]byte, error)            { return nil, errNoGuest }
func (*Guest) WriteFile(string, io.Reader) (int64, error) { return 0, errNoGuest }
func (*Guest) Stat(string) (fs.FileInfo, error)           { return nil, errNoGuest }
func (*Guest) List(string) ([]fs.DirEntry, error)         { return nil, errNoGuest }
func (*Guest) Kill() error                                { return errNoGuest }
func (*Guest) Stop() error                                { return errNoGuest }
func (*Guest) Suspend() error                             { return errNoGuest }
func (*Guest) Resume() error                              { return errNoGuest }
func (*Guest) Close() error                               { return errNoGuest }
