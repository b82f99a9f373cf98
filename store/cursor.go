package store

import (
	"bytes"
	"errors"
)

func cursorKey(session, uid, stream string) []byte {
	return []byte(session + "\x00" + uid + "\x00" + stream)
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
