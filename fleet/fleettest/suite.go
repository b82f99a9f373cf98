package fleettest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"strings"
	"testing"
	"time"

	"smol-mcp/fleet"
)

// Traits are what the contract leaves to a fleet, and what its test machines need.
type Traits struct {
	Image   string        // of test machines; empty: none is named
	Network fleet.Network // of test machines; the image may need it
	Guest   bool          // commands run for real, with the usual tools of a shell
	Missing bool          // a program that does not exist is an error and not an exit code
	Text    bool          // commands print text: bytes that are not UTF-8 are lost

	// Remote fleets run machines elsewhere: they publish no port of this computer,
	// cannot tell a machine that never ran from one that is stopped, and have a
	// history of a machine from its creation on.
	Remote bool
}

// unstarted is the state of a machine that never ran.
func (t Traits) unstarted() fleet.State {
	if t.Remote {
		return fleet.Stopped
	}
	return fleet.Created
}

// Suite is the contract of [fleet.Fleet]. open returns a fleet with nothing in it
// that the suite must keep; its test closes it.
func Suite(t *testing.T, open func(t *testing.T) fleet.Fleet, traits Traits) {
	for _, part := range []struct {
		name  string
		guest bool // needs real commands
		test  func(t *testing.T, s *suite)
	}{
		{"Info", false, testInfo},
		{"Create", false, testCreate},
		{"CreateTaken", false, testCreateTaken},
		{"CreateShape", false, testCreateShape},
		{"List", false, testList},
		{"Life", false, testLife},
		{"Suspend", false, testSuspend},
		{"NotFound", false, testNotFound},
		{"Names", false, testNames},
		{"Cancelled", false, testCancelled},
		{"Branch", false, testBranch},
		{"Logs", false, testLogs},
		{"LogsRefused", false, testLogsRefused},
		{"Pull", false, testPull},
		{"Exec", true, testExec},
		{"ExecBytes", true, testExecBytes},
		{"ExecRefused", false, testExecRefused},
		{"ExecTimeout", true, testExecTimeout},
		{"ExecCancel", true, testExecCancel},
		{"ExecMany", true, testExecMany},
		{"ExecStarts", true, testExecStarts},
		{"ExecNoStart", true, testExecNoStart},
		{"Jobs", true, testJobs},
		{"Files", false, testFiles},
		{"FilesMissing", false, testFilesMissing},
		{"FilesRefused", false, testFilesRefused},
		{"FilesShared", true, testFilesShared},
		{"Parts", false, testParts},
	} {
		t.Run(part.name, func(t *testing.T) {
			if part.guest && !traits.Guest {
				t.Skip("the fleet runs no real commands")
			}
			part.test(t, &suite{Fleet: open(t), traits: traits})
		})
	}
}

// suite is a fleet under test.
type suite struct {
	fleet.Fleet
	traits Traits
}

// ctx ends with the test, or when a call hangs.
func ctx(t *testing.T) context.Context {
	c, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	return c
}

// name returns a name that no machine has.
func name(what string) string {
	b := make([]byte, 4)
	rand.Read(b)
	return "suite-" + what + "-" + hex.EncodeToString(b)
}

func (s *suite) spec(name string) fleet.Spec {
	return fleet.Spec{Name: name, Image: s.traits.Image, Network: s.traits.Network, CPUs: 1, MemoryMB: 512}
}

// create makes a machine that is deleted after the test.
func (s *suite) create(t *testing.T, what string) fleet.Machine {
	t.Helper()
	m, err := s.Create(ctx(t), s.spec(name(what)))
	if err != nil {
		t.Fatal(err)
	}
	s.deleteAfter(t, m.Name)
	return m
}

func (s *suite) deleteAfter(t *testing.T, name string) {
	t.Cleanup(func() {
		c, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if _, err := s.Delete(c, name); err != nil && fleet.CodeOf(err) != fleet.CodeNotFound {
			t.Errorf("left behind: %v", err)
		}
	})
}

// running makes a machine that runs, and answers where the guest is real.
func (s *suite) running(t *testing.T, what string, opts fleet.StartOptions) fleet.Machine {
	t.Helper()
	spec := s.spec(name(what))
	spec.Branchable = opts.Branchable
	m, err := s.Create(ctx(t), spec)
	if err != nil {
		t.Fatal(err)
	}
	s.deleteAfter(t, m.Name)
	if m, err = s.Start(ctx(t), m.Name, opts); err != nil {
		t.Fatal(err)
	}
	if s.traits.Guest {
		s.sh(t, m.Name, "true")
	}
	return m
}

// sh runs a line of shell that must succeed and returns what it printed.
func (s *suite) sh(t *testing.T, machine, line string) string {
	t.Helper()
	res, err := s.Exec(ctx(t), machine, fleet.Command{Argv: []string{"/bin/sh", "-c", line}, Timeout: 30 * time.Second})
	if err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	if res.ExitCode != 0 {
		t.Fatalf("%s: exit code %d: %s", line, res.ExitCode, res.Stderr)
	}
	return string(res.Stdout)
}

// wantCode fails unless err is an *Error of one of the codes that says what failed.
func wantCode(t *testing.T, err error, codes ...fleet.Code) {
	t.Helper()
	var e *fleet.Error
	if err == nil || !errors.As(err, &e) {
		t.Errorf("got %v, want an error of %v", err, codes)
		return
	}
	for _, code := range codes {
		if e.Code == code && e.Op != "" && strings.TrimSpace(e.Why) != "" && len(e.Why) <= fleet.MaxWhy {
			return
		}
	}
	t.Errorf("got %s %v, want %v with what failed and why", e.Code, err, codes)
}

// wantState fails unless a machine is in the state, both as m and when asked for.
func (s *suite) wantState(t *testing.T, m fleet.Machine, err error, state fleet.State) {
	t.Helper()
	if err != nil {
		t.Error(err)
		return
	}
	now, err := s.Get(ctx(t), m.Name)
	if err != nil {
		t.Error(err)
		return
	}
	if m.State != state || now.State != state {
		t.Errorf("machine is %s, then %s; want %s", m.State, now.State, state)
	}
}
