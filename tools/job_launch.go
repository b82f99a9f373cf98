package tools

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"smol-mcp/fleet"
)

// begin sends the job, again where the guest says what was amiss, which shows that
// it has not begun. It returns errUnderway when the job goes on without its request.
func (c *call) begin(ctx context.Context, name, file, id string, j job) (reply, error) {
	done := c.toRemove(name)
	for tries := 1; ; tries++ {
		l := c.launching(name, file, id, done, j)
		r, err := c.dispatch(ctx, name, id, j, l)
		switch k := c.contacts.of(name); {
		case l.native && fleet.CodeOf(err) == fleet.CodeUnsupported:
			c.contacts.change(name, func(k contact) contact { k.noJobs = true; return k })
		case errors.Is(err, errNoShell) && k.noGroup && !k.noSetsid:
			c.contacts.change(name, func(k contact) contact { k.noSetsid = true; return k })
		case err != nil:
			return r, err
		case r.word(0) == "nostdin" && tries < 4:
			// The upload went below a workload that came up after it; it is up now.
			if err := c.upload(ctx, name, file, j.stdin); err != nil {
				return r, err
			}
		case r.word(0) == "nogroup" && tries < 4:
			c.contacts.change(name, func(k contact) contact { k.noGroup = true; return k })
		case r.word(0) == "nofiles":
			return r, errNoFiles
		case r.word(0) == "running":
			return r, errUnderway
		default:
			return r, nil
		}
	}
}

// launching is the way to begin j: by the guest itself where it can, else with run.sh.
func (c *call) launching(name, file, id, done string, j job) launch {
	attached := j.wait >= attachedFor && c.attach(name)
	if file == "" && j.stdin != "" {
		file = "-"
	}
	if runner, ok := c.fleet.(fleet.JobRunner); ok && !c.contacts.of(name).noJobs {
		return c.native(runner, name, file, id, done, j, attached)
	}
	cmd, args := c.request(name, file, id, done, j, attached)
	return launch{attached: attached, releaseAfter: attachedFor, send: func(ctx context.Context, sent func()) (reply, error) {
		cmd.Sent = sent
		return c.inGuest(ctx, name, scripts.run(), cmd, args...)
	}}
}

// attach takes one of the places of jobs that keep their requests open, which dispatch gives back.
func (c *call) attach(name string) (ok bool) {
	c.attached.change(name, func(n int) int {
		if ok = n < mostAttached; ok {
			n++
		}
		return n
	})
	return ok
}

// native begins j without a script. Its request ends by itself.
func (c *call) native(runner fleet.JobRunner, name, file, id, done string, j job, attached bool) launch {
	work := fleet.Job{
		Command: fleet.Command{Argv: j.command.argv, Env: j.env, Workdir: j.workdir, Timeout: j.timeout},
		ID:      id, Limit: c.opts.Limits.MaxOutputBytes + 1, Asked: time.Now(), Shown: j.command.shown(), Input: file, Done: strings.Fields(done),
	}
	if attached {
		work.Wait = attachedFor
	}
	if file == "-" {
		work.Stdin = j.stdin
	}
	return launch{native: true, attached: attached, releaseAfter: 2 * attachedFor, send: func(ctx context.Context, sent func()) (reply, error) {
		work.Sent = sent
		return c.converse(ctx, name, false, func() (fleet.Result, error) { return runner.RunJob(ctx, name, work) })
	}}
}

// request is the command that carries j, and the arguments of run.sh.
func (c *call) request(name, file, id, done string, j job, attached bool) (fleet.Command, []string) {
	cmd := fleet.Command{Env: map[string]string{}, Timeout: scriptTimeout}
	for k, v := range j.env {
		cmd.Env[carried+k] = v
	}
	mode, watch := "leave", scripts.watch()
	if attached {
		// Should nobody be there to release it, the fleet ends it.
		mode, watch, cmd.Timeout = "wait", "", j.timeout+execMargin
	}
	switch k := c.contacts.of(name); {
	case k.noSetsid:
		mode = "a" + mode
	case k.noGroup:
		cmd.Argv = []string{"setsid"}
	}
	if file == "-" {
		cmd.Stdin = j.stdin
	}
	names := strings.Join(slices.Sorted(maps.Keys(j.env)), " ")
	return cmd, append([]string{id, strconv.Itoa(c.opts.Limits.MaxOutputBytes + 1), mode, strconv.FormatInt(time.Now().Unix(), 10),
		strconv.Itoa(int(j.timeout / time.Second)), j.command.shown(), j.workdir, file, names, done, watch}, j.command.argv...)
}
