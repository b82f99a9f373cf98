//go:build unix && !linux

package machine

import "fmt"

// shortPath names a directory in few bytes, which this system cannot.
func shortPath(dir string) (string, func() error, error) {
	return "", nil, fmt.Errorf("the path %s is too long for a socket: use a shorter data directory", dir)
}
