package fleettest

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// The executable says where it answers, does what its options and its routes for
// tests say, and ends its guests when it ends.
func TestCloudProgram(t *testing.T) {
	data := t.TempDir()
	p := exec.Command(BuildCloud(t))
	p.Env = []string{"PATH=" + os.Getenv("PATH"), "SMOLCLOUD_DATA_DIR=" + data, "SMOLCLOUD_TOKEN=smk_mine", `SMOLCLOUD_OPTIONS={"Old":true}`}
	out, err := p.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Process.Kill(); p.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || !strings.HasPrefix(line, "http://127.0.0.1:") {
		t.Fatalf("it says %q, %v", line, err)
	}
	a := asker{t, strings.TrimSpace(line), "smk_mine"}
	for _, step := range []struct {
		method, path, body string
		status             int
		says               string
	}{
		{"POST", "/v1/machines", `{"name":"vm","source":{"type":"image","reference":"alpine"},"ttlSeconds":3600,"tags":[]}`, 201, "mach-"},
		{"GET", "/fake/machines", "", 200, `"vm":{"ID":"mach-`},
		{"POST", "/fake/advance?by=59m", "", 200, ""},
		{"GET", "/v1/machines", "", 200, "mach-"},
		{"POST", "/fake/advance?by=1m", "", 200, ""},
		{"GET", "/v1/machines", "", 200, "[]"},
		{"POST", "/fake/plan?tenant=tenant-a&machines=0&running=0", "", 200, ""},
		{"POST", "/v1/machines", `{"name":"vm","source":{"type":"image","reference":"alpine"}}`, 422, "quota"},
		{"POST", "/fake/key?token=smk_mine&tenant=tenant-a&state=revoked", "", 200, ""},
		{"GET", "/v1/machines", "", 401, "revoked_key"},
		{"POST", "/fake/advance?by=x", "", 400, "invalid duration"},
		{"GET", "/fake/else", "", 404, ""},
	} {
		if status, body, _ := a.ask(step.method, step.path, step.body); status != step.status || !strings.Contains(body, step.says) {
			t.Errorf("%s %s: %d %q", step.method, step.path, status, body)
		}
	}
	if log, err := os.ReadFile(filepath.Join(data, "violations.log")); err != nil || string(log) != "POST /v1/machines: body has the unknown field tags\n" {
		t.Errorf("violations %q, %v", log, err)
	}
	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if rest, err := io.ReadAll(out); err != nil || len(rest) > 0 {
		t.Errorf("%q, %v", rest, err)
	}
	if err := p.Wait(); err != nil {
		t.Error(err)
	}
}
