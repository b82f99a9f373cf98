//go:build unix

package cli

import (
	"os"
	"sync"
	"time"
)

// watchParent closes the channel when the process that started us is gone: a
// client that was killed may leave our input open in somebody else's hands.
func watchParent(every time.Duration) (<-chan struct{}, func()) {
	gone, stop := make(chan struct{}), make(chan struct{})
	parent := os.Getppid()
	var done sync.WaitGroup
	done.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
				if os.Getppid() != parent {
					close(gone)
					return
				}
			}
		}
	})
	return gone, func() {
		close(stop)
		done.Wait()
	}
}
