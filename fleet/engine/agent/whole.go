package agent

import (
	"encoding/binary"
	"io"
)

// whole writes each frame of a yamux session at once. The session writes the head first and then
// the content, and each write to the port is an exit of the guest and an interrupt, which an emulated
// guest takes tens of microseconds for. It is written to by one goroutine, the session's.
type whole struct {
	io.ReadWriteCloser
	head []byte // held back
}

// A yamux head has a version, a type, flags, a stream and a length; that of data is followed by
// so many bytes.
const (
	headSize = 12
	headData = 0
)

// Write holds a head back until its content comes.
func (w *whole) Write(p []byte) (int, error) {
	if len(w.head) == 0 {
		if len(p) == headSize && p[1] == headData && binary.BigEndian.Uint32(p[8:]) > 0 {
			w.head = append(w.head, p...)
			return len(p), nil
		}
		return w.ReadWriteCloser.Write(p)
	}
	w.head = append(w.head, p...)
	n, err := w.ReadWriteCloser.Write(w.head)
	n = max(n-(len(w.head)-len(p)), 0)
	w.head = w.head[:0]
	return n, err
}
