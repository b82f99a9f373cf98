package httpd

import "io/fs"

// openToOthers is always false here: file modes do not say who may do what.
func openToOthers(fs.FileInfo, fs.FileMode) bool { return false }
