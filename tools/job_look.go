package tools

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"smol-mcp/fleet"
)

// lookTimeout bounds a look at a job: the call has waited as long as it was to.
const lookTimeout = 10 * time.Second

// A standing is how a job stands, as the guest says. See guest/look.sh.
type standing struct {
	state   string // exit, running, booted, lost, gone
	code    int    // of state exit
	took    time.Duration
	timed   bool   // took is known
	flag    string // full, lost or -
	why     string // what ended it: stop, timeout or -
	timeout time.Duration
	sizes   [2]int64 // of the streams, in bytes; -1: the file is gone
	files   string   // what the names of its files begin with
	data    [2][]byte
	started bool // the machine was started by looking
}

// A part says which blocks of a stream are wanted.
type part struct{ from, count, tail int64 }

// isOn returns an error when the machine does not run, so that asking in the guest
// would start it, and nothing of a command could be alive.
func (c *call) isOn(ctx context.Context, name string) error {
	if c.halting.of(name) > 0 { // what is asked while it stops may start it again
		return offError(name, "stopping")
	}
	m, err := c.fleet.Get(ctx, name)
	if err != nil {
		return err
	}
	c.saw(m)
	if m.State == fleet.Running || m.State == fleet.Unreachable {
		return nil
	}
	return offError(name, string(m.State))
}

func offError(name, state string) error {
	return &fleet.Error{Code: fleet.CodeNotReady, Op: "look at a command in machine " + name, Err: errOff,
		Why:  "the machine is in state " + state + ": commands end with it, and how this one ended is not known",
		Next: "call start-machine, and look for its effects before you run it again: its output most likely went with /tmp"}
}

// peek runs a script that is about commands, in a machine that runs.
func (c *call) peek(ctx context.Context, name, script string, cmd fleet.Command, args ...string) (reply, error) {
	if err := c.isOn(ctx, name); err != nil {
		return reply{}, err
	}
	cmd.NoStart = true
	r, err := c.inGuest(ctx, name, script, cmd, args...)
	if fleet.CodeOf(err) == fleet.CodeNotReady { // it may have been stopped in between
		if off := c.isOn(ctx, name); off != nil {
			return reply{}, off
		}
	}
	return r, err
}

// errOff is in the chain of errors that say that a machine does not run.
var errOff = errors.New("the machine does not run")

// look asks how a job stands and for parts of its output. It does not start a machine.
func (c *call) look(ctx context.Context, name, id string, parts [2]part) (standing, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	args := []string{halves(id)}
	for _, p := range parts {
		args = append(args, strconv.FormatInt(p.from, 10), strconv.FormatInt(p.count, 10), strconv.FormatInt(p.tail, 10))
	}
	r, err := c.peek(ctx, name, scripts.look(), fleet.Command{Timeout: scriptTimeout, Brief: true}, args...)
	if err != nil {
		return standing{}, err
	}
	return r.standing()
}

// standing reads the answer of look.sh.
func (r reply) standing() (standing, error) {
	r = r.unframed(true)
	s := standing{state: r.word(0), flag: r.word(4), why: r.word(5), started: r.started}
	files, stdout, _ := bytes.Cut(r.stdout, []byte("\n"))
	s.files = string(files)
	if s.state == "" || len(r.line) < 10 {
		return s, &fleet.Error{Code: fleet.CodeInternal, Op: "look at a command", Why: fmt.Sprintf("the guest answered %q", r.line)}
	}
	if code, err := strconv.Atoi(r.word(1)); err == nil {
		s.code = code
	} else if s.state == "exit" {
		return s, &fleet.Error{Code: fleet.CodeInternal, Op: "look at a command", Why: "the guest gave no exit code: " + fleet.Quote(r.word(1))}
	}
	s.took, s.timed = uptimes(r.word(2), r.word(3))
	if secs, err := strconv.Atoi(r.word(7)); err == nil {
		s.timeout = time.Duration(secs) * time.Second
	}
	for i, b := range [2][]byte{stdout, r.stderr} {
		size, err := strconv.ParseInt(r.word(8+i), 10, 64)
		if err != nil {
			size = -1
		}
		s.sizes[i], s.data[i] = size, b
	}
	return s, nil
}

// output is what a look found of a stream, of which p was asked for.
func (s standing) output(i int, p part) output {
	o := s.ends(i, p)
	last := &o.head
	if len(o.tail) > 0 {
		last = &o.tail
	}
	if n := partial(*last); s.state == "running" && n > 0 && (len(o.tail) > 0 || o.whole()) {
		*last = (*last)[:len(*last)-n]
		o.total, o.held = o.total-int64(n), int64(n)
	}
	return o
}

func (s standing) ends(i int, p part) output {
	size, data := max(s.sizes[i], 0), s.data[i]
	left := max(size-p.from*block, 0)
	first := p.count * block
	if left <= first || p.tail == 0 || int64(len(data)) < first {
		return output{head: data[:min(int64(len(data)), left)], total: size}
	}
	head, rest := data[:first], data[first:]
	// As look.sh has it: the last blocks, but none twice.
	begin := max((size+block-1)/block-p.tail, p.from+p.count) * block
	if int64(len(rest)) < size-begin {
		return output{head: head, total: size} // cut off on the way: where it ends is not the stream's end
	}
	rest = rest[:min(int64(len(rest)), max(size-begin, 0))]
	if begin == (p.from+p.count)*block {
		return output{head: data[:first+int64(len(rest))], total: size}
	}
	return output{head: head, tail: rest, total: size}
}

// shapedParts are what a result shows of a long stream: its beginning and its end.
func (c *call) shapedParts() [2]part {
	most := int64(c.opts.Limits.MaxOutputBytes)
	p := part{count: most*2/3/block + 1, tail: most/3/block + 2}
	return [2]part{p, p}
}

// stands puts what a look found into an ending.
func (e ending) stands(s standing) ending {
	e.running, e.code, e.timedOut = s.state == "running", nil, s.why == "timeout" && s.state != "running"
	e.started = e.started || s.started
	if s.timed {
		e.took = s.took
	}
	switch {
	case s.state == "exit" && e.timedOut:
		e.signal = signalOf(s.code)
	case s.state == "exit":
		code := s.code
		e.code = &code
	case s.state == "booted":
		e.say("the guest was booted anew while it ran, so its end was not seen")
	case s.state == "lost" && !e.timedOut:
		e.say("the shell that waited for it was killed, so its end was not seen")
	}
	switch {
	case s.flag == "full":
		e.say("the guest's disk was full when it ended, so some of its output may be missing")
	case s.flag == "lost" || s.sizes[0] < 0 || s.sizes[1] < 0:
		e.say("files with its output were removed, so what it printed is not known")
	}
	return e
}

// say adds to the note of an ending.
func (e *ending) say(what string) {
	if e.note != "" {
		e.note += "; "
	}
	e.note += what
}

// glance looks at a job and takes both ends of its output into e.
func (c *call) glance(ctx context.Context, name string, e ending) (ending, standing, error) {
	parts := c.shapedParts()
	s, err := c.look(ctx, name, e.id, parts)
	if err != nil {
		return e, s, err
	}
	if s.state == "gone" {
		return e, s, nil
	}
	e = e.stands(s)
	e.kept = true
	for i := range e.outputs {
		e.outputs[i] = s.output(i, parts[i])
	}
	return e.withPaths(s.files), s, nil
}

// collected is glance for a job that has ended.
func (c *call) collected(ctx context.Context, name string, e ending) (ending, error) {
	found, s, err := c.glance(ctx, name, ending{id: e.id, started: e.started, took: e.took})
	if err == nil && s.state == "gone" {
		e.say("what it printed is not to be found in the guest")
		return e, nil
	}
	return found, err
}

// withPaths names the guest files of the outputs.
func (e ending) withPaths(files string) ending {
	e.outputs[0].path, e.outputs[1].path = files+".stdout", files+".stderr"
	return e
}

// all is an output of which everything is known.
func all(b []byte) output { return output{head: b, total: int64(len(b))} }

// halves is an id as scripts take it: see guest/state.sh.
func halves(id string) string { return id[:len(id)/2] + "." + id[len(id)/2:] }

// seconds is d in whole seconds, rounded up, not below 0.
func seconds(d time.Duration) string {
	return strconv.FormatInt(int64(max(d+time.Second-1, 0)/time.Second), 10)
}
