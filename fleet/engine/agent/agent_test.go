package agent

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

// ends are both ends of a stream, as a virtio-serial port joins them.
func ends(t *testing.T) (host, guest net.Conn) {
	host, guest = net.Pipe()
	t.Cleanup(func() { host.Close(); guest.Close() })
	return host, guest
}

// meet shakes hands, and gives what the guest answers to handle.
func meet(t *testing.T, handle func(req Request, st io.ReadWriteCloser)) *Client {
	t.Helper()
	host, guest := ends(t)
	go func() {
		s, err := Answer(guest)
		if err != nil {
			return
		}
		for {
			st, err := s.AcceptStream()
			if err != nil {
				return
			}
			go func() {
				defer st.Close()
				var req Request
				if _, data, err := ReadFrame(st, nil, MaxRequest); err == nil && json.Unmarshal(data, &req) == nil {
					handle(req, st)
				}
			}()
		}
	}()
	c, err := Dial(t.Context(), func(context.Context) (net.Conn, error) { return host, nil })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func TestCall(t *testing.T) {
	c := meet(t, func(req Request, st io.ReadWriteCloser) {
		out := &Frames{W: st}
		_ = out.JSON(End, Result{Uptime: req.Op, Error: map[string]string{"bad": "no"}[req.Op]})
	})
	res, err := c.Call(t.Context(), Request{Op: "ping"})
	if err != nil || res.Uptime != "ping" {
		t.Errorf("%+v, %v", res, err)
	}
	if _, err := c.Call(t.Context(), Request{Op: "bad"}); err == nil || err.Error() != "no" {
		t.Errorf("got %v", err)
	}
}

// A guest of an earlier release has no jobs.
func TestNoJobs(t *testing.T) {
	c := meet(t, func(req Request, st io.ReadWriteCloser) {
		out := &Frames{W: st}
		_ = out.JSON(End, Result{Error: "unknown request " + req.Op})
	})
	if _, err := c.Job(t.Context(), Exec{Argv: []string{"true"}}, Job{ID: "abcdef"}, strings.NewReader("in"), io.Discard, io.Discard); !errors.Is(err, ErrNoJobs) {
		t.Errorf("got %v", err)
	}
}

// What was on the stream before does not count, whatever it was.
func TestHandshakeSkips(t *testing.T) {
	for what, before := range map[string]string{
		"nothing":            "",
		"an old answer":      readyTag + strings.Repeat("0", nonceSize),
		"half a tag":         readyTag[:5] + "\xff",
		"noise":              strings.Repeat("\x00\xff\x01smol", 1000),
		"a frame's head":     "\x03\x00\x00\xff\xff",
		"the tag's first":    "\xff\xff\xff",
		"the tag and a half": readyTag + readyTag[:7],
	} {
		t.Run(what, func(t *testing.T) {
			host, guest := ends(t)
			go func() {
				go io.WriteString(guest, before) // what the engine has not read yet
				_ = skipTo(iotest.OneByteReader(guest), helloTag)
				nonce := make([]byte, nonceSize)
				_, _ = io.ReadFull(guest, nonce)
				_, _ = guest.Write(append([]byte(readyTag), nonce...))
			}()
			if err := hello(host); err != nil {
				t.Error(err)
			}
		})
	}
	// The guest skips too.
	host, guest := ends(t)
	go func() {
		io.WriteString(host, "\x00\x00garbage\xffsmol-h"+helloTag+strings.Repeat("n", nonceSize))
	}()
	go io.Copy(io.Discard, host)
	if s, err := Answer(guest); err != nil {
		t.Error(err)
	} else {
		s.Close()
	}
}

// A guest that never shakes hands, or says too much, ends the attempt.
func TestHandshakeRefused(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	tries := 0
	_, err := Dial(ctx, func(context.Context) (net.Conn, error) {
		tries++
		return nil, errors.New("nobody there")
	})
	if !errors.Is(err, ErrGone) || !errors.Is(err, context.DeadlineExceeded) || tries < 2 {
		t.Errorf("%v after %d tries", err, tries)
	}
	if err := skipTo(bytes.NewReader(make([]byte, maxSkip+1)), "tag"); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("endless noise gives %v", err)
	}
}

// Frames from the guest are bounded.
func TestHostileFrames(t *testing.T) {
	huge := []byte{Stdout, 0xff, 0xff, 0xff, 0xff}
	if _, _, err := Next(bytes.NewReader(huge), nil); err == nil || !strings.Contains(err.Error(), "4294967295") {
		t.Errorf("a frame of 4 GiB gives %v", err)
	}
	for what, answer := range map[string]func(out *Frames, w io.Writer){
		"no JSON":      func(out *Frames, _ io.Writer) { _ = out.Write(End, []byte("x")) },
		"another kind": func(out *Frames, _ io.Writer) { _ = out.JSON(Stdout, Result{}) },
		"half a frame": func(_ *Frames, w io.Writer) { _, _ = w.Write([]byte{End, 0, 0, 0, 9, 'x'}) },
		"nothing":      func(*Frames, io.Writer) {},
		"a huge frame": func(_ *Frames, w io.Writer) { _, _ = w.Write(huge) },
		"endless names": func(out *Frames, _ io.Writer) {
			_ = out.JSON(End, Result{Dir: true, Entries: make([]Entry, MaxEntries+1)})
		},
	} {
		t.Run(what, func(t *testing.T) {
			c := meet(t, func(_ Request, st io.ReadWriteCloser) { answer(&Frames{W: st}, st) })
			if res, err := c.Call(t.Context(), Request{Op: "ping"}); err == nil {
				t.Errorf("taken as %+v", res)
			}
			if _, err := c.Exec(t.Context(), Exec{Argv: []string{"x"}}, nil, io.Discard, io.Discard); err == nil {
				t.Error("an exec took it")
			}
		})
	}
}

// More than was announced, or less, is no file.
func TestHostileFile(t *testing.T) {
	for sent, want := range map[int]string{5: "", 4: "changed while", 6: "more than"} {
		c := meet(t, func(_ Request, st io.ReadWriteCloser) {
			out := &Frames{W: st}
			_ = out.JSON(End, Result{Size: 5})
			_ = out.Write(Data, make([]byte, sent))
			_ = out.JSON(End, Result{})
		})
		err := c.Read(t.Context(), File{Path: "/x"}, func(Result) (io.Writer, error) { return io.Discard, nil })
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%d bytes of 5: %v", sent, err)
		}
	}
}

// Input that nobody reads does not hold the answer back, and a caller that goes away
// gets its answer at once.
func TestExecEnds(t *testing.T) {
	c := meet(t, func(req Request, st io.ReadWriteCloser) {
		if req.Exec.Argv[0] == "hang" {
			_, _ = io.Copy(io.Discard, st)
			return
		}
		out := &Frames{W: st}
		_ = out.Write(Stdout, []byte("out"))
		_ = out.JSON(Exited, Exit{Code: 3})
	})
	var out bytes.Buffer
	exit, err := c.Exec(t.Context(), Exec{Argv: []string{"x"}}, strings.NewReader(strings.Repeat("s", 8<<20)), &out, io.Discard)
	if err != nil || exit.Code != 3 || out.String() != "out" {
		t.Errorf("%+v, %q, %v", exit, out.String(), err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := c.Exec(ctx, Exec{Argv: []string{"hang"}}, nil, io.Discard, io.Discard); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	if _, err := c.Call(t.Context(), Request{Op: "ping", Exec: &Exec{Argv: []string{"x"}}}); err == nil {
		t.Error("after it the conversation goes on, and this answer was an exec's")
	}
}

func FuzzFrames(f *testing.F) {
	f.Add([]byte{Stdout, 0, 0, 0, 3, 'a', 'b', 'c'})
	f.Add([]byte{End, 0xff, 0, 0, 3})
	f.Fuzz(func(t *testing.T, in []byte) {
		r := bytes.NewReader(in)
		for {
			kind, data, err := Next(r, nil)
			if err != nil {
				return
			}
			var out bytes.Buffer
			if err := (&Frames{W: &out}).Write(kind, data); err != nil {
				t.Fatal(err)
			}
			if n := binary.BigEndian.Uint32(out.Bytes()[1:]); int(n) != len(data) || len(data) > maxFrame {
				t.Fatalf("%d bytes became %d", len(data), n)
			}
		}
	})
}
