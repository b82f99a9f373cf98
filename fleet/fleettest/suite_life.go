package fleettest

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"smol-mcp/fleet"
)

func testInfo(t *testing.T, s *suite) {
	info, err := s.Info(ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	if info.Engine == "" || info.Version == "" || s.Target() == "" {
		t.Errorf("target %q is served by %+v", s.Target(), info)
	}
}

func testCreate(t *testing.T, s *suite) {
	spec := s.spec(name("create"))
	m, err := s.Create(ctx(t), spec)
	if err != nil {
		t.Fatal(err)
	}
	s.deleteAfter(t, m.Name)
	s.wantState(t, m, err, s.traits.unstarted())
	if m.ID == "" || m.Name != spec.Name || m.CPUs != spec.CPUs || m.MemoryMB != spec.MemoryMB {
		t.Errorf("asked for %+v, got %+v", spec, m)
	}
	if since := time.Since(m.CreatedAt); since < -time.Minute || since > time.Hour {
		t.Errorf("created at %v", m.CreatedAt)
	}
	if m.PID != 0 || m.Network == "" {
		t.Errorf("pid %d and network %q before the first start", m.PID, m.Network)
	}
}

// Of many creates with one name, one succeeds.
func testCreateTaken(t *testing.T, s *suite) {
	spec := s.spec(name("taken"))
	s.deleteAfter(t, spec.Name)
	errs := make([]error, 6)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() { _, errs[i] = s.Create(ctx(t), spec) })
	}
	wg.Wait()
	made := 0
	for _, err := range errs {
		if err == nil {
			made++
			continue
		}
		wantCode(t, err, fleet.CodeConflict)
	}
	if made != 1 {
		t.Errorf("%d of %d creates of one name succeeded", made, len(errs))
	}
	_, err := s.Create(ctx(t), spec)
	wantCode(t, err, fleet.CodeConflict)
}

// What the caller asked for is in the answer, and blocked is not open.
func testCreateShape(t *testing.T, s *suite) {
	for _, c := range []struct {
		what    string
		network fleet.Network
		want    string
	}{
		{"blocked", fleet.Network{}, "blocked"},
		{"empty", fleet.Network{AllowHosts: []string{}, AllowCIDRs: []string{}}, "blocked"},
		{"open", fleet.Network{Open: true}, "open"},
		{"hosts", fleet.Network{AllowHosts: []string{"example.com"}}, "allow(example.com)"},
		{"both", fleet.Network{AllowHosts: []string{"example.com"}, AllowCIDRs: []string{"192.0.2.0/24"}}, "allow(example.com,192.0.2.0/24)"},
	} {
		spec := s.spec(name(c.what))
		spec.Network = c.network
		if s.traits.Network.Open && spec.Network.Blocked() {
			spec.Image = "" // this release fetches images in the guest
		}
		m, err := s.Create(ctx(t), spec)
		if err != nil {
			t.Errorf("%s: %v", c.what, err)
			continue
		}
		s.deleteAfter(t, m.Name)
		if m.Network != c.want {
			t.Errorf("%s: network is %q", c.what, m.Network)
		}
	}
	spec := s.spec(name("ports"))
	spec.Ports = []fleet.Port{{Guest: 80, Host: 18099}}
	if s.traits.Remote {
		spec.Network, spec.Ports = fleet.Network{Open: true}, []fleet.Port{{Guest: 80}}
	}
	m, err := s.Create(ctx(t), spec)
	if err != nil {
		t.Fatal(err)
	}
	s.deleteAfter(t, m.Name)
	if !slices.Equal(m.Ports, spec.Ports) {
		t.Errorf("ports are %v, want %v", m.Ports, spec.Ports)
	}
}

func testList(t *testing.T, s *suite) {
	var want []string
	for _, what := range []string{"zz", "aa", "mm"} {
		want = append(want, s.create(t, what).Name)
	}
	list, err := s.List(ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range list {
		got = append(got, m.Name)
	}
	if !slices.IsSorted(got) {
		t.Errorf("not in order: %v", got)
	}
	for _, name := range want {
		if !slices.Contains(got, name) {
			t.Errorf("%s is not in %v", name, got)
		}
	}
}

func testLife(t *testing.T, s *suite) {
	m := s.create(t, "life")
	m, err := s.Stop(ctx(t), m.Name, fleet.StopOptions{}) // never started: nothing to stop
	s.wantState(t, m, err, s.traits.unstarted())
	for range 2 {
		for range 2 { // each is idempotent
			m, err = s.Start(ctx(t), m.Name, fleet.StartOptions{})
			s.wantState(t, m, err, fleet.Running)
		}
		for range 2 {
			m, err = s.Stop(ctx(t), m.Name, fleet.StopOptions{})
			s.wantState(t, m, err, fleet.Stopped)
		}
	}
	if _, err := s.Start(ctx(t), m.Name, fleet.StartOptions{}); err != nil {
		t.Error(err)
	}
	if _, err := s.Delete(ctx(t), m.Name); err != nil {
		t.Errorf("delete a running machine: %v", err)
	}
	_, err = s.Get(ctx(t), m.Name)
	wantCode(t, err, fleet.CodeNotFound)
	_, err = s.Delete(ctx(t), m.Name)
	wantCode(t, err, fleet.CodeNotFound)
	if _, err := s.Create(ctx(t), s.spec(m.Name)); err != nil {
		t.Errorf("the name is not free again: %v", err)
	}
}

func testSuspend(t *testing.T, s *suite) {
	info, err := s.Info(ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	m := s.running(t, "suspend", fleet.StartOptions{})
	_, err = s.Stop(ctx(t), m.Name, fleet.StopOptions{KeepMemory: true})
	if !info.Can.Suspend || fleet.CodeOf(err) == fleet.CodeUnsupported {
		wantCode(t, err, fleet.CodeUnsupported)
		s.wantState(t, m, nil, fleet.Running)
		if info, err := s.Info(ctx(t)); err != nil || info.Can.Suspend { // it may have been learnt just now
			t.Errorf("the fleet says that it can suspend: %v", err)
		}
		return
	}
	for range 2 {
		m, err = s.Stop(ctx(t), m.Name, fleet.StopOptions{KeepMemory: true})
		s.wantState(t, m, err, fleet.Suspended)
	}
	m, err = s.Start(ctx(t), m.Name, fleet.StartOptions{})
	s.wantState(t, m, err, fleet.Running)
	_, err = s.Stop(ctx(t), m.Name, fleet.StopOptions{KeepMemory: true})
	if err != nil {
		t.Error(err)
	}
	if _, err := s.Delete(ctx(t), m.Name); err != nil {
		t.Errorf("delete a suspended machine: %v", err)
	}
}

// calls is every method that takes a machine's name.
func (s *suite) calls(c context.Context, name string) map[string]error {
	errs := make(map[string]error)
	_, errs["Get"] = s.Get(c, name)
	_, errs["Start"] = s.Start(c, name, fleet.StartOptions{})
	_, errs["Stop"] = s.Stop(c, name, fleet.StopOptions{})
	_, errs["Delete"] = s.Delete(c, name)
	_, errs["Branch"] = s.Branch(c, name, fleet.BranchSpec{Name: "suite-child"})
	_, errs["Exec"] = s.Exec(c, name, fleet.Command{Argv: []string{"true"}, Timeout: time.Second})
	_, errs["Download"] = s.Download(c, name, "/etc/passwd", io.Discard, 0)
	errs["Upload"] = s.Upload(c, name, "/tmp/x", strings.NewReader("x"), 1)
	_, errs["Logs"] = s.Logs(c, name, fleet.LogQuery{Tail: 10})
	_, errs["Pull"] = s.Pull(c, name, "alpine:3.20")
	return errs
}

func testNotFound(t *testing.T, s *suite) {
	for method, err := range s.calls(ctx(t), name("none")) {
		t.Run(method, func(t *testing.T) {
			codes := []fleet.Code{fleet.CodeNotFound}
			if method == "Branch" || method == "Pull" {
				codes = append(codes, fleet.CodeUnsupported)
			}
			wantCode(t, err, codes...)
			if fleet.MaybeDone(err) {
				t.Error("may have been done")
			}
		})
	}
}

// A name never becomes a path of the API.
func testNames(t *testing.T, s *suite) {
	long := strings.Repeat("a", 200)
	for _, bad := range []string{"", ".", "..", "a/b", "../health", "a b", "ä", "a?x=1", "a#b", "a%2Fb", "-a", "a\x00", "a\n", long} {
		for method, err := range s.calls(ctx(t), bad) {
			if fleet.CodeOf(err) != fleet.CodeInvalid {
				t.Errorf("%s of %q: %v", method, bad, err)
			}
		}
		_, err := s.Create(ctx(t), s.spec(bad))
		wantCode(t, err, fleet.CodeInvalid)
	}
	for _, bad := range []string{"Upper", "under_score", "two--dashes", "dash-", strings.Repeat("a", 41)} {
		_, err := s.Create(ctx(t), s.spec(bad))
		wantCode(t, err, fleet.CodeInvalid)
	}
}

// A caller that is gone gets its answer at once, and nothing is done.
func testCancelled(t *testing.T, s *suite) {
	m := s.create(t, "cancelled")
	gone, cancel := context.WithCancel(ctx(t))
	cancel()
	begun := time.Now()
	for method, err := range s.calls(gone, m.Name) {
		if code := fleet.CodeOf(err); code != fleet.CodeCancelled {
			t.Errorf("%s: %v", method, err)
		}
	}
	_, err := s.Create(gone, s.spec(name("gone")))
	wantCode(t, err, fleet.CodeCancelled)
	if took := time.Since(begun); took > time.Second {
		t.Errorf("the cancelled calls took %v", took)
	}
	s.wantState(t, m, nil, s.traits.unstarted())
}

func testBranch(t *testing.T, s *suite) {
	info, err := s.Info(ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	source := s.running(t, "source", fleet.StartOptions{Branchable: info.Can.Branch})
	if !info.Can.Branch {
		_, err := s.Branch(ctx(t), source.Name, fleet.BranchSpec{Name: name("child")})
		wantCode(t, err, fleet.CodeUnsupported)
		return
	}
	if s.traits.Guest {
		s.sh(t, source.Name, "echo kept >/root/kept")
	}
	child := name("child")
	s.deleteAfter(t, child)
	m, err := s.Branch(ctx(t), source.Name, fleet.BranchSpec{Name: child, StopSource: !info.Can.BranchRunning})
	s.wantState(t, m, err, fleet.Running)
	if m.Name != child {
		t.Fatalf("the branch is called %q, not %q", m.Name, child)
	}
	if s.traits.Guest {
		if got := s.sh(t, child, "cat /root/kept; echo changed >/root/kept"); got != "kept\n" {
			t.Errorf("the branch sees %q", got)
		}
	}
	if info.Can.BranchRunning {
		s.wantState(t, source, nil, fleet.Running)
		if s.traits.Guest {
			if got := s.sh(t, source.Name, "cat /root/kept"); got != "kept\n" {
				t.Errorf("the source sees what its branch wrote: %q", got)
			}
		}
	}
	_, err = s.Branch(ctx(t), source.Name, fleet.BranchSpec{Name: child})
	wantCode(t, err, fleet.CodeConflict)
	_, err = s.Branch(ctx(t), source.Name, fleet.BranchSpec{Name: "Bad Name"})
	wantCode(t, err, fleet.CodeInvalid)
	plain := s.running(t, "plain", fleet.StartOptions{})
	_, err = s.Branch(ctx(t), plain.Name, fleet.BranchSpec{Name: name("child")})
	if err != nil { // an engine may be able to branch anything
		wantCode(t, err, fleet.CodeConflict)
	}
	// A source with branches is deleted after them, or refuses by their name.
	if _, err := s.Delete(ctx(t), source.Name); err != nil {
		wantCode(t, err, fleet.CodeConflict)
		if !strings.Contains(err.Error(), child) {
			t.Errorf("the refusal does not name %s: %v", child, err)
		}
	}
}

func testPull(t *testing.T, s *suite) {
	info, err := s.Info(ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	if !info.Can.Pull || s.traits.Image == "" {
		t.Skip("the fleet pulls no image that the suite could name")
	}
	m := s.running(t, "pull", fleet.StartOptions{})
	img, err := s.Pull(ctx(t), m.Name, s.traits.Image)
	if err != nil {
		t.Fatal(err)
	}
	if img.Reference == "" || !strings.HasPrefix(img.Digest, "sha256:") || img.OS == "" {
		t.Errorf("pulled %+v", img)
	}
	_, err = s.Pull(ctx(t), m.Name, "")
	wantCode(t, err, fleet.CodeInvalid)
}

func testLogs(t *testing.T, s *suite) {
	m := s.create(t, "logs")
	page, err := s.Logs(ctx(t), m.Name, fleet.LogQuery{Tail: 100})
	if err != nil || len(page.Lines) != 0 && !s.traits.Remote || page.Cursor == "" {
		t.Fatalf("a machine that never ran: %+v, %v", page, err)
	}
	if _, err := s.Start(ctx(t), m.Name, fleet.StartOptions{}); err != nil {
		t.Fatal(err)
	}
	first, err := s.Logs(ctx(t), m.Name, fleet.LogQuery{Cursor: page.Cursor, Tail: 100})
	if err != nil {
		t.Fatal(err)
	}
	all, err := s.Logs(ctx(t), m.Name, fleet.LogQuery{Tail: 10000})
	if err != nil {
		t.Fatal(err)
	}
	rest, err := s.Logs(ctx(t), m.Name, fleet.LogQuery{Cursor: first.Cursor, Tail: 100})
	if err != nil {
		t.Fatal(err)
	}
	// A console may grow while it is read, so what was seen is the beginning of it.
	seen := slices.Concat(page.Lines, first.Lines, rest.Lines)
	if len(first.Lines) == 0 || first.Gap || rest.Gap || fmt.Sprint(all.Lines[:min(len(seen), len(all.Lines))]) != fmt.Sprint(seen[:min(len(seen), len(all.Lines))]) {
		t.Errorf("after the cursor: %q and %q; in all: %q", first.Lines, rest.Lines, all.Lines)
	}
	if one, err := s.Logs(ctx(t), m.Name, fleet.LogQuery{Tail: 1}); err != nil || len(one.Lines) != 1 {
		t.Errorf("tail 1: %q, %v", one.Lines, err)
	}
}

func testLogsRefused(t *testing.T, s *suite) {
	m, other := s.create(t, "logs-a"), s.create(t, "logs-b")
	page, err := s.Logs(ctx(t), m.Name, fleet.LogQuery{Tail: 10})
	if err != nil {
		t.Fatal(err)
	}
	for _, cursor := range []string{"x", "n:100", strings.Repeat("A", 40), page.Cursor + "A"} {
		_, err := s.Logs(ctx(t), m.Name, fleet.LogQuery{Cursor: cursor, Tail: 10})
		wantCode(t, err, fleet.CodeInvalid)
	}
	_, err = s.Logs(ctx(t), other.Name, fleet.LogQuery{Cursor: page.Cursor, Tail: 10})
	wantCode(t, err, fleet.CodeInvalid)
	for _, tail := range []int{-1, 0, 10001} {
		_, err := s.Logs(ctx(t), m.Name, fleet.LogQuery{Tail: tail})
		wantCode(t, err, fleet.CodeInvalid)
	}
}
