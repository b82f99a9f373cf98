package fleet_test

import "testing"

// To ask whether an engine serves starts none.
func TestEngineServed(t *testing.T) {
	p := newPlace(t)
	a, b := p.engine(), p.engine()
	if a.Served() || len(p.starts()) != 0 {
		t.Errorf("before the first Dial: served %v, %d starts", a.Served(), len(p.starts()))
	}
	dial(t, a)
	if !a.Served() || !b.Served() {
		t.Errorf("while it runs: its starter says %v, another %v", a.Served(), b.Served())
	}
	a.Close()
	if b.Served() {
		t.Error("served after its end")
	}
}
