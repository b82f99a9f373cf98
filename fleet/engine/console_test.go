//go:build linux

package engine_test

import (
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"smol-mcp/fleet"
)

// ticking makes a machine that prints numbers on its console, one after another.
func ticking(t *testing.T, p *program) string {
	t.Helper()
	vm := booted(t, p.client(t), fleet.Spec{Name: "vm"})
	status, _, body := p.ask(t, "POST", "/api/v1/machines/vm/exec",
		`{"command":["/bin/sh","-c","i=0; while :; do echo tick $i; i=$((i+1)); usleep 50000; done >/dev/console"],"background":true}`)
	if status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	return vm
}

// consoleTicks returns the numbers that the console has, and its other lines.
func consoleTicks(t *testing.T, p *program, vm string) (numbers []int, others []string) {
	t.Helper()
	page, err := p.client(t).Logs(t.Context(), vm, fleet.LogQuery{Tail: 10000})
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range page.Lines {
		var n int
		if _, err := fmt.Sscanf(line, "tick %d", &n); err == nil {
			numbers = append(numbers, n)
		} else {
			others = append(others, line)
		}
	}
	return numbers, others
}

// lastTick is the last number on the console, -1 before the first.
func lastTick(t *testing.T, p *program, vm string) int {
	t.Helper()
	numbers, _ := consoleTicks(t, p, vm)
	if len(numbers) == 0 {
		return -1
	}
	return numbers[len(numbers)-1]
}

// What a machine prints while no engine runs is there when one runs again.
func TestConsoleWithoutEngine(t *testing.T) {
	t.Parallel()
	p := spawn(t, nil)
	vm := ticking(t, p)
	for range 2 {
		before := lastTick(t, p, vm)
		eventually(t, "the machine prints", func() bool { return lastTick(t, p, vm) > before+3 })
		before = lastTick(t, p, vm)
		p.kill(t, syscall.SIGTERM)
		p.exec(t)
		eventually(t, "what it printed is there", func() bool { return lastTick(t, p, vm) > before+3 })
	}
	numbers, others := consoleTicks(t, p, vm)
	for i, n := range numbers { // in the moment of a hand-over one may be lost
		if i > 0 && n != numbers[i-1]+1 && n != numbers[i-1]+2 {
			t.Fatalf("after %d comes %d of %v", numbers[i-1], n, numbers)
		}
	}
	if text := strings.Join(others, "\n"); strings.Contains(text, "not kept") {
		t.Errorf("the console has %q", others)
	}
}

// An engine that is killed cannot see to the console: what is printed until the next
// one is lost, and that is said.
func TestConsoleAfterKill(t *testing.T) {
	t.Parallel()
	p := spawn(t, nil)
	vm := ticking(t, p)
	eventually(t, "the machine prints", func() bool { return lastTick(t, p, vm) > 3 })
	p.again(t)
	eventually(t, "the machine is listened to again", func() bool {
		page, err := p.client(t).Logs(t.Context(), vm, fleet.LogQuery{Tail: 10000})
		must(t, err)
		_, after, told := strings.Cut(strings.Join(page.Lines, "\n"), "smol-engine: what was printed while no engine ran is not kept")
		return told && strings.Contains(after, "tick ")
	})
	sh(t, p.client(t), vm, "true")
}
