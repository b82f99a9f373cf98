//go:build unix && !linux

package machine

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// begun returns when a process began. It is empty when there is none.
func begun(pid int) string {
	out, err := exec.Command("ps", "-o", "stat=,lstart=", "-p", strconv.Itoa(pid)).Output()
	stat, when, _ := strings.Cut(strings.TrimSpace(string(out)), " ")
	if err != nil || strings.HasPrefix(stat, "Z") {
		return ""
	}
	return strings.TrimSpace(when)
}

// withArgument returns the processes that were started with an argument.
func withArgument(arg string) []int {
	out, err := exec.Command("ps", "-axww", "-o", "pid=,args=").Output()
	if err != nil {
		return nil
	}
	var pids []int
	for line := range bytes.Lines(out) {
		fields := strings.Fields(string(line))
		for _, f := range fields {
			if pid, err := strconv.Atoi(fields[0]); err == nil && f == arg && pid != os.Getpid() {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// bootID names this boot of the computer, by when it was.
func bootID() string {
	tv, err := unix.SysctlTimeval("kern.boottime")
	if err != nil {
		return ""
	}
	return fmt.Sprint(tv.Sec)
}
