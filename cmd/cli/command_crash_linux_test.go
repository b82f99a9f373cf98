package cli

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

var commandKills = flag.Int("command.kills", 42, "how many servers TestCommandsOutliveKills kills")

// killsOfAMachine is how many servers are killed over one machine: its list shows the newest
// commands only, and all are to be on it.
const killsOfAMachine = 6

// Servers, clients and both are killed at random instants: before a command is sent, while its
// request is open, after its release, while it is read. Every command of which a client was
// told, or that the machine's list shows, has the right exit code and every byte once; of one
// whose call never returned either all effects are there or none.
func TestCommandsOutliveKills(t *testing.T) {
	program := build(t, "../smol-mcp")
	t.Run("of servers and clients", func(t *testing.T) {
		place := newKillPlace(t, program)
		for i := range (*commandKills + killsOfAMachine - 1) / killsOfAMachine {
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				t.Parallel()
				m := place.machine(t, i)
				for range min(killsOfAMachine, *commandKills-i*killsOfAMachine) {
					c := m.client()
					m.speak(c)
					m.tick(c)
					m.die(c, m.random.IntN(3))
				}
				m.check()
			})
		}
	})
	t.Run("of engines", func(t *testing.T) { outliveEngines(t, newKillPlace(t, program)) })
}

// outliveEngines kills the engine, alone or with the others. A server that lives on starts
// another engine, and its calls return what they would have.
func outliveEngines(t *testing.T, place *killPlace) {
	m := place.machine(t, 0)
	for kill := range max(*commandKills/8, 4) {
		if kill%killsOfAMachine == 0 && kill > 0 {
			m.check()
			m = place.machine(t, kill)
		}
		c := m.client()
		m.speak(c)
		m.tick(c)
		killEngines(place.data)
		if kill%2 == 1 {
			c.settle()
			for _, one := range m.ran {
				if a := c.answers()[one.call]; one.of == c && a.broken != "" {
					t.Errorf("%s, with its engine killed: %s", one.tag, a.broken)
				}
			}
		}
		m.die(c, m.random.IntN(3))
	}
	m.check()
}

// speak sends what an agent would: one or two new commands, and looks at earlier ones.
func (m *killMachine) speak(c *killClient) {
	for range 1 + m.random.IntN(2) {
		one := m.command(c)
		arguments := map[string]any{"name": m.name, "command": one.line(), "waitSecs": []int{0, 1, 10, 40}[m.random.IntN(4)]}
		if m.random.IntN(4) == 0 {
			arguments["background"] = true
		}
		one.call = c.send("run-command", arguments)
	}
	if len(m.told) > 0 && m.random.IntN(2) == 0 {
		c.send("read-command", map[string]any{"name": m.name, "commandId": m.told[m.random.IntN(len(m.told))], "waitSecs": []int{0, 5}[m.random.IntN(2)], "offset": m.random.IntN(3000)})
	}
	if m.random.IntN(2) == 0 {
		c.send("get-machine", map[string]any{"name": m.name})
	}
}

// tick lets some time pass, in which calls get as far as they get.
func (m *killMachine) tick(c *killClient) {
	least, most := 0, 800
	switch m.random.IntN(4) {
	case 0:
		most = 20
	case 1:
		least, most = 1000, 1800 // over the second of an open request
	}
	time.Sleep(time.Duration(least+m.random.IntN(most-least)) * time.Millisecond) // the instant of the kill
}

// The kinds of deaths.
const (
	serverDies = iota
	clientDies
	bothDie
)

// die kills the server, the client's end, or both, and notes what the client was told.
func (m *killMachine) die(c *killClient, kind int) {
	if kind != clientDies {
		_ = c.cmd.Process.Kill()
	}
	if kind != serverDies {
		c.hangUp()
	}
	_ = c.cmd.Wait() // as it was killed
	c.hangUp()
	<-c.ended
	for _, one := range m.ran {
		a, ok := c.answers()[one.call]
		switch {
		case one.of != c || !ok:
		case a.broken != "":
			m.t.Logf("%s: %s", one.tag, a.broken)
			one.refused = a.notBegun()
		case a.CommandID == "":
			m.t.Errorf("%s: no id in %+v", one.tag, a)
		default:
			one.id = a.CommandID
			m.told = append(m.told, one.id)
			if a.ExitCode != nil && (*a.ExitCode != one.code || a.StdoutBytes != one.chunks*one.sizes[0] || a.StderrBytes != one.chunks*one.sizes[1]) || a.ExitCode == nil && !a.Running {
				m.t.Errorf("%s was told to have ended so: %+v", one.line(), a)
			}
		}
	}
}

// newRandom is a source of random numbers whose seed is told.
func newRandom(t *testing.T) *rand.Rand {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 1))
}
