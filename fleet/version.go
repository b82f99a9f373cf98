package fleet

// AtLeast reports whether a release is wanted or later, by its dotted numbers. What
// follows them, as -rc1, does not count.
func AtLeast(version, wanted string) bool { return atLeast(version, wanted) }
