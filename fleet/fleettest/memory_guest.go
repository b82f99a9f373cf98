package fleettest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"smol-mcp/fleet"
)

// Guests makes real guests for [MemoryOptions], each for the time of the test.
func Guests(t testing.TB, opts GuestOptions) func(machine string) (Runner, error) {
	dir := t.TempDir()
	if opts.Busybox == "" {
		opts.Busybox = filepath.Join(dir, "busybox")
	}
	count := 0
	return func(machine string) (Runner, error) {
		count++ // Memory makes one guest at a time
		g, err := OpenGuest(filepath.Join(dir, fmt.Sprintf("%s-%d", machine, count)), opts)
		if err != nil {
			return nil, err
		}
		t.Cleanup(func() { _ = g.Close() })
		return g, nil
	}
}

// furnish makes sure that a machine has its runner. m.mu is held.
func (m *Memory) furnish(vm *memoryMachine) (err error) {
	if vm.runner == nil && m.opts.Guest != nil {
		vm.runner, err = m.opts.Guest(vm.Name)
	}
	return err
}

// use starts a machine if need be and returns its runner, as commands, files and
// pulls need it.
func (m *Memory) use(ctx context.Context, method, name string, do func(vm *memoryMachine) error) error {
	return m.useOr(ctx, method, name, true, do)
}

// useOr refuses a machine that does not run, unless start.
func (m *Memory) useOr(ctx context.Context, method, name string, start bool, do func(vm *memoryMachine) error) error {
	var used *memoryMachine
	return m.call(ctx, method, name, func() error {
		err := m.locked(name, method, func(vm *memoryMachine) error {
			if !start && vm.State != fleet.Running {
				return fleet.Errorf(fleet.CodeNotReady, "use machine "+name, "it is %s", vm.State)
			}
			vm.boot()
			used = vm
			return m.furnish(vm)
		})
		if err != nil {
			return err
		}
		return do(used)
	})
}

// Exec runs a command in a machine.
func (m *Memory) Exec(ctx context.Context, name string, cmd fleet.Command) (res fleet.Result, err error) {
	op := "run a command in machine " + name
	if len(cmd.Argv) == 0 || cmd.Timeout <= 0 || len(cmd.Stdin) > fleet.MaxStdin {
		return res, fleet.Errorf(fleet.CodeInvalid, op, "the command is empty, or has no timeout, or too much stdin")
	}
	for key := range cmd.Env {
		if key == "" || strings.ContainsAny(key, "= -.\x00") || key[0] >= '0' && key[0] <= '9' {
			return res, fleet.Errorf(fleet.CodeInvalid, op, "environment variable %q", key)
		}
	}
	if cmd.Sent != nil {
		cmd.Sent()
	}
	err = m.useOr(ctx, "Exec", name, !cmd.NoStart, func(vm *memoryMachine) error {
		switch {
		case m.opts.Exec != nil:
			res, err = m.opts.Exec(ctx, name, cmd)
		case vm.runner != nil:
			res, err = vm.runner.Exec(ctx, cmd)
		default:
			res, err = imitate(ctx, cmd)
		}
		return failure(op, err, true)
	})
	return res, err
}

// failure makes an error of a runner one of the fleet.
func failure(op string, err error, maybe bool) error {
	var own *fleet.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &own):
		return own
	}
	e := fleet.Errorf(fleet.CodeOf(err), op, "%w", err)
	switch {
	case errors.Is(err, fs.ErrNotExist), strings.Contains(err.Error(), "No such file"):
		e.Code = fleet.CodeNotFound
	case errors.Is(err, syscall.EISDIR), strings.Contains(err.Error(), "is a directory"), strings.Contains(err.Error(), "not a regular file"):
		e.Code = fleet.CodeInvalid
	default:
		e.MaybeDone = maybe
	}
	return e
}

// imitate stands in for a guest where a test needs no real one.
func imitate(ctx context.Context, cmd fleet.Command) (fleet.Result, error) {
	res := fleet.Result{Stdout: []byte{}, Stderr: []byte{}}
	args := cmd.Argv[1:]
	switch path.Base(cmd.Argv[0]) {
	case "true":
	case "false":
		res.ExitCode = 1
	case "echo":
		res.Stdout = []byte(strings.Join(args, " ") + "\n")
	case "cat":
		res.Stdout = []byte(cmd.Stdin)
	case "sleep":
		secs, _ := strconv.ParseFloat(strings.Join(args, ""), 64)
		d := time.Duration(secs * float64(time.Second))
		if d > cmd.Timeout {
			d, res.ExitCode = cmd.Timeout, 124
		}
		return res, wait(ctx, d)
	default:
		res.ExitCode = 127
		res.Stderr = []byte(cmd.Argv[0] + ": not found\n")
	}
	return res, nil
}

func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func checkFile(op, name string) error {
	clean := path.Clean("/" + strings.TrimPrefix(name, "/"))
	if !path.IsAbs(name) || strings.ContainsRune(name, 0) || clean != strings.ReplaceAll(name, "//", "/") || clean == "/" {
		return fleet.Errorf(fleet.CodeInvalid, op, "the path is not absolute and plain")
	}
	return nil
}

// Download reads a file of a machine.
func (m *Memory) Download(ctx context.Context, name, file string, w io.Writer, limit int64) (n int64, err error) {
	op := "read " + fleet.Quote(file) + " of machine " + name
	if err := checkFile(op, file); err != nil {
		return 0, err
	}
	err = m.use(ctx, "Download", name, func(vm *memoryMachine) error {
		data, err := m.content(vm, file)
		if err != nil {
			return failure(op, err, false)
		}
		if limit > 0 && int64(len(data)) > limit {
			return fleet.Errorf(fleet.CodeInvalid, op, "too large: more than %d bytes", limit)
		}
		n, err = io.Copy(w, bytes.NewReader(data))
		return failure(op, err, false)
	})
	return n, err
}

func (m *Memory) content(vm *memoryMachine, file string) ([]byte, error) {
	if k, ok := vm.runner.(keeper); ok {
		return k.ReadFile(file)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if data, ok := vm.files[path.Clean(file)]; ok {
		return data, nil
	}
	for have := range vm.files {
		if strings.HasPrefix(have, path.Clean(file)+"/") {
			return nil, fmt.Errorf("%s is a directory", file)
		}
	}
	return nil, fmt.Errorf("%s: %w", file, os.ErrNotExist)
}

// Upload writes a file of a machine.
func (m *Memory) Upload(ctx context.Context, name, file string, r io.Reader, size int64) error {
	op := "write " + fleet.Quote(file) + " of machine " + name
	if err := checkFile(op, file); err != nil {
		return err
	}
	return m.use(ctx, "Upload", name, func(vm *memoryMachine) error {
		data, err := io.ReadAll(io.LimitReader(r, size))
		if err != nil || int64(len(data)) != size {
			return fleet.Errorf(fleet.CodeInternal, op, "%d of %d bytes could be read: %v", len(data), size, err)
		}
		if k, ok := vm.runner.(keeper); ok {
			_, err := k.WriteFile(file, bytes.NewReader(data))
			return failure(op, err, false)
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		vm.files[path.Clean(file)] = data
		return nil
	})
}

// Pull answers with an image of that name.
func (m *Memory) Pull(ctx context.Context, name, image string) (got fleet.Image, err error) {
	err = m.use(ctx, "Pull", name, func(*memoryMachine) error {
		if image == "" || !m.info().Can.Pull {
			return fleet.Errorf(fleet.CodeInvalid, "pull image "+image, "no image, or this fleet cannot")
		}
		got = fleet.Image{Reference: image, Digest: "sha256:" + strings.Repeat("ab", 32), Size: 4096, Architecture: "amd64", OS: "linux", LayerCount: 1}
		return nil
	})
	return got, err
}
