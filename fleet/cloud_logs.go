package fleet

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

// cloudEvent is a line of the service's history of a machine.
type cloudEvent struct {
	id, level, message string
	at                 time.Time // zero when it was not said
}

// line renders an event as a line of a log.
func (e cloudEvent) line() string {
	when := ""
	if !e.at.IsZero() {
		when = e.at.UTC().Format(time.RFC3339)
	}
	return cutLine(strings.Join(strings.Fields(when+" "+strings.ToUpper(e.level)+" "+e.message), " "))
}

// Logs returns what the service did with a machine: the guest's own console is not
// to be had. The service gives its whole history at once; the cursor is the id of
// the last event of a page.
func (c *Cloud) Logs(ctx context.Context, name string, q LogQuery) (page LogPage, err error) {
	r := request{op: "read the events of machine " + name}
	if err := CheckAnyName(name); err != nil {
		return LogPage{}, err
	}
	if q.Tail < 1 || q.Tail > maxTail {
		return LogPage{}, r.fail(CodeInvalid, false, fmt.Errorf("tail %d is not within 1..%d", q.Tail, maxTail))
	}
	err = c.with(ctx, r.op, name, func(id string) error {
		after, err := parseEventCursor(q.Cursor, id)
		if err != nil {
			return r.fail(CodeInvalid, false, err)
		}
		events, err := c.events(ctx, r.op, id)
		if err == nil {
			page = eventPage(events, q, after, id)
		}
		return err
	})
	return page, err
}

// events returns a machine's history, oldest first.
func (c *Cloud) events(ctx context.Context, op, id string) ([]cloudEvent, error) {
	r := request{op: op, method: http.MethodGet, path: cloudPath(id, "/events"), wait: cloudReadWait, limit: 32 << 20}
	var raw []json.RawMessage
	if err := c.ask(ctx, r, &raw); err != nil {
		return nil, err
	}
	var events []cloudEvent
	for _, data := range raw {
		var part map[string]json.RawMessage
		if json.Unmarshal(data, &part) != nil || len(part["id"]) == 0 {
			continue
		}
		e := cloudEvent{id: strings.Trim(string(part["id"]), `"`), level: textIn(part["level"]), message: textIn(part["message"])}
		e.at, _ = time.Parse(time.RFC3339, textIn(part["createdAt"]))
		events = append(events, e)
	}
	// The newest comes first, so that events of one moment are in the order in
	// which they happened once the list is turned around.
	if len(events) > 0 && !events[0].at.Before(events[len(events)-1].at) {
		slices.Reverse(events)
	}
	slices.SortStableFunc(events, func(a, b cloudEvent) int { return a.at.Compare(b.at) })
	return events, nil
}

// eventPage returns the newest events, or what follows a cursor.
func eventPage(events []cloudEvent, q LogQuery, after, id string) LogPage {
	page := LogPage{}
	from := max(0, len(events)-q.Tail)
	newest := q.Cursor == ""
	if !newest {
		at := slices.IndexFunc(events, func(e cloudEvent) bool { return e.id == after })
		switch {
		case at >= 0:
			from = at + 1
		case after == "":
			from = 0 // of a history that was empty
		default:
			page.Gap, newest = true, true
		}
	}
	shown := events[from:]
	for _, e := range shown {
		page.Lines = append(page.Lines, e.line())
	}
	before, kept := page.Fit(q.MaxBytes, newest)
	last := after
	if end := before + kept; end > 0 {
		last = shown[end-1].id
	}
	page.Cursor = eventCursor(last, id)
	return page
}

// eventCursor renders the id of an event as an opaque token that belongs to a
// machine.
func eventCursor(event, machine string) string {
	data := append([]byte{2}, event...)
	data = binary.BigEndian.AppendUint32(data, cursorSum(data, machine))
	return base64.RawURLEncoding.EncodeToString(data)
}

func parseEventCursor(token, machine string) (event string, err error) {
	if token == "" {
		return "", nil
	}
	data, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err != nil || len(data) < 5 || data[0] != 2 {
		return "", errEvents
	}
	data, sum := data[:len(data)-4], binary.BigEndian.Uint32(data[len(data)-4:])
	if sum != cursorSum(data, machine) {
		return "", errEvents
	}
	return string(data[1:]), nil
}

var errEvents = errors.New("the cursor is none of this machine's events")
