package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// The API's routes take ids; only a list of all machines tells which id a name has.

// nameCache remembers ids by name. A machine cannot be renamed, so that an entry
// is wrong only when its machine is gone.
type nameCache struct {
	mu    sync.Mutex
	known map[string]knownMachine
}

// knownMachine is what we know of a machine beside what the service says.
type knownMachine struct {
	id         string
	untouched  bool // made by us and not started since
	branchable bool // was so when it was made; only of untouched ones
	paused     bool // suspended by us and not started since
}

// maxNames bounds the cache; over it, it begins anew.
const maxNames = 10000

func (n *nameCache) of(name string) (knownMachine, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	k, ok := n.known[name]
	return k, ok
}

func (n *nameCache) put(name string, k knownMachine) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.known == nil || len(n.known) >= maxNames {
		n.known = make(map[string]knownMachine)
	}
	n.known[name] = k
}

// meet notes a machine that was seen. What we know of it stays.
func (n *nameCache) meet(name, id string) {
	if old, ok := n.of(name); !ok || old.id != id {
		n.put(name, knownMachine{id: id})
	}
}

// change alters what is known of a machine under each name it was called by.
func (n *nameCache) change(id string, f func(*knownMachine)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for name, k := range n.known {
		if k.id == id {
			f(&k)
			n.known[name] = k
		}
	}
}

// drop forgets a machine that is gone.
func (n *nameCache) drop(id string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for name, k := range n.known {
		if k.id == id {
			delete(n.known, name)
		}
	}
}

// find returns the id of a machine. row is what the service said of it when it had
// to be asked for the id.
func (c *Cloud) find(ctx context.Context, op, name string) (id string, row *cloudMachine, err error) {
	if err := CheckAnyName(name); err != nil {
		return "", nil, err
	}
	if ctx.Err() != nil {
		return "", nil, &Error{Code: CodeOf(ctx.Err()), Op: op, Why: ctx.Err().Error(), Err: ctx.Err()}
	}
	if k, ok := c.names.of(name); ok {
		return k.id, nil, nil
	}
	if isMachineID(name) { // at worst it is a name like an id, and the id is not found
		return name, nil, nil
	}
	m, err := c.lookUp(ctx, op, name)
	if err != nil {
		return "", nil, err
	}
	return m.id, &m, nil
}

// isMachineID reports whether a text is an id as the service makes them.
func isMachineID(s string) bool {
	hex, ok := strings.CutPrefix(s, "mach-")
	return ok && len(hex) == 32 && strings.Trim(hex, "0123456789abcdef") == ""
}

// lookUp finds a machine by name in a list, and else by id.
func (c *Cloud) lookUp(ctx context.Context, op, name string) (cloudMachine, error) {
	rows, err := c.rows(ctx, op)
	if err != nil {
		return cloudMachine{}, err
	}
	var byName, byID []cloudMachine
	for _, m := range rows {
		switch {
		case m.name == name:
			byName = append(byName, m)
		case m.id == name:
			byID = append(byID, m)
		}
	}
	switch {
	case slices.ContainsFunc(byName, func(m cloudMachine) bool { return m.id == "" }):
		return cloudMachine{}, Errorf(CodeInternal, op, "the service lists a machine of this name without its id, so nothing can be asked of it")
	case len(byName) > 1:
		e := Errorf(CodeConflict, op, "%d machines have this name: %s", len(byName), idsOf(byName))
		e.Next = "use the id of the one that is meant in place of the name"
		return cloudMachine{}, e
	case len(byName) == 1:
		return byName[0], nil
	case len(byID) > 0:
		return byID[0], nil
	}
	return cloudMachine{}, &Error{Code: CodeNotFound, Op: op, Why: "the cloud has no machine of this name"}
}

func idsOf(rows []cloudMachine) string {
	var ids []string
	for _, m := range rows {
		ids = append(ids, m.id)
	}
	return Bound(strings.Join(ids, ", "), 256)
}

// with calls do with the id of a machine, and once more with another id when the
// first was remembered of a machine that is gone.
func (c *Cloud) with(ctx context.Context, op, name string, do func(id string) error) error {
	id, row, err := c.find(ctx, op, name)
	if err != nil {
		return err
	}
	err = do(id)
	if !gone(err) {
		return err
	}
	c.names.drop(id)
	if row != nil {
		return err
	}
	m, lookErr := c.lookUp(ctx, op, name)
	if lookErr != nil {
		return lookErr
	}
	if m.id == id {
		return err
	}
	return do(m.id)
}

// unlisted fails unless the list of all machines bears out that there is none of this
// id. A 404 alone may come from something that stands where the service should, and a
// machine that is wrongly taken for gone costs money for as long as nobody
// knows of it.
func (c *Cloud) unlisted(ctx context.Context, r request, id string) error {
	m, err := c.lookUp(ctx, r.op, id)
	switch {
	case err == nil:
		return r.fail(CodeInternal, true, fmt.Errorf("the service does not find the machine, and lists it as %s", Quote(m.word)))
	case CodeOf(err) != CodeNotFound:
		return unsure(err)
	}
	return nil
}

// look asks for one machine by its id.
func (c *Cloud) look(ctx context.Context, op, id string) (cloudMachine, error) {
	r := request{op: op, method: http.MethodGet, path: cloudPath(id, ""), wait: cloudReadWait}
	var m cloudMachine
	if err := c.ask(ctx, r, &m); err != nil {
		return m, noMachine(err)
	}
	if m.id != id {
		return m, r.fail(CodeInternal, false, fmt.Errorf("the answer is about machine %s", Quote(m.id)))
	}
	if m.deleted() {
		e := r.fail(CodeNotFound, false, errors.New("the machine is deleted"))
		e.status = http.StatusNotFound
		return m, e
	}
	c.names.meet(m.label(), id)
	return m, nil
}

// weatherWait is how long a machine is looked for while the service does not answer, when
// what becomes of it is waited for.
const weatherWait = 30 * time.Second

// lookOn is look by somebody who waits for a machine: that the service fails for a
// while, as it does when it is restarted, says nothing of the machine.
func (c *Cloud) lookOn(ctx context.Context, op, id string) (cloudMachine, error) {
	end := c.opts.Now().Add(weatherWait)
	for wait := pollFirst; ; wait = min(2*wait, pollLast) {
		m, err := c.look(ctx, op, id)
		if err == nil || !passing(err) || !c.opts.Now().Before(end) {
			return m, err
		}
		_ = c.opts.Pause(ctx, wait) // the next look says how ctx ended
	}
}

// lists lets callers who want the list at the same time share requests. One joins
// the next request and not the one that runs, which may have been
// answered before what the caller wants to see had happened.
type lists struct {
	mu   sync.Mutex
	now  *listing // runs
	next *listing // begins when now has ended
}

// listing is one request for the list.
type listing struct {
	ctx    context.Context
	cancel context.CancelFunc
	people int
	done   chan struct{} // closed when rows and err are set
	rows   []cloudMachine
	err    error
}

// rows lists all machines of the tenant.
func (c *Cloud) rows(ctx context.Context, op string) ([]cloudMachine, error) {
	l := c.joinList()
	defer c.leaveList(l)
	select {
	case <-l.done:
		return l.rows, during(op, l.err)
	case <-ctx.Done():
		return nil, &Error{Code: CodeOf(ctx.Err()), Op: op, Why: "the list of machines was waited for: " + ctx.Err().Error(), Err: ctx.Err()}
	}
}

func (c *Cloud) joinList() *listing {
	c.lists.mu.Lock()
	defer c.lists.mu.Unlock()
	if c.lists.next == nil {
		l := &listing{done: make(chan struct{})}
		l.ctx, l.cancel = context.WithCancel(c.life)
		c.lists.next = l
	}
	l := c.lists.next
	l.people++
	if c.lists.now == nil {
		c.startList()
	}
	return l
}

// startList begins the next request. c.lists.mu is held.
func (c *Cloud) startList() {
	l := c.lists.next
	c.lists.now, c.lists.next = l, nil
	c.work.Go(func() { // ends with the last who waits for it, and with Close
		l.rows, l.err = c.fetchList(l.ctx)
		c.lists.mu.Lock()
		defer c.lists.mu.Unlock()
		if c.lists.now = nil; c.lists.next != nil {
			c.startList()
		}
		close(l.done)
	})
}

// leaveList gives a request up when nobody waits for it any more.
func (c *Cloud) leaveList(l *listing) {
	c.lists.mu.Lock()
	defer c.lists.mu.Unlock()
	if l.people--; l.people > 0 {
		return
	}
	l.cancel()
	if c.lists.next == l {
		c.lists.next = nil
	}
}

func (c *Cloud) fetchList(ctx context.Context) ([]cloudMachine, error) {
	r := request{op: "list machines", method: http.MethodGet, path: cloudMachines, wait: cloudReadWait, limit: 64 << 20}
	var raw json.RawMessage
	if err := c.ask(ctx, r, &raw); err != nil {
		return nil, notTheService(err)
	}
	rows, skipped, err := readRows(raw)
	if err != nil {
		return nil, r.fail(CodeInternal, false, fmt.Errorf("the answer is not the JSON we know: %w", err))
	}
	if skipped > 0 {
		c.opts.Log.Warn("the cloud lists machines that cannot be read", "skipped", skipped)
	}
	seen := make(map[string]int)
	for _, m := range rows {
		seen[m.label()]++
	}
	for _, m := range rows {
		if seen[m.label()] == 1 && m.id != "" {
			c.names.meet(m.label(), m.id)
		}
	}
	return rows, nil
}

// ofID returns what is known of a machine by its id.
func (n *nameCache) ofID(id string) knownMachine {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, k := range n.known {
		if k.id == id {
			return k
		}
	}
	return knownMachine{id: id}
}
