package agent

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"

	"github.com/hashicorp/yamux"
)

// The handshake: the engine sends hello and a nonce, and skips what comes until
// ready and that nonce. Both tags begin with a byte that no yamux header has, so
// that a guest which still believes in an old session ends it.
const (
	helloTag  = "\xffsmol-hello\xff"
	readyTag  = "\xffsmol-ready\xff"
	nonceSize = 32
	maxSkip   = 16 << 20 // bytes of an old conversation at most
)

// hello is the engine's half.
func hello(c io.ReadWriter) error {
	var random [nonceSize / 2]byte
	rand.Read(random[:])
	nonce := hex.EncodeToString(random[:])
	if _, err := c.Write([]byte(helloTag + nonce)); err != nil {
		return err
	}
	return skipTo(c, readyTag+nonce)
}

// Answer is the guest's half of the handshake and returns the session in which
// the engine opens its streams.
func Answer(c io.ReadWriteCloser) (*yamux.Session, error) {
	if err := skipTo(c, helloTag); err != nil {
		return nil, err
	}
	nonce := make([]byte, nonceSize)
	if _, err := io.ReadFull(c, nonce); err != nil {
		return nil, err
	}
	if _, err := c.Write(append([]byte(readyTag), nonce...)); err != nil {
		return nil, err
	}
	return yamux.Server(&whole{ReadWriteCloser: c}, session())
}

// skipTo reads until tag has passed, and not a byte more. The tag's first byte
// must not repeat in it before the end, except as written above.
func skipTo(r io.Reader, tag string) error {
	window := make([]byte, 0, len(tag))
	one := make([]byte, 1)
	for range maxSkip {
		if _, err := io.ReadFull(r, one); err != nil {
			return err
		}
		if len(window) == len(tag) {
			window = append(window[:0], window[1:]...)
		}
		if window = append(window, one[0]); string(window) == tag {
			return nil
		}
	}
	return fmt.Errorf("no handshake within %d bytes", maxSkip)
}
