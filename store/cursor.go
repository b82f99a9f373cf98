package store

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"time"
)

// cursor is a row of bucket cursors: how far a session has read a stream of a
// machine. A lost one costs a subscriber one message too many, so cursors
// are written together, now and then.
type cursor struct {
	Token string `json:"token"`
	Seen  int64  `json:"seenMono"`
}

// flushEvery is how often changed cursors are written at most.
const flushEvery = 5 * time.Second

// cursorRef names a cursor of a session.
type cursorRef struct{ uid, stream string }

func (c cursorRef) key(session string) []byte {
	return []byte(session + "\x00" + c.uid + "\x00" + c.stream)
}

// SetCursor remembers how far the session has read a stream of a machine. It is
// written with others, within five seconds and at the session's end.
func (s *Session) SetCursor(ctx context.Context, rec Record, stream, token string) error {
	if rec.UID == "" {
		return nil // nothing is kept of machines without a record
	}
	s.mu.Lock()
	if s.cursors == nil {
		s.cursors = make(map[cursorRef]cursor)
	}
	ref := cursorRef{rec.UID, stream}
	s.cursors[ref] = cursor{token, s.st.host.now()}
	if s.unwritten == nil {
		s.unwritten = make(map[cursorRef]bool)
	}
	s.unwritten[ref] = true
	s.mu.Unlock()
	return s.st.flush(ctx, false)
}

// Cursor returns how far the session has read a stream of a machine: also how
// far its former owner has, whose machine the session took over.
func (s *Session) Cursor(ctx context.Context, rec Record, stream string) (token string, ok bool, err error) {
	ref := cursorRef{rec.UID, stream}
	s.mu.Lock()
	c, ok := s.cursors[ref]
	s.mu.Unlock()
	if ok || rec.UID == "" {
		return c.Token, ok, nil
	}
	err = s.st.view(ctx, func(t *tx) error {
		ok, err = t.get(bCursors, ref.key(s.id), &c)
		return err
	})
	return c.Token, ok, err
}

// flush writes the cursors of all sessions of this process that have changed.
func (s *Store) flush(ctx context.Context, now bool) error {
	s.mu.Lock()
	if !now && time.Since(s.flushed) < flushEvery {
		s.mu.Unlock()
		return nil
	}
	s.flushed = time.Now()
	mine := maps.Clone(s.mine)
	s.mu.Unlock()
	rows := make(map[string]cursor)
	for id, sess := range mine {
		sess.mu.Lock()
		for ref := range sess.unwritten {
			rows[string(ref.key(id))] = sess.cursors[ref]
		}
		clear(sess.unwritten)
		sess.mu.Unlock()
	}
	if len(rows) == 0 {
		return nil
	}
	return unlessOtherSchema(s.update(ctx, func(t *tx) error {
		for k, c := range rows {
			if err := t.put(bCursors, []byte(k), c); err != nil {
				return err
			}
		}
		return nil
	}))
}

// inheritCursors hands the cursors of a machine's former owner to the new one.
func (t *tx) inheritCursors(uid, from, to string) error {
	prefix := []byte(from + "\x00" + uid + "\x00")
	rows := make(map[string]cursor)
	c := t.Bucket([]byte(bCursors)).Cursor()
	for k, _ := c.Seek(prefix); bytes.HasPrefix(k, prefix); k, _ = c.Next() {
		var row cursor
		if ok, err := t.get(bCursors, k, &row); err == nil && ok {
			rows[string(k[len(prefix):])] = row
		}
	}
	for stream, row := range rows {
		if err := t.put(bCursors, cursorRef{uid, stream}.key(to), row); err != nil {
			return err
		}
	}
	return t.dropPrefix(bCursors, prefix)
}

// dropCursors forgets how far the owner of a machine has read its streams.
func (t *tx) dropCursors(r Record) error {
	return t.dropPrefix(bCursors, []byte(r.Session+"\x00"+r.UID+"\x00"))
}

func (t *tx) dropCursorsOf(session string) error {
	return t.dropPrefix(bCursors, []byte(session+"\x00"))
}

func (t *tx) dropPrefix(bucket string, prefix []byte) error {
	var keys [][]byte
	c := t.Bucket([]byte(bucket)).Cursor()
	for k, _ := c.Seek(prefix); bytes.HasPrefix(k, prefix); k, _ = c.Next() {
		keys = append(keys, bytes.Clone(k))
	}
	var err error
	for _, k := range keys {
		err = errors.Join(err, t.Bucket([]byte(bucket)).Delete(k))
	}
	return err
}
