package tools

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"smol-mcp/fleet"
)

// The scripts that do our work inside a guest. They run in any POSIX shell; each
// says at its top what it takes and prints.
var (
	//go:embed guest/prologue.sh
	prologueScript string
	//go:embed guest/state.sh
	stateScript string
	//go:embed guest/end.sh
	endScript string
	//go:embed guest/run.sh
	runScript string
	//go:embed guest/release.sh
	releaseScript string
	//go:embed guest/watch.sh
	watchScript string
	//go:embed guest/await.sh
	awaitScript string
	//go:embed guest/look.sh
	lookScript string
	//go:embed guest/stop.sh
	stopScript string
	//go:embed guest/list.sh
	listScript string
	//go:embed guest/read.sh
	readScript string
	//go:embed guest/place.sh
	placeScript string
)

// scripts holds the scripts as they are sent.
var scripts = struct{ probe, run, release, watch, await, look, stop, list, read, place func() string }{
	probe:   script(&prologueScript),
	run:     script(&prologueScript, &runScript),
	release: script(&prologueScript, &stateScript, &releaseScript),
	watch:   script(&stateScript, &endScript, &watchScript),
	await:   script(&prologueScript, &stateScript, &awaitScript),
	look:    script(&prologueScript, &stateScript, &lookScript),
	stop:    script(&prologueScript, &stateScript, &endScript, &stopScript),
	list:    script(&stateScript, &listScript),
	read:    script(&prologueScript, &readScript),
	place:   script(&prologueScript, &placeScript),
}

// script joins parts, once, without their comments and indentation.
func script(parts ...*string) func() string {
	return sync.OnceValue(func() string {
		var b strings.Builder
		for _, part := range parts {
			for line := range strings.Lines(*part) {
				if line = strings.TrimLeft(line, " "); !strings.HasPrefix(line, "#") {
					b.WriteString(line)
				}
			}
		}
		return b.String()
	})
}

// errNoShell means that the guest has no shell to run a script with.
var errNoShell = errors.New("the image has no /bin/sh")

// errNoFiles means that a job's files could not be made in the guest.
var errNoFiles = errors.New("the guest has no writable directory, or no space in it")

// A reply is what a script printed.
type reply struct {
	started bool     // this call started the machine, or it has booted since our last one
	boot    string   // names the guest's boot; "-" where it does not tell
	dir     string   // where the guest keeps files of ours; empty when nothing is writable
	line    []string // the words of the second line
	stdout  []byte   // what follows it
	stderr  []byte
	result  fleet.Result
	whole   bool // of an unframed one: stdout and stderr are all that was sent
}

// unframed takes off what run.sh and look.sh put at the ends of their streams, so
// that what was cut off on the way is noticed. stderr tells whether there is one.
func (r reply) unframed(stderr bool) reply {
	const end, cut = "smol1 end\n", "smol1 cut\n"
	var wholeOut, wholeErr bool
	r.stdout, wholeOut = bytes.CutSuffix(r.stdout, []byte(end))
	if stderr {
		r.stderr, wholeErr = bytes.CutSuffix(r.stderr, []byte(end))
	} else {
		r.stderr, wholeErr = nil, true // what is there is the engine's
	}
	r.stdout, r.stderr = bytes.TrimSuffix(r.stdout, []byte(cut)), bytes.TrimSuffix(r.stderr, []byte(cut))
	r.whole = wholeOut && wholeErr
	return r
}

// A contact is what a session's scripts have found out about a machine: that one
// has run there, so that a boot since then is noticed without asking the fleet,
// or what it lacks: a shell to run one with, a process group of its own for each
// command, the program to make one, and jobs of its own.
type contact struct {
	met, noShell, noGroup, noSetsid bool
	noJobs                          bool
	boot                            string // of our last script there, as in [reply]
	dir                             string // where the guest keeps files of ours; empty when not known
}

func (c *call) met(name string) {
	c.contacts.change(name, func(k contact) contact { k.met = true; return k })
}

func (c *call) noShell(name string) {
	c.contacts.change(name, func(k contact) contact { k.noShell = true; return k })
}

// runs reports whether the machine was running before this call, by asking the
// fleet where no earlier call of this session can tell.
func (c *call) runs(ctx context.Context, name string) (bool, error) {
	if c.contacts.of(name).met {
		return true, nil
	}
	m, err := c.fleet.Get(ctx, name)
	if err != nil {
		return false, err
	}
	c.saw(m)
	return m.State == fleet.Running, nil
}

// inGuest runs a script in a machine with one request. cmd gives all but the
// argv, of which it may have the first words; args follow the script.
func (c *call) inGuest(ctx context.Context, name, script string, cmd fleet.Command, args ...string) (reply, error) {
	prefixed := len(cmd.Argv) > 0
	cmd.Argv = append(append(cmd.Argv, "sh", "-c", script, "sh"), args...)
	return c.converse(ctx, name, prefixed, func() (fleet.Result, error) { return c.fleet.Exec(ctx, name, cmd) })
}

// converse makes a request that is answered as a script does. prefixed says that a program before
// the shell may be what is missing.
func (c *call) converse(ctx context.Context, name string, prefixed bool, do func() (fleet.Result, error)) (reply, error) {
	if c.contacts.of(name).noShell {
		return reply{}, errNoShell
	}
	ran, err := c.runs(ctx, name)
	if err != nil {
		return reply{}, err
	}
	res, err := do()
	if err != nil {
		if isNoShell(err.Error()) {
			if !prefixed {
				c.noShell(name)
			}
			return reply{}, errNoShell
		}
		if !c.contacts.of(name).met {
			err = notLoaded(name, err)
		}
		return reply{started: !ran}, err
	}
	r, up, err := parseReply(res)
	if err != nil {
		if isNoShell(string(res.Stderr)) {
			if !prefixed {
				c.noShell(name)
			}
			return reply{}, errNoShell
		}
		return reply{started: !ran, result: res}, &fleet.Error{Code: fleet.CodeUnreachable, Op: "run in machine " + name,
			Why: fmt.Sprintf("the guest answered with exit code %d and %s", res.ExitCode, fleet.Quote(string(res.Stderr))), MaybeDone: true}
	}
	before := c.contacts.of(name)
	c.contacts.change(name, func(k contact) contact { k.met, k.boot, k.dir = true, r.boot, r.dir; return k })
	r.started = !up && (before.met || !ran)
	if before.met && r.boot != "-" && before.boot != "-" {
		r.started = r.boot != before.boot // the mark may have been removed
	}
	return r, nil
}

// notLoaded explains a machine that the fleet shows and yet does not find:
// smolvm serves machines that others made only once it has started them.
func notLoaded(name string, err error) error {
	var e *fleet.Error
	if !errors.As(err, &e) || e.Code != fleet.CodeNotFound || e.Next != "" {
		return err
	}
	hinted := *e
	hinted.Next = "if list-machines shows " + name + ", another program made it: call start-machine once, then again"
	return &hinted
}

// isNoShell recognises the texts with which an engine or its container runtime
// says that it did not find sh. Nothing of the script has run then.
func isNoShell(text string) bool {
	text = strings.ToLower(text)
	return strings.Contains(text, "failed to spawn") && strings.Contains(text, "no such file") ||
		strings.Contains(text, "executable") && strings.Contains(text, "not found")
}

// parseReply splits what a script printed. Without the first line the script
// did not run.
func parseReply(res fleet.Result) (r reply, up bool, err error) {
	first, rest, found := bytes.Cut(res.Stdout, []byte("\n"))
	words := strings.SplitN(string(first), " ", 4)
	if !found || words[0] != "smol1" || len(words) < 4 {
		return reply{}, false, errors.New("no answer of a script")
	}
	r = reply{stderr: res.Stderr, result: res, boot: words[2], dir: words[3]}
	second, body, found := bytes.Cut(rest, []byte("\n"))
	if found {
		r.line, r.stdout = strings.Fields(string(second)), body
	}
	return r, words[1] == "1", nil
}

// word returns the n-th word of the second line, or "".
func (r reply) word(n int) string {
	if n < len(r.line) {
		return r.line[n]
	}
	return ""
}

// scriptTimeout bounds the scripts that only look or move a file.
const scriptTimeout = 30 * time.Second
