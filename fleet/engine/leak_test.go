//go:build linux

package engine_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"smol-mcp/fleet"
)

// Machines that are made, used and deleted again and again leave nothing: no process,
// no file, no socket, no open file of the engine. SMOL_TEST_ROUNDS sets how often.
func TestNothingLeft(t *testing.T) {
	rounds, width := 2, 5
	if n, err := strconv.Atoi(os.Getenv("SMOL_TEST_ROUNDS")); err == nil {
		rounds, width = n, 10
	}
	p := spawn(t, nil)
	f := p.client(t)
	booted(t, f, fleet.Spec{Name: "first"}) // makes what is kept: template and image
	if _, err := f.Delete(t.Context(), "first"); err != nil {
		t.Fatal(err)
	}
	var before, after []string
	files := len(openFiles(t, p.cmd.Process.Pid))
	before = contents(t, p.opts.Data, p.opts.Cache)
	for round := range rounds {
		var wg sync.WaitGroup
		turn := make(chan struct{}, 3)
		for i := range width {
			wg.Go(func() {
				turn <- struct{}{}
				defer func() { <-turn }()
				p.use(t, f, fmt.Sprintf("vm-%d-%d", round, i))
			})
		}
		wg.Wait()
		if t.Failed() {
			return
		}
	}
	after = contents(t, p.opts.Data, p.opts.Cache)
	if fmt.Sprint(before) != fmt.Sprint(after) {
		t.Errorf("before %v\nafter %v", before, after)
	}
	if n := hypervisors(p.opts.Data, p.opts.Cache); n > 0 {
		t.Errorf("%d processes are left", n)
	}
	eventually(t, "the engine has closed its files", func() bool { return len(openFiles(t, p.cmd.Process.Pid)) <= files+2 }) // connections of our client
}

// use makes a machine, works in it and deletes it, some stopped and some running.
func (p *program) use(t *testing.T, f fleet.Fleet, name string) {
	if _, err := f.Create(t.Context(), fleet.Spec{Name: name, Image: "builtin:busybox", MemoryMB: 512, CPUs: 1}); err != nil {
		t.Error(err)
		return
	}
	res, err := f.Exec(t.Context(), name, fleet.Command{Argv: []string{"/bin/sh", "-c", "echo x >/root/x; cat /root/x"}, Timeout: 60e9})
	if err != nil || string(res.Stdout) != "x\n" {
		t.Errorf("%s: %+v, %v", name, res, err)
	}
	if len(name)%2 == 0 {
		if _, err := f.Stop(t.Context(), name, fleet.StopOptions{}); err != nil {
			t.Error(err)
		}
	}
	if _, err := f.Delete(t.Context(), name); err != nil {
		t.Error(err)
	}
}

func openFiles(t *testing.T, pid int) []string {
	t.Helper()
	all, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// contents lists what is in directories, with sizes.
func contents(t *testing.T, dirs ...string) []string {
	t.Helper()
	var out []string
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			fi, err := d.Info()
			if err != nil {
				return err
			}
			size := fi.Size()
			if d.IsDir() {
				size = 0
			}
			out = append(out, fmt.Sprintf("%s %d", path, size))
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return out
}
