//go:build linux

package job

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// streams are what the files of both are called.
var streams = [2]string{"stdout", "stderr"}

// A place is the directory for files of ours. See guest/prologue.sh.
type place struct {
	dir, boot string
	up        int // 1: a script or a job of ours has been there since the guest booted
}

// path returns the path of one of the files.
func (r *run) path(kind string) string { return r.dir + "/" + r.Job.ID + "." + kind }

// settle finds the directory, again where what was found is gone.
func (r *run) settle(again bool) {
	home, tmp := "", "/tmp"
	for _, kv := range r.Exec.Env {
		name, value, _ := strings.Cut(kv, "=")
		switch {
		case name == "HOME":
			home = value
		case name == "TMPDIR" && value != "":
			tmp = value
		}
	}
	key := r.Exec.User + "\x00" + tmp + "\x00" + home
	r.mu.Lock()
	defer r.mu.Unlock()
	found, known := r.places[key]
	if known && !again {
		r.place = found
		return
	}
	r.place = look([]string{tmp, "/var/tmp", "/run", "/dev/shm", home}, r.BootID)
	if r.places == nil {
		r.places = map[string]place{}
	}
	delete(r.places, key)
	if r.dir != "" {
		found = r.place
		found.up = 1 // from now on
		r.places[key] = found
	}
}

// look finds the directory below the first of the parents that can have it, and marks the boot there.
func look(parents []string, bootID string) place {
	p := place{boot: "-"}
	for _, parent := range parents {
		dir := parent + "/.smol-mcp"
		if os.Mkdir(dir, 0o700) == nil || writable(dir) {
			p.dir = dir
			break
		}
	}
	if id, err := os.ReadFile(bootID); err == nil {
		p.boot = string(bytes.TrimSpace(id))
	}
	if p.dir == "" {
		return p
	}
	if mark, err := os.ReadFile(p.dir + "/up"); err == nil && string(bytes.TrimSpace(mark)) == p.boot {
		p.up = 1
	} else {
		_ = os.WriteFile(p.dir+"/up", []byte(p.boot+"\n"), 0o644)
	}
	return p
}

// writable reports whether the thread may make files in a directory.
func writable(dir string) bool {
	fi, err := os.Stat(dir)
	return err == nil && fi.IsDir() && unix.Faccessat(unix.AT_FDCWD, dir, unix.W_OK|unix.X_OK, unix.AT_EACCESS) == nil
}

// open makes the files, and opens the input. word says why the job does not begin.
func (r *run) open(stdin io.Reader) (word string) {
	if r.settle(false); r.dir == "" {
		return "nofiles"
	}
	if dir := r.Job.Dir; dir != "" {
		// The dot needs the permission to enter.
		if fi, err := os.Stat(dir + "/."); err != nil || !fi.IsDir() {
			return "noworkdir"
		}
	}
	r.begun = uptime()
	if err := r.create(); err != nil {
		if r.settle(true); r.dir == "" || r.create() != nil {
			return "nofiles"
		}
	}
	// A stop marks before it looks, and this looks after it has marked.
	var st unix.Stat_t
	if unix.Lstat(r.path("stop"), &st) == nil {
		return r.undo("stopped")
	}
	if r.in, word = r.input(stdin); word != "" {
		return r.undo(word)
	}
	for i, name := range streams {
		s, err := newStream(r.path(name), r.As, r.Job.Limit)
		if err != nil {
			_ = unix.Close(r.in)
			return r.undo("nofiles")
		}
		r.out[i] = s
	}
	return ""
}

// create makes the record.
func (r *run) create() error {
	fd, err := unix.Open(r.path("job"), unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return err
	}
	text := fmt.Appendf(nil, "%-48s\n%s%s\n%s\n", "-", r.second("="), r.Job.Shown, r.group.name)
	if n, err := unix.Write(fd, text); err != nil || n < len(text) {
		_ = unix.Close(fd)
		_ = unix.Unlink(r.path("job"))
		return unix.ENOSPC
	}
	r.record = fd
	return nil
}

// undo removes what there is of a job that does not begin.
func (r *run) undo(word string) string {
	_ = unix.Close(r.record)
	for i, s := range r.out {
		if s != nil {
			_ = unix.Close(s.theirs)
			s.letGo()
			_ = unix.Unlink(r.path(streams[i]))
		}
	}
	if word == "nofiles" { // nothing of it can be kept here
		_ = unix.Unlink(r.path("stdin"))
	}
	_ = unix.Unlink(r.path("job"))
	return word
}

// input opens what the command reads. A file that was sent or uploaded for it has no name
// any more when it runs.
func (r *run) input(stdin io.Reader) (fd int, word string) {
	path := r.Job.Input
	switch path {
	case "":
		fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return -1, "nofiles"
		}
		return fd, ""
	case "-":
		path = r.path("stdin")
		if !save(path, stdin) {
			return -1, "nofiles"
		}
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, "nostdin"
	}
	_ = unix.Unlink(path)
	return fd, ""
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
	return fmt.Sprintf("- %-10s %s %s %d %d\n", group, r.boot, r.begun, r.Job.Epoch, r.Job.TimeoutMS/1000)
}

// firstLine is the length of the record's first line, which the job's end is written to.
const firstLine = 49

// leads writes down which group the job is.
func (r *run) leads(pid int) {
	_, _ = unix.Pwrite(r.record, []byte(r.second(fmt.Sprint(pid))), firstLine)
}

// finish writes the end of the job down.
func (r *run) finish(code int) {
	defer close(r.closed)
	r.code, r.ended = code, uptime()
	for _, s := range r.out {
		s.drain()
		if s.full.Load() {
			r.flag = "full"
		}
	}
	for _, s := range r.out {
		if s.lost.Load() || s.gone() {
			r.flag = "lost"
		}
		s.letGo()
	}
	var st unix.Stat_t
	if unix.Fstat(r.record, &st) == nil && st.Nlink == 0 {
		r.flag = "lost"
	}
	_, _ = unix.Pwrite(r.record, fmt.Appendf(nil, "%-48s\n", fmt.Sprintf("%d %s %s ok", code, r.ended, r.flag)), 0)
	_ = unix.Close(r.record)
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

// openRegular opens a file for reading, and nothing that blocks or leads elsewhere.
func openRegular(path string) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("%s is no regular file", path)
	}
	return os.NewFile(uintptr(fd), path), nil
}

// After these, files of jobs and marks of stops are of no use any more.
const (
	keepJobs  = 25 * time.Hour
	keepMarks = 50 * time.Hour
)

// mostJobs is how many jobs that have ended stay: sessions that end early leave theirs.
const mostJobs = 200

// clean removes the files of jobs that are not needed any more, and those of long ago.
func clean(dir string, ids []string) {
	names, err := os.ReadDir(dir)
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
	for i, e := range newestJobs(names) {
		if old(e, keepJobs) || i >= mostJobs && ended(dir+"/"+e.Name()) {
			gone[strings.TrimSuffix(e.Name(), ".job")] = true
		}
	}
	for _, e := range names {
		id, kind, named := strings.Cut(e.Name(), ".")
		if named && (gone[id] || strings.HasPrefix(kind, "st") && old(e, keepMarks)) {
			_ = os.Remove(dir + "/" + e.Name())
		}
	}
}

// newestJobs are the records of a directory, the newest first.
func newestJobs(names []os.DirEntry) []os.DirEntry {
	at := map[string]time.Time{}
	jobs := slices.DeleteFunc(slices.Clone(names), func(e os.DirEntry) bool {
		fi, err := e.Info()
		if err == nil {
			at[e.Name()] = fi.ModTime()
		}
		return err != nil || !strings.HasSuffix(e.Name(), ".job")
	})
	slices.SortFunc(jobs, func(a, b os.DirEntry) int { return at[b.Name()].Compare(at[a.Name()]) })
	return jobs
}

// ended reports whether a record says how its job ended.
func ended(record string) bool {
	f, err := openRegular(record)
	if err != nil {
		return false
	}
	defer f.Close()
	first := make([]byte, 1)
	n, _ := f.Read(first)
	return n == 1 && first[0] != '-'
}

// uptime returns the seconds since the kernel began, as /proc/uptime has them.
func uptime() string {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return "-"
	}
	return fmt.Sprintf("%d.%02d", ts.Sec, ts.Nsec/10_000_000)
}
