package fleet

import (
	"runtime"
	"slices"
	"strings"
)

// engineEnv returns the part of our environment that an engine gets. What it
// has, the processes of its machines can read, so tokens stay here.
func engineEnv(all []string) []string {
	var env []string
	for _, kv := range all {
		name, _, _ := strings.Cut(kv, "=")
		if engineNeeds(name) {
			env = append(env, kv)
		}
	}
	return env
}

func engineNeeds(name string) bool {
	switch name {
	case "SMOLVM_BOOT_BINARY": // machines would die with the engine
		return false
	case "SMOLVM_PUBLISH_ADDR": // ports would be published beyond the loopback
		return false
	case "SMOLVM_GUEST_ROLLOUT_HOST_PORT": // we choose it
		return false
	case "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TZ", "TMPDIR", "DOCKER_CONFIG":
		return true
	}
	if dir, ok := strings.CutPrefix(name, "XDG_"); ok {
		return strings.HasSuffix(dir, "_HOME") || strings.HasSuffix(dir, "_DIR") || strings.HasSuffix(dir, "_DIRS")
	}
	upper := strings.ToUpper(name)
	if runtime.GOOS == "windows" && slices.Contains(strings.Fields(
		"PATH PATHEXT SYSTEMROOT SYSTEMDRIVE WINDIR COMSPEC USERPROFILE APPDATA LOCALAPPDATA PROGRAMDATA PROGRAMFILES TEMP TMP"), upper) {
		return true
	}
	return strings.HasPrefix(name, "SMOLVM_") || slices.Contains(strings.Fields("HTTP_PROXY HTTPS_PROXY NO_PROXY ALL_PROXY"), upper)
}
