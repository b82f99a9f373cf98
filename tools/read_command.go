package tools

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"smol-mcp/fleet"
)

type readCommandIn struct {
	Name         string `json:"name"`
	CommandID    string `json:"commandId"`
	Stream       string `json:"stream"`
	Offset       *int64 `json:"offset"`
	StderrOffset *int64 `json:"stderrOffset"`
	WaitSecs     int    `json:"waitSecs"`
}

// readCommandOut is how a command stands, and where its streams go on.
type readCommandOut struct {
	runOut
	NextOffset       int64 `json:"nextOffset"`
	NextStderrOffset int64 `json:"nextStderrOffset"`
}

func commandIDArgument() field {
	return required("commandId", text("Of a result."))
}

// maxOffset bounds offsets in bytes.
const maxOffset = 1 << 50

func readCommand() tool {
	return define(tool{
		name:  "read-command",
		title: "Read command",
		description: "Reads how a command of run-command stands and any byte that it has printed. Use it to wait for a command that was running, to follow one, or for output that a result left out; " +
			"for other files use read-file, to find a lost commandId get-machine. Works for a day, also after client or server were restarted, and from other sessions. " +
			"Without an offset long output comes as head, gap and tail; with one, in pages: go on at nextOffset. Starts no machine: one that is off is NOT_READY. If its end was not seen exitCode is null and note says why; an unknown id is NOT_FOUND.",
		hints: hints{readOnly: true, idempotent: true, openWorld: true},
		in: arguments(nameArgument(), commandIDArgument(),
			optional("stream", standard(oneOf("What to give.", "stdout", "stderr", "both"), "both")),
			optional("offset", between("Byte to begin at; with both, of stdout.", 0, maxOffset)),
			optional("stderrOffset", between("The same for stderr, with both.", 0, maxOffset)),
			optional("waitSecs", standard(between("Seconds to wait for its end.", 0, 300), 0))),
		out: alsoOutcome(required("nextOffset", integer("Where stream goes on; with both, stdout.")), required("nextStderrOffset", integer(""))),
	}, (*call).readCommand)
}

func (c *call) readCommand(ctx context.Context, in readCommandIn) (readCommandOut, error) {
	if err := checkCommandID(in.CommandID); err != nil {
		return readCommandOut{}, err
	}
	limit := time.Now().Add(time.Duration(in.WaitSecs) * time.Second)
	if in.WaitSecs > 0 {
		c.stage("waiting for command %s in %s", in.CommandID, in.Name)
		if err := c.isOn(ctx, in.Name); err != nil && !isPassing(err) {
			return readCommandOut{}, c.nearby(ctx, in.Name, err)
		}
		c.await(ctx, in.Name, in.CommandID, time.Until(limit))
	}
	wants := in.wants()
	parts := c.partsOf(wants)
	s, err := c.lookUntil(ctx, in.Name, in.CommandID, parts, limit)
	if err == nil && s.state == "gone" {
		err = unknownCommand(in.Name, in.CommandID)
	}
	if err != nil {
		return readCommandOut{}, c.nearby(ctx, in.Name, changedNothing(err))
	}
	return c.told(in, wants, parts, s), nil
}

// lookUntil is look, again after failures that may pass, until limit.
func (c *call) lookUntil(ctx context.Context, name, id string, parts [2]part, limit time.Time) (standing, error) {
	for pause := time.Second; ; pause = min(2*pause, 10*time.Second) {
		s, err := c.look(ctx, name, id, parts)
		if err == nil || !isPassing(err) || time.Until(limit) < pause {
			return s, err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return s, err
		}
	}
}

// changedNothing is the error of a request that only looked, whatever became of it.
func changedNothing(err error) error {
	var e *fleet.Error
	if !errors.As(err, &e) || !e.MaybeDone {
		return err
	}
	looked := *e
	looked.MaybeDone = false
	return &looked
}

// isPassing reports whether the next look at a command may succeed after an error of one.
func isPassing(err error) bool { return !isPermanent(err) && fleet.CodeOf(err) != fleet.CodeNotReady }

// checkCommandID refuses what cannot be an id of a command; it becomes part of paths.
func checkCommandID(id string) error {
	if len(id) != idLength || strings.Trim(id, idLetters) != "" {
		return invalid("commandId "+fleet.Quote(id), fmt.Sprintf("an id has %d small letters and digits, as in the result of run-command", idLength))
	}
	return nil
}

// unknownCommand is the error for an id of which a guest shows nothing.
func unknownCommand(machine, id string) error {
	return &fleet.Error{Code: fleet.CodeNotFound, Op: "look at command " + id + " in machine " + machine,
		Why:  "the guest has nothing of it, so how it ended is not known: it is another machine's, or older than a day, or 200 newer ones have ended, or its files were removed, or went with a restart of the machine",
		Next: "get-machine lists the commands of a machine"}
}

// A want is what is asked of one stream.
type want struct {
	give   bool
	paged  bool // from offset on; else both ends
	offset int64
}

func (in readCommandIn) wants() [2]want {
	w := [2]want{{give: in.Stream != "stderr"}, {give: in.Stream != "stdout"}}
	offsets := [2]*int64{in.Offset, in.StderrOffset}
	if in.Stream == "stderr" && in.Offset != nil {
		offsets[1] = in.Offset
	}
	for i, at := range offsets {
		if at != nil {
			w[i].paged, w[i].offset = true, *at
		}
	}
	return w
}

// partsOf are the blocks that hold what is wanted.
func (c *call) partsOf(wants [2]want) [2]part {
	parts := c.shapedParts()
	for i, w := range wants {
		switch {
		case !w.give:
			parts[i] = part{}
		case w.paged:
			most := int64(c.opts.Limits.MaxOutputBytes)
			parts[i] = part{from: w.offset / block, count: (w.offset%block+most+utf8.UTFMax)/block + 1}
		}
	}
	return parts
}

// told makes a result of what a look found.
func (c *call) told(in readCommandIn, wants [2]want, parts [2]part, s standing) readCommandOut {
	e := ending{id: in.CommandID, kept: true}.stands(s)
	var next [2]int64
	for i, w := range wants {
		if w.give && !w.paged {
			e.outputs[i] = s.output(i, parts[i])
			next[i] = e.outputs[i].total
			continue
		}
		e.outputs[i] = output{total: max(s.sizes[i], 0), skip: true}
		next[i] = w.offset
	}
	e = e.withPaths(s.files)
	c.noteStanding(in.Name, e, s.timeout-e.took)
	out := readCommandOut{runOut: c.outcome(in.Name, e)}
	chars := c.opts.Limits.payloadChars() - jsonLen([]byte(out.Stdout)) - jsonLen([]byte(out.Stderr))
	for _, i := range []int{1, 0} { // standard error first, as in outcome
		if !wants[i].give || !wants[i].paged {
			continue
		}
		share := chars
		if i == 1 && wants[0].give {
			share = chars / 3
		}
		p := c.excerpt(s, i, wants[i], share)
		*[]*string{&out.Stdout, &out.Stderr}[i] = p.text
		next[i] += p.bytes
		chars -= jsonLen([]byte(p.text))
		if p.base64 {
			out.encode(i)
		}
		if next[i] < s.sizes[i] && !p.held {
			out.Truncated = true
			c.overflows(&out.runOut, in.Name, streamNames[i], e.outputs[i])
		}
	}
	out.NextOffset, out.NextStderrOffset = next[0], next[1]
	if in.Stream == "stderr" {
		out.NextOffset = next[1]
	}
	return out
}

// An excerpt is what a result has of a stream from an offset on.
type excerpt struct {
	text   string
	base64 bool
	bytes  int64 // of the stream
	held   bool  // what follows is the beginning of a character that is still being printed
}

// excerpt is what a stream has from an offset on, as far as the budget goes: text
// as long as it is UTF-8, cut between characters, else base64.
func (c *call) excerpt(s standing, i int, w want, chars int) excerpt {
	data := s.data[i]
	known := data[min(w.offset%block, int64(len(data))):]
	known = known[:min(int64(len(known)), max(s.sizes[i]-w.offset, 0))]
	all := w.offset+int64(len(known)) == s.sizes[i]
	if s.state == "running" && all {
		known = known[:len(known)-partial(known)]
	}
	held := w.offset+int64(len(known)) < s.sizes[i] && all
	if len(known) == 0 {
		return excerpt{held: held}
	}
	most := min(len(known), c.opts.Limits.MaxOutputBytes)
	n := max(fit(known, most, chars), firstRune(known))
	if utf8.Valid(known[:n]) {
		return excerpt{text: string(known[:n]), bytes: int64(n), held: held && n == len(known)}
	}
	n = min(most, max(chars/4*3, 1))
	return excerpt{text: base64.StdEncoding.EncodeToString(known[:n]), base64: true, bytes: int64(n), held: held && n == len(known)}
}

// partial is how many bytes at the end of b are the beginning of a character.
func partial(b []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(b); n++ {
		if last := b[len(b)-n:]; utf8.RuneStart(last[0]) {
			if utf8.FullRune(last) {
				return 0
			}
			return n
		}
	}
	return 0
}
