package machine

import (
	"fmt"
	"os"
)

// shortPath names a directory in few bytes, until the returned function is called.
func shortPath(dir string) (string, func() error, error) {
	d, err := os.Open(dir)
	if err != nil {
		return "", nil, err
	}
	return fmt.Sprintf("/proc/self/fd/%d", d.Fd()), d.Close, nil
}
