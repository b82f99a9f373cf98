package cli

import (
	"runtime"
	"runtime/debug"
)

// version is what clients are told.
const version = "0.2.0"

// fullVersion adds the commit and the platform, as far as the build knows.
func fullVersion() string {
	v := version
	var revision, modified string
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				revision = s.Value[:min(12, len(s.Value))]
			case "vcs.modified":
				if s.Value == "true" {
					modified = "+changes"
				}
			}
		}
	}
	if revision != "" {
		v += " (" + revision + modified + ")"
	}
	return v + " " + runtime.GOOS + "/" + runtime.GOARCH + " " + runtime.Version()
}
