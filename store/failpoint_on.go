//go:build failpoints && unix

package store

import (
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// failpoint does what SMOL_MCP_FP says for name: a comma-separated list of
// NAME=ACTION@N, where ACTION is kill, stop (until SIGCONT) or sleep:DURATION
// and happens at the Nth time only, or with NAME=ACTION%P at each time with a
// probability of P percent. NAME * is every name.
func failpoint(name string) {
	for i, r := range rules() {
		if r.name != name && r.name != "*" {
			continue
		}
		if r.percent > 0 && rand.IntN(10000) >= int(r.percent*100) || r.percent == 0 && hits(i, name) != r.nth {
			continue
		}
		switch {
		case r.action == "kill":
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		case r.action == "stop":
			syscall.Kill(os.Getpid(), syscall.SIGSTOP)
		default:
			time.Sleep(r.sleep)
		}
	}
}

// Failpoint is failpoint for the packages above this one.
func Failpoint(name string) { failpoint(name) }

type fpRule struct {
	name, action string
	nth          int64
	percent      float64
	sleep        time.Duration
}

var rules = sync.OnceValue(func() []fpRule {
	var all []fpRule
	for _, s := range strings.Split(os.Getenv("SMOL_MCP_FP"), ",") {
		name, rest, ok := strings.Cut(s, "=")
		if !ok {
			continue
		}
		r := fpRule{name: name, nth: 1}
		if a, p, ok := strings.Cut(rest, "%"); ok {
			rest = a
			r.percent, _ = strconv.ParseFloat(p, 64)
		} else if a, n, ok := strings.Cut(rest, "@"); ok {
			rest = a
			r.nth, _ = strconv.ParseInt(n, 10, 64)
		}
		r.action = rest
		if d, ok := strings.CutPrefix(rest, "sleep:"); ok {
			r.action = "sleep"
			r.sleep, _ = time.ParseDuration(d)
		}
		all = append(all, r)
	}
	return all
})

var counters sync.Map // of rule and name to *atomic.Int64

func hits(rule int, name string) int64 {
	c, _ := counters.LoadOrStore(strconv.Itoa(rule)+name, new(atomic.Int64))
	return c.(*atomic.Int64).Add(1)
}

// With SMOL_MCP_FP_HEARTBEAT=DURATION a process is dead when its lock file was
// not touched for that long. It is the negative control of the soak: a stopped process
// is taken for dead.
var silence = sync.OnceValue(func() time.Duration {
	d, _ := time.ParseDuration(os.Getenv("SMOL_MCP_FP_HEARTBEAT"))
	return d
})

func heartbeat(f *os.File) {
	if silence() == 0 {
		return
	}
	go func() {
		for os.Chtimes(f.Name(), time.Now(), time.Now()) == nil {
			time.Sleep(silence() / 6)
		}
	}()
}

func byHeartbeat(f *os.File) (verdict, bool) {
	fi, err := f.Stat()
	if silence() == 0 || err != nil {
		return 0, false
	}
	if time.Since(fi.ModTime()) > silence() {
		return dead, true
	}
	return alive, true
}
