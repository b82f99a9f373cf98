//go:build linux

package job

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// files are those of one job, in the directory for files of ours.
type files struct {
	dir, boot      string
	up             int // 1: a script or a job of ours has been there since the guest booted
	record         *os.File
	stdout, stderr *os.File
}

// path returns the path of one of the files.
func (r *run) path(kind string) string { return r.dir + "/" + r.job.ID + "." + kind }

// place finds the directory, and marks the boot in it. See guest/prologue.sh.
func (f *files) place(bootID string, env []string) {
	home, tmp := "", "/tmp"
	for _, kv := range env {
		name, value, _ := strings.Cut(kv, "=")
		switch {
		case name == "HOME":
			home = value
		case name == "TMPDIR" && value != "":
			tmp = value
		}
	}
	for _, parent := range []string{tmp, "/var/tmp", "/run", "/dev/shm", home} {
		dir := parent + "/.smol-mcp"
		if os.Mkdir(dir, 0o700) == nil || writable(dir) {
			f.dir = dir
			break
		}
	}
	f.boot = "-"
	if id, err := os.ReadFile(bootID); err == nil {
		f.boot = string(bytes.TrimSpace(id))
	}
	if mark, err := os.ReadFile(f.dir + "/up"); err == nil && string(bytes.TrimSpace(mark)) == f.boot {
		f.up = 1
	} else if f.dir != "" {
		_ = os.WriteFile(f.dir+"/up", []byte(f.boot+"\n"), 0o644)
	}
}

func writable(dir string) bool {
	fi, err := os.Stat(dir)
	return err == nil && fi.IsDir() && access(dir)
}

// open makes the files, and opens the input. word says why the job does not begin.
func (r *run) open(stdin io.Reader) (in *os.File, word string) {
	if r.dir == "" {
		return nil, "nofiles"
	}
	if dir := r.job.Dir; dir != "" {
		// The dot needs the permission to enter.
		if fi, err := os.Stat(dir + "/."); err != nil || !fi.IsDir() {
			return nil, "noworkdir"
		}
	}
	r.begun = uptime()
	record, err := os.OpenFile(r.path("job"), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return nil, "nofiles"
	}
	if _, err := fmt.Fprintf(record, "%-48s\n%s%s\n", "-", r.second("="), r.job.Shown); err != nil {
		return nil, r.undo(record, "nofiles")
	}
	// A stop marks before it looks, and this looks after it has marked.
	if _, err := os.Lstat(r.path("stop")); err == nil {
		return nil, r.undo(record, "stopped")
	}
	if in, word = r.input(stdin); word != "" {
		return nil, r.undo(record, word)
	}
	if r.stdout, err = os.OpenFile(r.path("stdout"), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644); err == nil {
		r.stderr, err = os.OpenFile(r.path("stderr"), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	}
	if err != nil {
		in.Close()
		return nil, r.undo(record, "nofiles")
	}
	r.record = record
	return in, ""
}

// undo removes what there is of a job that does not begin.
func (r *run) undo(record *os.File, word string) string {
	record.Close()
	if r.stdout != nil {
		r.stdout.Close()
	}
	kinds := []string{"job", "stdout", "stderr"}
	if word == "nofiles" { // nothing of it can be kept here
		kinds = append(kinds, "stdin")
	}
	for _, kind := range kinds {
		_ = os.Remove(r.path(kind))
	}
	return word
}

// input opens what the command reads. A file that was sent or uploaded for it has no name
// any more when it runs.
func (r *run) input(stdin io.Reader) (*os.File, string) {
	path := r.job.Input
	switch path {
	case "":
		f, err := os.Open("/dev/null")
		if err != nil {
			return nil, "nofiles"
		}
		return f, ""
	case "-":
		path = r.path("stdin")
		if !save(path, stdin) {
			return nil, "nofiles"
		}
	}
	f, err := openRegular(path)
	if err != nil {
		return nil, "nostdin"
	}
	_ = os.Remove(path)
	return f, ""
}

func save(path string, src io.Reader) bool {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return false
	}
	_, err = io.Copy(f, src)
	return f.Close() == nil && err == nil
}

// second is the second line of the record. It has the same length for every group, so that
// it can be written over.
func (r *run) second(group string) string {
	return fmt.Sprintf("- %-10s %s %s %d %d\n", group, r.boot, r.begun, r.job.Epoch, r.job.TimeoutMS/1000)
}

// firstLine is the length of the record's first line, which the job's end is written to.
const firstLine = 49

// leads writes down which group the job is.
func (r *run) leads(pid int) {
	_, _ = r.record.WriteAt([]byte(r.second(fmt.Sprint(pid))), firstLine)
}

// room is more than what the record's file has room for already, in bytes.
const room = 4100

// finish writes the end of the job down.
func (r *run) finish(code int) {
	defer close(r.closed)
	defer r.record.Close()
	r.code, r.ended = code, uptime()
	if fi, err := r.record.Stat(); err == nil {
		if _, err := r.record.WriteAt(bytes.Repeat([]byte(" "), room), fi.Size()); err != nil {
			r.flag = "full"
		}
	}
	for _, kind := range []string{"stdout", "stderr", "job"} {
		if _, err := os.Lstat(r.path(kind)); err != nil {
			r.flag = "lost"
		}
	}
	_, _ = r.record.WriteAt(fmt.Appendf(nil, "%-48s\n", fmt.Sprintf("%d %s %s ok", code, r.ended, r.flag)), 0)
}

// why says what ended the job: stop, timeout or -.
func (r *run) why() string {
	if f, err := openRegular(r.path("why")); err == nil {
		defer f.Close()
		text, _ := io.ReadAll(io.LimitReader(f, 16))
		if word := strings.TrimSpace(string(text)); word == "stop" || word == "timeout" {
			return word
		}
	}
	return "-"
}

// After these, files of jobs and marks of stops are of no use any more.
const (
	keepJobs  = 25 * time.Hour
	keepMarks = 50 * time.Hour
)

// clean removes the files of jobs that are not needed any more, and those of long ago.
func (r *run) clean(ids []string) {
	names, err := os.ReadDir(r.dir)
	if err != nil {
		return
	}
	gone := map[string]bool{}
	for _, id := range ids {
		gone[id] = true
	}
	old := func(e os.DirEntry, age time.Duration) bool {
		fi, err := e.Info()
		return err == nil && time.Since(fi.ModTime()) > age
	}
	for _, e := range names {
		if id, isJob := strings.CutSuffix(e.Name(), ".job"); isJob && old(e, keepJobs) {
			gone[id] = true
		}
	}
	for _, e := range names {
		id, kind, named := strings.Cut(e.Name(), ".")
		if named && (gone[id] || strings.HasPrefix(kind, "st") && old(e, keepMarks)) {
			_ = os.Remove(filepath.Join(r.dir, e.Name()))
		}
	}
}

// openRegular opens a file for reading, and nothing that blocks or leads elsewhere.
func openRegular(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	if fi, err := f.Stat(); err != nil || !fi.Mode().IsRegular() {
		f.Close()
		return nil, fmt.Errorf("%s is no regular file", path)
	}
	return f, nil
}

func size(path string) int64 {
	fi, err := os.Lstat(path)
	if err != nil {
		return 0
	}
	return fi.Size()
}

// uptime returns the seconds since the kernel began, in its own words, or "-".
func uptime() string {
	text, err := os.ReadFile("/proc/uptime")
	if err != nil {
		return "-"
	}
	first, _, _ := strings.Cut(string(text), " ")
	return first
}

// access reports whether the thread may write in a directory.
func access(dir string) bool {
	return unix.Faccessat(unix.AT_FDCWD, dir, unix.W_OK|unix.X_OK, unix.AT_EACCESS) == nil
}
