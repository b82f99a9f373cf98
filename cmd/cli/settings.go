package cli

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"smol-mcp/fleet"
	"smol-mcp/httpd"
)

// Config is every setting: a field here and a line in [settings] each, so the
// number of fields is the number of settings.
type Config struct {
	Targets           string
	Engine            string
	Smolvm            string
	MinSmolvm         string
	LocalURL          string
	CloudURL          string
	CloudToken        string
	CloudTokenFile    string
	RuntimeDir        string
	MachinePrefix     string
	MemoryMB          int
	CPUs              int
	NetworkDefault    string
	RunOnceNetwork    string
	MountRoots        []string
	MaxMachines       int
	EphemeralTTLSecs  int
	EphemeralIdleSecs int
	CrashGraceSecs    int
	ExecTimeoutSecs   int
	MaxExecSecs       int
	WaitSecs          int
	MaxOutputBytes    int
	ReadyTimeoutSecs  int
	ServeStartSecs    int
	LogsTail          int
	LogsPollSecs      int
	LogFormat         string
	HTTPHost          string
	HTTPPort          int
	HTTPPath          string
	HTTPIdleSecs      int
	HTTPMaxSessions   int
	HTTPHosts         []string
	HTTPOrigins       []string
	HTTPCert          string
	HTTPKey           string
	AuthToken         string
	AuthTokenFile     string
	HTTPTokensFile    string
}

// setting is where one field of a Config comes from.
type setting struct {
	key   string // in the file
	env   string
	field any // *int, *string or *[]string
	kind  kind
	help  string // for people, beginning in lower case, without the bounds
}

// settings is the table of all settings, bound to the fields of c.
func settings(c *Config) []setting {
	const day = 24 * 60 * 60
	return []setting{
		{"targets", "SMOL_MCP_TARGETS", &c.Targets, choice{"auto", "local", "cloud", "both"}, "where machines may be made: on this computer, in smol cloud, or both; auto is both when a cloud key is set, else local"},
		{"engine", "SMOL_MCP_ENGINE", &c.Engine, choice{"auto", "smolvm", "qemu"}, "what runs local machines; auto takes smolvm where it is installed"},
		{"smolvm", "SMOLVM", &c.Smolvm, text{def: "smolvm", check: notEmpty}, "the smolvm program: a path, or a name looked up on PATH"},
		{"minSmolvm", "SMOL_MCP_MIN_SMOLVM", &c.MinSmolvm, text{def: "1.14.0", check: checkVersion}, "oldest smolvm to work with; empty turns the check off"},
		{"localUrl", "SMOL_LOCAL_URL", &c.LocalURL, text{check: checkLocalURL}, "where the engine is, as unix:///run/user/1000/smolvm.sock (started there if need be) or http://127.0.0.1:8080; empty finds or starts one"},
		{"cloudUrl", "SMOL_CLOUD_URL", &c.CloudURL, text{def: fleet.DefaultCloudURL, check: checkCloudURL}, "where smol cloud answers"},
		{"cloudToken", "SMOL_CLOUD_TOKEN", &c.CloudToken, text{secret: true, check: checkKey}, "key for smol cloud; a file with it must be private"},
		{"cloudTokenFile", "SMOL_CLOUD_TOKEN_FILE", &c.CloudTokenFile, text{check: checkAbsolute}, "private file with the key, looked at again when it changes; without a key, targets cloud and both use the login of the smolvm program"},
		{"runtimeDir", "SMOL_MCP_RUNTIME_DIR", &c.RuntimeDir, text{check: checkAbsolute}, "directory of records, sockets and the engine's log, private to you; empty chooses one below XDG_RUNTIME_DIR or the home directory"},
		{"machinePrefix", "SMOL_MCP_MACHINE_PREFIX", &c.MachinePrefix, text{def: "mcp-", check: checkPrefix}, "first part of the names that are made up for machines"},
		{"memoryMb", "SMOL_MCP_MEMORY_MB", &c.MemoryMB, whole{2048, 64, 1 << 20}, "memory of a new machine in MiB, where the call names none; the built-in engine refuses less than 128"},
		{"cpus", "SMOL_MCP_CPUS", &c.CPUs, whole{2, 1, 64}, "virtual CPUs of a new machine, where the call names none"},
		{"networkDefault", "SMOL_MCP_NETWORK_DEFAULT", &c.NetworkDefault, choice{"blocked", "open"}, "egress of create-machine, where the call says nothing"},
		{"runOnceNetwork", "SMOL_MCP_RUN_ONCE_NETWORK", &c.RunOnceNetwork, choice{"blocked", "open"}, "egress of run-once, where the call says nothing"},
		{"mountRoots", "SMOL_MCP_MOUNT_ROOTS", &c.MountRoots, list{checkAbsolute}, "directories of this computer below which machines may mount; none refuses every mount"},
		{"maxMachines", "SMOL_MCP_MAX_MACHINES", &c.MaxMachines, whole{0, 0, 100000}, "machines in the fleet at once, whoever made them; more are refused; 0 sets no limit"},
		{"ephemeralTtlSecs", "SMOL_MCP_EPHEMERAL_TTL_SECS", &c.EphemeralTTLSecs, whole{3600, 1, 30 * day}, "life of an ephemeral machine in the cloud"},
		{"ephemeralAutoStopSecs", "SMOL_MCP_EPHEMERAL_AUTO_STOP_SECS", &c.EphemeralIdleSecs, whole{900, 1, 30 * day}, "an ephemeral machine in the cloud stops when idle for this long"},
		{"crashGraceSecs", "SMOL_MCP_CRASH_GRACE_SECS", &c.CrashGraceSecs, whole{600, 0, 30 * day}, "machines of a crashed session wait this long for somebody to use them again"},
		{"execTimeoutSecs", "SMOL_MCP_EXEC_TIMEOUT_SECS", &c.ExecTimeoutSecs, whole{120, 1, day}, "a command is killed after this, where the call says nothing"},
		{"maxExecTimeoutSecs", "SMOL_MCP_MAX_EXEC_TIMEOUT_SECS", &c.MaxExecSecs, whole{900, 1, day}, "longest timeout that a call may ask for; in the background it is 24 h"},
		{"waitSecs", "SMOL_MCP_WAIT_SECS", &c.WaitSecs, whole{45, 0, 300}, "run-command answers with what there is after this, and the command goes on"},
		{"maxOutputBytes", "SMOL_MCP_MAX_OUTPUT_BYTES", &c.MaxOutputBytes, whole{65536, 256, 4 << 20}, "output per stream, file page and log page in one answer; an answer as a whole stays within some 50,000 characters of JSON, in proportion to this setting, so it may show less of them, with a mark"},
		{"readyTimeoutSecs", "SMOL_MCP_READY_TIMEOUT_SECS", &c.ReadyTimeoutSecs, whole{120, 1, 3600}, "wait for a started machine to answer"},
		{"serveStartTimeoutSecs", "SMOL_MCP_SERVE_START_TIMEOUT_SECS", &c.ServeStartSecs, whole{60, 1, 600}, "wait for a started engine to answer"},
		{"logsTail", "SMOL_MCP_LOGS_TAIL", &c.LogsTail, whole{100, 1, 10000}, "console lines of machine-logs, where the call says nothing"},
		{"logsPollSecs", "SMOL_MCP_LOGS_POLL_SECS", &c.LogsPollSecs, whole{2, 1, 3600}, "pause between two looks at a log that a client follows"},
		{"logFormat", "SMOL_MCP_LOG_FORMAT", &c.LogFormat, choice{"text", "json"}, "of the log on standard error"},
		{"httpHost", "SMOL_MCP_HTTP_HOST", &c.HTTPHost, text{def: "127.0.0.1", check: checkListen}, "address that smol-mcp http listens on; 0.0.0.0 is all of IPv4, :: all"},
		{"httpPort", "SMOL_MCP_HTTP_PORT", &c.HTTPPort, whole{8080, 0, 65535}, "port of it; 0 takes a free one, which the log names"},
		{"httpPath", "SMOL_MCP_HTTP_PATH", &c.HTTPPath, text{def: "/mcp", check: checkEndpoint}, "path of the MCP endpoint"},
		{"httpSessionIdleSecs", "SMOL_MCP_HTTP_SESSION_IDLE_SECS", &c.HTTPIdleSecs, whole{1800, 1, 30 * day}, "an HTTP session in which nothing runs ends after this, with its machines"},
		{"httpMaxSessions", "SMOL_MCP_HTTP_MAX_SESSIONS", &c.HTTPMaxSessions, whole{1000, 1, 100000}, "sessions of one token at once; at the limit one that is idle and has no machines makes room"},
		{"httpAllowedHosts", "SMOL_MCP_HTTP_ALLOWED_HOSTS", &c.HTTPHosts, words{httpd.CheckHost}, "Host headers to accept, with or without a port, separated by commas; empty: those of the loopback where only it is listened on, else any"},
		{"httpAllowedOrigins", "SMOL_MCP_HTTP_ALLOWED_ORIGINS", &c.HTTPOrigins, words{httpd.CheckOrigin}, "Origin headers of browsers to accept, separated by commas; empty: pages of the server's own host"},
		{"httpTlsCert", "SMOL_MCP_HTTP_TLS_CERT", &c.HTTPCert, text{check: checkAbsolute}, "file of the TLS certificate with its chain, read again when it changes; empty: no TLS"},
		{"httpTlsKey", "SMOL_MCP_HTTP_TLS_KEY", &c.HTTPKey, text{check: checkAbsolute}, "file of the certificate's key"},
		{"authToken", "SMOL_MCP_AUTH_TOKEN", &c.AuthToken, text{secret: true, check: checkAuthToken}, "token that HTTP clients have to send; a file with it must be private"},
		{"authTokenFile", "SMOL_MCP_AUTH_TOKEN_FILE", &c.AuthTokenFile, text{check: checkAbsolute}, "private file with that token"},
		{"httpTokensFile", "SMOL_MCP_HTTP_TOKENS_FILE", &c.HTTPTokensFile, text{check: checkAbsolute}, "file of named tokens, each with machines of its own, which smol-mcp token writes; empty: tokens beside the usual settings file, if there is one"},
	}
}

// checkTogether refuses settings that are fine alone and not together.
func (c *Config) checkTogether() (key string, err error) {
	if c.ExecTimeoutSecs > c.MaxExecSecs {
		return "execTimeoutSecs", fmt.Errorf("%d is above the ceiling, maxExecTimeoutSecs (SMOL_MCP_MAX_EXEC_TIMEOUT_SECS), which is %d: no command could run with the default", c.ExecTimeoutSecs, c.MaxExecSecs)
	}
	switch {
	case (c.HTTPCert == "") != (c.HTTPKey == ""):
		return "httpTlsKey", errors.New("a certificate (httpTlsCert) and its key (httpTlsKey) go together, and one is missing")
	case c.AuthToken != "" && c.AuthTokenFile != "":
		return "authTokenFile", errors.New("the token is in authToken (SMOL_MCP_AUTH_TOKEN) already; clear one of the two")
	}
	return "", nil
}

// checkListen accepts addresses and host names, without a port.
func checkListen(s string) error {
	if _, err := netip.ParseAddr(s); err == nil {
		return nil
	}
	if s == "" || strings.ContainsAny(s, ":[]/ ") || httpd.CheckHost(s) != nil {
		return fmt.Errorf("%q is neither an address, as 127.0.0.1 or ::, nor a host name; the port is a setting of its own", s)
	}
	return nil
}

// checkEndpoint accepts a path as it stands in requests.
func checkEndpoint(s string) error {
	if u, err := url.Parse(s); err != nil || u.Path != s || u.EscapedPath() != s || !strings.HasPrefix(s, "/") || path.Clean(s) != s || s == httpd.HealthPath {
		return fmt.Errorf("%q is no path such as /mcp, without escapes, and other than %s", s, httpd.HealthPath)
	}
	return nil
}

func checkAuthToken(s string) error {
	if s == "" {
		return nil
	}
	return httpd.CheckToken(s)
}

func notEmpty(s string) error {
	if strings.TrimSpace(s) == "" {
		return fmt.Errorf("must not be empty")
	}
	return nil
}

// checkCloudURL takes an empty address for the usual one.
func checkCloudURL(s string) error {
	if s == "" {
		return nil
	}
	return fleet.CheckCloudURL(s)
}

func checkVersion(s string) error {
	if s == "" {
		return nil
	}
	parts := strings.Split(s, ".")
	for _, p := range parts {
		if _, err := strconv.ParseUint(p, 10, 31); err != nil || len(parts) > 3 {
			return fmt.Errorf("%q is not a version such as 1.14.0", s)
		}
	}
	return nil
}

func checkAbsolute(s string) error {
	if s != "" && !filepath.IsAbs(s) {
		return fmt.Errorf("%q is not an absolute path", s)
	}
	return nil
}

// checkPrefix tries the longest name that is ever made of a prefix.
func checkPrefix(s string) error {
	if s == "" {
		return fmt.Errorf("must not be empty: it tells the names that we made up from all others")
	}
	if fleet.CheckName(s+"once-0123456789ab") != nil || fleet.CheckName(s+"0123456789ab") != nil {
		return fmt.Errorf("%q makes no machine names: 1 to 23 of a-z, 0-9 and '-', beginning with a letter or digit, without '--'", s)
	}
	return nil
}

// checkLocalURL accepts what an engine on this computer can listen on, and
// nothing that leaves it.
func checkLocalURL(s string) error {
	if s == "" {
		return nil
	}
	u, err := url.Parse(s)
	bad := fmt.Errorf("%q is neither unix:///absolute/path nor http://127.0.0.1:PORT", s)
	switch {
	case err == nil && u.User != nil: // not repeated: it may be a password
		return errors.New("it must carry no user or password; the engine asks for none")
	case err != nil || u.RawQuery != "" || u.Fragment != "" || u.Opaque != "":
		return bad
	case u.Scheme == "unix":
		if u.Host != "" || !strings.HasPrefix(u.Path, "/") || strings.HasSuffix(u.Path, "/") {
			return bad
		}
		return nil
	case u.Scheme != "http" || u.Path != "" && u.Path != "/":
		return bad
	}
	addr, err := netip.ParseAddr(u.Hostname())
	if u.Hostname() != "localhost" && (err != nil || !addr.IsLoopback()) {
		return fmt.Errorf("%q: the host must be this computer's loopback, 127.0.0.1 or localhost", s)
	}
	if port, err := strconv.ParseUint(u.Port(), 10, 16); err != nil || port == 0 {
		return fmt.Errorf("%q: a port of 1 to 65535 is missing", s)
	}
	return nil
}
