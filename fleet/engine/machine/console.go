//go:build unix

package machine

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// ConsoleMax bounds each of a machine's two console files in bytes.
const ConsoleMax = 4 << 20

// consoleLog is what a machine's console has printed, with lines of the engine's own:
// console.log, and console.log.1 with what came before it. QEMU gives its output to
// whoever is connected (see hold.go), so nothing grows that nobody bounds.
type consoleLog struct {
	dir string

	mu   sync.Mutex
	gone int64 // bytes that have left console.log since this process began
	open bool  // the last line has no end yet
}

func (c *consoleLog) path() string { return filepath.Join(c.dir, "console.log") }

// append writes at the end. A file that would get too long is put aside first.
func (c *consoleLog) append(p []byte) error {
	if len(p) == 0 {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	size := c.size(c.path())
	if size > 0 && size+int64(len(p)) > ConsoleMax {
		if err := os.Rename(c.path(), c.path()+".1"); err != nil {
			return err
		}
		c.gone += size
	}
	f, err := os.OpenFile(c.path(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(p)
	c.open = p[len(p)-1] != '\n'
	return errors.Join(err, f.Close())
}

// note writes a line of the engine's own.
func (c *consoleLog) note(line string) error {
	c.mu.Lock()
	text := "smol-engine: " + line + "\n"
	if c.open {
		text = "\n" + text
	}
	c.mu.Unlock()
	return c.append([]byte(text))
}

// size is that of a file, 0 when there is none.
func (c *consoleLog) size(path string) int64 {
	fi, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return fi.Size()
}

// after returns what was printed after a position, at most ConsoleMax bytes of it, the
// newest; and where it ends. Positions count from when this process began to look,
// and what is older lies before 0.
func (c *consoleLog) after(position int64) (data []byte, end int64, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	size := c.size(c.path())
	end = c.gone + size
	want := min(end-position, ConsoleMax)
	if want <= 0 {
		return []byte{}, end, nil
	}
	if want > size {
		if data, err = lastOf(c.path()+".1", want-size); err != nil {
			return nil, end, err
		}
		want = size
	}
	rest, err := lastOf(c.path(), want)
	return append(data, rest...), end, err
}

// lastOf reads the last n bytes of a file, or all of a shorter one.
func lastOf(path string, n int64) ([]byte, error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return []byte{}, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return nil, err
	}
	return io.ReadAll(io.NewSectionReader(f, max(fi.Size()-n, 0), n))
}

// Oldest is the position of the oldest byte that is kept of a console.
const Oldest = -1 << 62

// Console returns what a machine's console printed after a position that an earlier
// call gave, or after Oldest, and the position of its end: at most ConsoleMax bytes,
// the newest. It is nil for a machine that was never started.
func (m *Manager) Console(name string, position int64) (data []byte, end int64, err error) {
	vm, err := m.find(name)
	if err != nil {
		return nil, 0, err
	}
	if m.seen(vm).State == Created && !isFile(vm.console.path()) {
		return nil, 0, nil
	}
	return vm.console.after(position)
}

// settle waits until all that a QEMU that has ended printed is in the log of the
// machine in dir.
func (m *Manager) settle(dir string) {
	m.mu.Lock()
	vm := m.machines[filepath.Base(dir)]
	m.mu.Unlock()
	if vm == nil || vm.dir != dir {
		return // a template's QEMU writes its file itself
	}
	vm.mu.Lock()
	h := vm.held
	vm.mu.Unlock()
	if h == nil {
		return
	}
	timer := time.NewTimer(time.Second)
	defer timer.Stop()
	select {
	case <-h.drained:
	case <-timer.C:
	}
}
