package fleet_test

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"smol-mcp/fleet"
	"smol-mcp/fleet/fleettest"
)

func client(t *testing.T, server *fleettest.SmolvmFake) *fleet.Smolvm {
	s := fleet.NewSmolvm(server.Dial, fleet.SmolvmOptions{})
	t.Cleanup(func() { s.Close() })
	return s
}

// The client keeps the contract over each generation of the API: fork, branches,
// and pause with strict creates and image pulls by the host.
func TestSmolvmContract(t *testing.T) {
	for _, version := range []string{"1.9.3", "1.23.0"} {
		t.Run(version, func(t *testing.T) {
			fleettest.Suite(t, func(t *testing.T) fleet.Fleet {
				return client(t, fleettest.StartSmolvm(t, fleettest.SmolvmOptions{Version: version}))
			}, fleettest.Traits{Image: "docker.io/library/alpine:3.20", Network: fleet.Network{Open: true}, Guest: true})
		})
	}
	t.Run("bare 1.14.5", func(t *testing.T) { // machines without an image
		fleettest.Suite(t, func(t *testing.T) fleet.Fleet {
			return fleet.Retry(client(t, fleettest.StartSmolvm(t, fleettest.SmolvmOptions{})))
		}, fleettest.Traits{Guest: true, Missing: true})
	})
}

func TestSmolvmParity(t *testing.T) {
	for _, version := range []string{"1.9.3", "1.14.5", "1.18.0", "1.23.0"} {
		s := client(t, fleettest.StartSmolvm(t, fleettest.SmolvmOptions{Version: version}))
		doc, err := s.OpenAPI(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		p, err := fleet.CheckParity(doc)
		if err != nil || len(p.Missing) > 0 || len(p.Unknown) > 0 {
			t.Errorf("%s: missing %v, unknown %v, %v", version, p.Missing, p.Unknown, err)
		}
	}
}

// The calls that agents make most cost one request each.
func TestOneRequestEach(t *testing.T) {
	server := fleettest.StartSmolvm(t, fleettest.SmolvmOptions{})
	s := client(t, server)
	steps := []struct {
		what string
		call func() error
		want int
	}{
		{"create", func() error { _, err := s.Create(t.Context(), fleet.Spec{Name: "vm"}); return err }, 1},
		{"start", func() error { _, err := s.Start(t.Context(), "vm", fleet.StartOptions{}); return err }, 1},
		{"get", func() error { _, err := s.Get(t.Context(), "vm"); return err }, 1},
		{"list", func() error { _, err := s.List(t.Context()); return err }, 1},
		{"exec", func() error {
			_, err := s.Exec(t.Context(), "vm", fleet.Command{Argv: []string{"true"}, Timeout: time.Minute})
			return err
		}, 1},
		{"upload", func() error { return s.Upload(t.Context(), "vm", "/x", strings.NewReader("x"), 1) }, 1},
		{"download", func() error { _, err := s.Download(t.Context(), "vm", "/x", io.Discard, 0); return err }, 1},
		{"logs", func() error { _, err := s.Logs(t.Context(), "vm", fleet.LogQuery{Tail: 10}); return err }, 1},
		{"stop", func() error { _, err := s.Stop(t.Context(), "vm", fleet.StopOptions{}); return err }, 1},
		{"delete", func() error { _, err := s.Delete(t.Context(), "vm"); return err }, 2},
	}
	for _, step := range steps {
		before := len(server.Requests())
		if err := step.call(); err != nil {
			t.Errorf("%s: %v", step.what, err)
		}
		if n := len(server.Requests()) - before; n != step.want {
			t.Errorf("%s cost %d requests, want %d", step.what, n, step.want)
		}
	}
}

// A create whose answer is lost may have been carried out, and was; one whose
// request is lost was not. The error is the same, so the caller has to look.
func TestLostCreate(t *testing.T) {
	for _, drop := range []string{"before", "after"} {
		server := fleettest.StartSmolvm(t, fleettest.SmolvmOptions{})
		server.Fault(fleettest.SmolvmFault{Method: "POST", Path: "/machines", Drop: drop, Times: 1})
		s := client(t, server)
		_, err := fleet.Retry(s).Create(t.Context(), fleet.Spec{Name: "vm"})
		if fleet.CodeOf(err) != fleet.CodeUnreachable || !fleet.MaybeDone(err) {
			t.Errorf("%s: %v", drop, err)
		}
		if n := server.Count("POST", "/machines"); n != 1 {
			t.Errorf("%s: sent %d times", drop, n)
		}
		_, err = s.Get(t.Context(), "vm")
		if made := err == nil; made != (drop == "after") {
			t.Errorf("%s: %v", drop, err)
		}
	}
}

// After a crash of the engine the next call uses the new one, and what it can do is
// found out anew.
func TestEngineRestarted(t *testing.T) {
	server := fleettest.StartSmolvm(t, fleettest.SmolvmOptions{Version: "1.14.5"})
	f := fleet.Retry(client(t, server))
	if _, err := f.Create(t.Context(), fleet.Spec{Name: "vm"}); err != nil {
		t.Fatal(err)
	}
	info, err := f.Info(t.Context())
	if err != nil || info.Version != "1.14.5" || info.Can.Suspend {
		t.Errorf("%+v, %v", info, err)
	}
	server.SetVersion("1.18.0")
	server.Restart()
	if m, err := f.Get(t.Context(), "vm"); err != nil || m.Name != "vm" {
		t.Errorf("%+v, %v", m, err)
	}
	info, err = f.Info(t.Context())
	if err != nil || info.Version != "1.18.0" || !info.Can.Suspend {
		t.Errorf("%+v, %v", info, err)
	}
}

// A call that changes something meets no connection of an engine that has gone:
// it is carried out by the new one, or was not sent.
func TestEngineRestartedBeforeCreate(t *testing.T) {
	server := fleettest.StartSmolvm(t, fleettest.SmolvmOptions{})
	f := fleet.Retry(client(t, server))
	for i := range 10 {
		create(t, f, fmt.Sprintf("vm-%d", i))
		server.Restart()
	}
}

// W29: nothing twice and nothing lost over a real console that is rotated.
func TestConsoleRotates(t *testing.T) {
	server := fleettest.StartSmolvm(t, fleettest.SmolvmOptions{ConsoleMax: 4000})
	s := client(t, server)
	if _, err := s.Start(t.Context(), create(t, s, "vm"), fleet.StartOptions{}); err != nil {
		t.Fatal(err)
	}
	page, err := s.Logs(t.Context(), "vm", fleet.LogQuery{Tail: 1000})
	if err != nil {
		t.Fatal(err)
	}
	gaps, next := 0, 0
	for round := range 40 {
		var want []string
		for range 10 {
			want = append(want, fmt.Sprintf("line %04d of the console", next))
			next++
		}
		server.Console("vm", want...)
		if page, err = s.Logs(t.Context(), "vm", fleet.LogQuery{Cursor: page.Cursor, Tail: 1000}); err != nil {
			t.Fatal(err)
		}
		if page.Gap {
			gaps++
			continue
		}
		if !slices.Equal(page.Lines, want) {
			t.Errorf("round %d: got %q, want %q", round, page.Lines, want)
		}
	}
	if gaps == 0 || gaps > 5 {
		t.Errorf("%d gaps for 400 lines of 24 bytes in a console of 4000", gaps)
	}
}

func create(t *testing.T, f fleet.Fleet, name string) string {
	t.Helper()
	if _, err := f.Create(t.Context(), fleet.Spec{Name: name}); err != nil {
		t.Fatal(err)
	}
	return name
}

// A download that breaks before its first byte is tried again, and at last fails.
func TestBrokenDownload(t *testing.T) {
	server := fleettest.StartSmolvm(t, fleettest.SmolvmOptions{})
	f := fleet.Retry(client(t, server))
	create(t, f, "vm")
	if err := f.Upload(t.Context(), "vm", "/x", strings.NewReader("content"), 7); err != nil {
		t.Fatal(err)
	}
	server.Fault(fleettest.SmolvmFault{Method: "GET", Path: "/files", Drop: "after", Times: -1})
	var got bytes.Buffer
	_, err := f.Download(t.Context(), "vm", "/x", &got, 0)
	if fleet.CodeOf(err) != fleet.CodeUnreachable || got.Len() > 0 {
		t.Errorf("%q, %v", got.String(), err)
	}
	if n := len(server.Requests()); n < 5 {
		t.Errorf("only %d requests", n)
	}
	server.ClearFaults()
	if _, err := f.Download(t.Context(), "vm", "/x", &got, 0); err != nil || got.String() != "content" {
		t.Errorf("%q, %v", got.String(), err)
	}
}
