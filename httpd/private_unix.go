//go:build unix

package httpd

import (
	"io/fs"
	"os"
	"syscall"
)

// openToOthers reports whether somebody beside its owner, who must be us or root, has
// one of the permissions.
func openToOthers(info fs.FileInfo, permissions fs.FileMode) bool {
	if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Uid != 0 && int(st.Uid) != os.Geteuid() {
		return true
	}
	return info.Mode().Perm()&permissions != 0
}
