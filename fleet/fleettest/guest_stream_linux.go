package fleettest

import (
	"bytes"
	"os"
	"sync"
	"time"
)

// stream collects one output of a command up to MaxOutput; then the pipe is
// closed, and its writer gets SIGPIPE.
type stream struct {
	r    *os.File
	eof  chan struct{} // closed when nothing more will come
	over bool          // there was more; to be read after eof

	mu  sync.Mutex
	buf bytes.Buffer
}

func readStream(r *os.File) *stream {
	s := &stream{r: r, eof: make(chan struct{})}
	go s.read() // ends with the last writer, or by giveUp
	return s
}

func (s *stream) read() {
	defer close(s.eof)
	defer s.r.Close()
	b := make([]byte, 32<<10)
	for !s.over {
		n, err := s.r.Read(b)
		s.mu.Lock()
		if room := MaxOutput - s.buf.Len(); n > room {
			n, s.over = room, true
		}
		s.buf.Write(b[:n])
		s.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// giveUp ends the reading even though a daemon in a session of its own holds the pipe.
func (s *stream) giveUp() {
	select {
	case <-s.eof:
	case <-time.After(200 * time.Millisecond): // what the killed ones wrote is read before
		s.r.SetReadDeadline(time.Unix(1, 0))
		<-s.eof
	}
}

func (s *stream) bytes() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.Bytes()
}
