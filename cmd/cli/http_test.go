package cli

import (
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"smol-mcp/httpd"
	"smol-mcp/tools"
)

// A token with targets has these and no others, and nothing where the server serves none of them.
func TestOpenTargets(t *testing.T) {
	open := func(served string, token httpd.Token) (string, error) {
		t.Helper()
		env := map[string]string{"SMOL_MCP_CONFIG": "", "SMOL_MCP_TARGETS": served, "SMOL_MCP_RUNTIME_DIR": filepath.Join(t.TempDir(), "run"), "SMOL_CLOUD_TOKEN": "smk_none"}
		r, err := resolve(func(name string) (string, bool) { v, ok := env[name]; return v, ok }, "")
		if err != nil {
			t.Fatal(err)
		}
		p := wire(&r.Config, "http", slog.New(slog.DiscardHandler))
		defer closeAll(p.closers)
		s, err := p.open(httpd.Opening{Token: token, Kind: "http", Current: func() httpd.Token { return token }})
		if err != nil {
			return "", err
		}
		return s.(*tools.Session).Target(), nil
	}
	for _, c := range []struct {
		served string
		limit  []string
		target string // empty: there is a choice
	}{
		{"both", nil, ""}, {"both", []string{"local", "cloud"}, ""}, {"both", []string{"local"}, "local"}, {"both", []string{"cloud"}, "cloud"}, {"local", nil, "local"}, {"local", []string{"local", "cloud"}, "local"},
	} {
		if got, err := open(c.served, httpd.Token{Name: "x", Targets: c.limit}); err != nil || got != c.target {
			t.Errorf("%v of %s: %q %v, want %q", c.limit, c.served, got, err, c.target)
		}
	}
	if _, err := open("local", httpd.Token{Name: "x", Targets: []string{"cloud"}}); err == nil || !strings.Contains(err.Error(), "does not serve") {
		t.Errorf("cloud of local: %v", err)
	}
}

// A port that somebody has is a failure, and no wrong setting.
func TestListenTaken(t *testing.T) {
	c := &call{}
	first, err := listen(c, &Config{HTTPHost: "127.0.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	second, err := listen(c, &Config{HTTPHost: "127.0.0.1", HTTPPort: first.Addr().(*net.TCPAddr).Port})
	var wrong *settingError
	if err == nil || errors.As(err, &wrong) || !strings.Contains(err.Error(), "--port choose") {
		t.Errorf("a second server at one port: %v %v", second, err)
	}
}
