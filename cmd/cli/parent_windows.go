package cli

import (
	"os"
	"time"
)

// watchParent closes the channel when the process that started us is gone.
// The handle names that process for good, so its end needs no polling; the
// wait cannot be broken off, and ends with the process.
func watchParent(time.Duration) (<-chan struct{}, func()) {
	gone := make(chan struct{})
	parent, err := os.FindProcess(os.Getppid())
	if err != nil {
		return gone, func() {} // its input ends all the same
	}
	go func() {
		if _, err := parent.Wait(); err == nil {
			close(gone)
		}
	}()
	return gone, func() {}
}
