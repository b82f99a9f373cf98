package agent

import (
	"bytes"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/hashicorp/yamux"
)

// writes notes how often is written, and passes it on.
type writes struct {
	io.ReadWriteCloser
	n int
}

func (w *writes) Write(p []byte) (int, error) {
	w.n++
	return w.ReadWriteCloser.Write(p)
}

// Frames are written at once, and nothing of a session changes.
func TestWhole(t *testing.T) {
	host, guest := ends(t)
	counted := &writes{ReadWriteCloser: host}
	client, err := yamux.Client(&whole{ReadWriteCloser: counted}, session())
	if err != nil {
		t.Fatal(err)
	}
	server, err := yamux.Server(&whole{ReadWriteCloser: guest}, session())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(); server.Close() })
	go func() {
		st, err := server.AcceptStream()
		if err == nil {
			io.Copy(st, st)
			st.Close()
		}
	}()
	st, err := client.OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	var sent bytes.Buffer
	r := rand.New(rand.NewPCG(1, 2))
	const frames = 50
	go func() {
		for range frames {
			p := make([]byte, 1+r.IntN(5000))
			p[0] = 0
			sent.Write(p)
			st.Write(p)
		}
		st.Close()
	}()
	got, err := io.ReadAll(st)
	if err != nil || !bytes.Equal(got, sent.Bytes()) {
		t.Errorf("%d bytes came back of %d, %v", len(got), sent.Len(), err)
	}
	// Each of them, the opening, the end, and what makes room for answers.
	if counted.n > frames+frames/2 {
		t.Errorf("%d frames took %d writes", frames, counted.n)
	}
}
