// Package agent is the conversation between the engine and smol-guest, the
// program that is PID 1 of its machines. [Dial] is the engine's end and
// [Answer] the guest's.
//
// They share one byte stream, a virtio-serial port, which either end may have left
// in the middle of anything: a machine is continued from a saved state, an engine
// is killed. So each connection begins with a handshake that skips what
// came before. After it the stream carries a yamux session, each request has a
// stream of its own, and a stream is a sequence of frames:
//
//	kind  1 byte
//	size  4 bytes, big endian
//	data  size bytes
//
// The first frame is a [Request] as JSON, the last of the answer is kind [End]
// or [Exited].
//
// What comes from the guest is hostile: frames, counts and lists are bounded
// here, and no path of the host is ever made of it.
package agent

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/hashicorp/yamux"
)

// PortName is what the virtio-serial port is called.
const PortName = "smol.agent"

// Kinds of frames.
const (
	Ask      = 0 // Request
	Stdin    = 1
	StdinEnd = 2
	Stdout   = 3
	Stderr   = 4
	Exited   = 5 // Exit; ends an exec
	Data     = 6 // of a file
	End      = 7 // Result; ends everything else, and an upload
)

const (
	// MaxRequest bounds a request in bytes. The API takes bodies of 2 MiB, which
	// JSON spells anew.
	MaxRequest = 16 << 20

	// maxFrame bounds every other frame in bytes.
	maxFrame = 1 << 20

	// Chunk is how many bytes of content a frame carries at most.
	Chunk = 64 << 10
)

// Request is what the engine asks for. Op names the part that counts.
type Request struct {
	Op   string `json:"op"` // boot, exec, job, read, write, dial, ping, poweroff
	Boot *Boot  `json:"boot,omitempty"`
	Exec *Exec  `json:"exec,omitempty"`
	Job  *Job   `json:"job,omitempty"` // with Exec
	File *File  `json:"file,omitempty"`
	Port int    `json:"port,omitempty"` // of the guest's loopback, for dial
}

// Boot makes a machine of a guest that has none of its own yet: no disks, no
// name, and the random numbers of the state it was continued from.
type Boot struct {
	Entropy  []byte `json:"entropy"`
	UnixNano int64  `json:"unixNano"`
	Hostname string `json:"hostname"`
	Grow     bool   `json:"grow"`               // the disk is larger than its file system
	Net      *Net   `json:"net,omitempty"`      // how its network card is set up; nil leaves it alone
	Workload *Exec  `json:"workload,omitempty"` // started, and not waited for
}

// Net is a network as a guest is told of it, in IPv4.
type Net struct {
	Address string `json:"address"`
	Prefix  int    `json:"prefix"`
	Gateway string `json:"gateway"`
	DNS     string `json:"dns"`
}

// Exec is a program to run.
type Exec struct {
	Argv       []string `json:"argv"`
	Env        []string `json:"env,omitempty"`
	Dir        string   `json:"dir,omitempty"`
	User       string   `json:"user,omitempty"` // as an image names it: user, uid, either with :group
	TimeoutMS  int64    `json:"timeoutMs,omitempty"`
	Background bool     `json:"background,omitempty"` // answer with the process id at once
}

// Job makes a program one that goes on after its request. See package job.
type Job struct {
	ID        string   `json:"id"` // what the names of its files begin with
	Env       []string `json:"env,omitempty"`
	Dir       string   `json:"dir,omitempty"`       // where it runs; empty: as Exec has it
	WaitMS    int64    `json:"waitMs,omitempty"`    // the answer comes at its end, or after this
	TimeoutMS int64    `json:"timeoutMs,omitempty"` // it is ended after this
	Limit     int      `json:"limit,omitempty"`     // bytes of each stream in the answer
	Epoch     int64    `json:"epoch,omitempty"`     // when it was asked for; kept for those who look
	Shown     string   `json:"shown,omitempty"`     // the command as it is shown, one line
	Input     string   `json:"input,omitempty"`     // what it reads: a file that is removed, or - for what is sent
	Done      []string `json:"done,omitempty"`      // jobs whose files are not needed any more
}

// File is a file to read or to write.
type File struct {
	Path   string `json:"path"`
	Offset int64  `json:"offset,omitempty"`
	Limit  int64  `json:"limit,omitempty"` // bytes to read; 0 is all
}

// Exit is how a program ended.
type Exit struct {
	Code     int    `json:"code"` // 128+N after signal N
	TimedOut bool   `json:"timedOut,omitempty"`
	PID      int    `json:"pid,omitempty"`   // of a program in the background
	Error    string `json:"error,omitempty"` // it could not be started
}

// Result ends what is not an exec.
type Result struct {
	Error   string  `json:"error,omitempty"`
	Size    int64   `json:"size,omitempty"`  // bytes that come, or were taken
	Total   int64   `json:"total,omitempty"` // bytes of the whole file
	Dir     bool    `json:"dir,omitempty"`
	Entries []Entry `json:"entries,omitempty"`
	Uptime  string  `json:"uptime,omitempty"` // seconds since the kernel began
}

// Entry is one name of a directory.
type Entry struct {
	Name string `json:"name"`
	Kind string `json:"kind"` // file, directory, symlink or other
	Size int64  `json:"size"`
}

// MaxEntries bounds the names that are listed of one directory.
const MaxEntries = 5000

// ReadFrame reads one frame of at most limit bytes into buf, which grows as
// needed.
func ReadFrame(r io.Reader, buf []byte, limit int) (kind byte, data []byte, err error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, buf, err
	}
	n := int64(binary.BigEndian.Uint32(head[1:]))
	if n > int64(limit) {
		return 0, buf, fmt.Errorf("a frame of %d bytes", n)
	}
	if int64(cap(buf)) < n {
		buf = make([]byte, n)
	}
	buf = buf[:n]
	_, err = io.ReadFull(r, buf)
	return head[0], buf, err
}

// Next reads a frame of content or the end of an answer.
func Next(r io.Reader, buf []byte) (kind byte, data []byte, err error) {
	return ReadFrame(r, buf, maxFrame)
}

// Frames writes frames from several goroutines.
type Frames struct {
	W io.Writer

	mu  sync.Mutex
	buf []byte
}

// Write writes one frame.
func (f *Frames) Write(kind byte, data []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.buf = append(f.buf[:0], kind, 0, 0, 0, 0)
	binary.BigEndian.PutUint32(f.buf[1:], uint32(len(data)))
	f.buf = append(f.buf, data...)
	_, err := f.W.Write(f.buf)
	return err
}

// JSON writes one frame with v.
func (f *Frames) JSON(kind byte, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return f.Write(kind, data)
}

// Stream returns a writer whose bytes become frames of a kind.
func (f *Frames) Stream(kind byte) io.Writer { return stream{f, kind} }

type stream struct {
	f    *Frames
	kind byte
}

func (s stream) Write(p []byte) (int, error) {
	for done := 0; done < len(p); {
		part := p[done:min(len(p), done+Chunk)]
		if err := s.f.Write(s.kind, part); err != nil {
			return done, err
		}
		done += len(part)
	}
	return len(p), nil
}

// session is how both ends set up yamux. Nothing is timed on it: a guest may be
// paused, or slow for as long as its host is busy.
func session() *yamux.Config {
	c := yamux.DefaultConfig()
	c.EnableKeepAlive = false
	c.ConnectionWriteTimeout = time.Hour
	c.StreamOpenTimeout = 0
	c.StreamCloseTimeout = 0
	c.MaxStreamWindowSize = 1 << 20
	c.LogOutput = io.Discard
	return c
}
