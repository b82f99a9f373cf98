package store

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"time"

	bolt "go.etcd.io/bbolt"
)

// schemaVersion of state.db; see the package comment.
const schemaVersion = 1

// The buckets.
const (
	bMeta      = "meta"
	bInstances = "instances"
	bSessions  = "sessions"
	bMachines  = "machines"
	bBySession = "by_session"
	bDue       = "due"
	bCursors   = "cursors"
	bNotices   = "notices"
)

func buckets() []string {
	return []string{bMeta, bInstances, bSessions, bMachines, bBySession, bDue, bCursors, bNotices}
}

// tx is a transaction in terms of rows.
type tx struct {
	*bolt.Tx
	host *Host
}

type schemaRow struct {
	V         int `json:"v"`
	MinReader int `json:"minReader"`
	MinWriter int `json:"minWriter"`
}

type bootRow struct {
	BootID    string `json:"bootId"`
	MachineID string `json:"machineId"`
}

// init makes the buckets of a new file and says what it is.
func (t *tx) init() error {
	for _, b := range buckets() {
		if _, err := t.CreateBucketIfNotExists([]byte(b)); err != nil {
			return err
		}
	}
	return errors.Join(
		t.put(bMeta, []byte("schema"), schemaRow{V: schemaVersion, MinReader: 1, MinWriter: 1}),
		t.put(bMeta, []byte("boot"), bootRow{t.host.BootID, t.host.MachineID}),
		t.put(bMeta, []byte("epoch"), newID()))
}

// The errors of [tx.check], which the committing goroutine mends.
var (
	errOtherBoot   = errors.New("the state file is of another boot")
	errOtherSchema = errors.New("the state file was written by a newer version, which older ones must not change")
)

// unlessOtherSchema drops the error of a file that is too new to be written: a
// session then lives on the ledger and its memory alone. It creates and deletes
// its own machines; the newer version sees them in the ledger, and leaves them
// alone for as long as this process holds its lock.
func unlessOtherSchema(err error) error {
	if errors.Is(err, errOtherSchema) {
		return nil
	}
	return err
}

// checked is what was found in a file's meta rows, and those rows.
type checked struct {
	rows     []byte
	schema   schemaRow
	epoch    string
	boot     bootRow
	readable bool
}

// check refuses a file that this process must not work with, and returns its
// epoch. Rows that are those of the last time are not decoded again.
func (t *tx) check(write bool, last *checked) (epoch string, err error) {
	var rows []byte
	for _, k := range []string{"schema", "boot", "epoch"} {
		if b := t.Bucket([]byte(bMeta)); b != nil {
			rows = append(rows, b.Get([]byte(k))...)
		}
	}
	if !last.readable || !bytes.Equal(rows, last.rows) {
		if *last, err = t.decodeMeta(); err != nil {
			*last = checked{}
			return "", err
		}
		last.rows = rows
	}
	if write && last.schema.MinWriter > schemaVersion {
		return "", errOtherSchema
	}
	if last.boot != (bootRow{t.host.BootID, t.host.MachineID}) {
		return "", errOtherBoot
	}
	return last.epoch, nil
}

func (t *tx) decodeMeta() (c checked, err error) {
	if c.schema, err = t.readable(); err != nil {
		return c, err
	}
	if ok, err := t.get(bMeta, []byte("boot"), &c.boot); err != nil || !ok {
		return c, fmt.Errorf("%w: no boot: %w", ErrCorrupt, err)
	}
	if ok, err := t.get(bMeta, []byte("epoch"), &c.epoch); err != nil || !ok {
		return c, fmt.Errorf("%w: no epoch: %w", ErrCorrupt, err)
	}
	c.readable = true
	return c, nil
}

// readable refuses a file that this version cannot read.
func (t *tx) readable() (schemaRow, error) {
	for _, b := range buckets() {
		if t.Bucket([]byte(b)) == nil {
			return schemaRow{}, fmt.Errorf("%w: no bucket %s", ErrCorrupt, b)
		}
	}
	var v schemaRow
	if ok, err := t.get(bMeta, []byte("schema"), &v); err != nil || !ok {
		return v, fmt.Errorf("%w: no schema: %w", ErrCorrupt, err)
	}
	if v.MinReader > schemaVersion {
		return v, errOtherSchema
	}
	return v, nil
}

// rowFormat is the first byte of every value.
const rowFormat = 1

// checksum covers the key too: a value under another's key is as bad as a
// changed one.
func checksum(key, data []byte) uint32 {
	t := crc32.MakeTable(crc32.Castagnoli)
	return crc32.Update(crc32.Checksum(key, t), t, data)
}

// put writes v as a row and keeps the fields of an older row that v's type
// does not know.
func (t *tx) put(bucket string, key []byte, v any) error {
	b := t.Bucket([]byte(bucket))
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if old, err := open(bucket, key, b.Get(key)); err == nil && old != nil {
		if data, err = keepUnknown(old, data, v); err != nil {
			return err
		}
	}
	row := make([]byte, 5, 5+len(data))
	row[0] = rowFormat
	binary.BigEndian.PutUint32(row[1:], checksum(key, data))
	return b.Put(key, append(row, data...))
}

// get reads a row into v and reports whether it is there. A row that cannot be
// believed is a *badRow.
func (t *tx) get(bucket string, key []byte, v any) (bool, error) {
	data, err := open(bucket, key, t.Bucket([]byte(bucket)).Get(key))
	if err != nil || data == nil {
		return false, err
	}
	if err := json.Unmarshal(data, v); err != nil {
		return false, &badRow{bucket, string(key), err.Error()}
	}
	return true, nil
}

// open returns the JSON of a row.
func open(bucket string, key, row []byte) ([]byte, error) {
	switch {
	case row == nil:
		return nil, nil
	case len(row) < 5 || row[0] != rowFormat:
		return nil, &badRow{bucket, string(key), "unknown format"}
	case binary.BigEndian.Uint32(row[1:]) != checksum(key, row[5:]):
		return nil, &badRow{bucket, string(key), "wrong checksum"}
	}
	return row[5:], nil
}

func (t *tx) drop(bucket string, key []byte) error { return t.Bucket([]byte(bucket)).Delete(key) }

// record returns the record of key with its owner's rows.
func (t *tx) record(key Key) (Record, bool, error) {
	r, ok, err := t.bare(key)
	if err != nil || !ok {
		return Record{}, false, err
	}
	return t.filled(r), true, nil
}

// bare returns the record of key alone.
func (t *tx) bare(key Key) (r Record, ok bool, err error) {
	ok, err = t.get(bMachines, key.bytes(), &r)
	return r, ok, err
}

// filled adds what the owner's rows say. Rows that are missing or bad leave the
// owner unknown, which is no proof of anything.
func (t *tx) filled(r Record) Record {
	r.now = t.host.now()
	t.get(bSessions, []byte(r.Session), &r.sess)
	t.get(bInstances, []byte(r.Instance), &r.inst)
	if r.Claimer != "" {
		var claimer instance
		t.get(bInstances, []byte(r.Claimer), &claimer)
		r.claimerDead = claimer.Dead
	}
	return r
}

// records returns all records that can be believed. The others are noticed by
// [tx.badMachines].
func (t *tx) records() ([]Record, error) {
	var recs []Record
	c := t.Bucket([]byte(bMachines)).Cursor()
	for k, v := c.First(); k != nil; k, v = c.Next() {
		data, err := open(bMachines, k, v)
		if err != nil {
			continue
		}
		var r Record
		if json.Unmarshal(data, &r) != nil || !bytes.Equal(r.Key().bytes(), k) {
			continue
		}
		recs = append(recs, t.filled(r))
	}
	return recs, nil
}

// putRecord writes a record and its index entries: the only way in.
func (t *tx) putRecord(r Record) error {
	key := r.Key().bytes()
	if err := t.unindex(key); err != nil {
		return err
	}
	if err := t.put(bMachines, key, r); err != nil {
		return err
	}
	if r.Session != "" {
		if err := t.Bucket([]byte(bBySession)).Put(sessionKey(r.Session, key), nil); err != nil {
			return err
		}
	}
	if r.Due != 0 {
		return t.Bucket([]byte(bDue)).Put(dueKey(r.Due, key), nil)
	}
	return nil
}

// dropRecord removes a record and its index entries: the only way out. With
// the last record of a session that does not live, the session goes too.
func (t *tx) dropRecord(r Record) error {
	key := r.Key().bytes()
	if err := errors.Join(t.unindex(key), t.drop(bMachines, key), t.dropCursors(r)); err != nil {
		return err
	}
	return t.tidySession(r.Session)
}

// unindex removes the index entries of the stored record.
func (t *tx) unindex(key []byte) error {
	var old Record
	if ok, err := t.get(bMachines, key, &old); err != nil || !ok {
		return nil // a bad row's entries are found dangling later
	}
	err := t.Bucket([]byte(bBySession)).Delete(sessionKey(old.Session, key))
	if old.Due != 0 {
		err = errors.Join(err, t.Bucket([]byte(bDue)).Delete(dueKey(old.Due, key)))
	}
	return err
}

func sessionKey(session string, machine []byte) []byte {
	return append([]byte(session+"\x00"), machine...)
}

func dueKey(due int64, machine []byte) []byte {
	return append(binary.BigEndian.AppendUint64(nil, uint64(due)), machine...)
}

// ofSession returns the records of a session.
func (t *tx) ofSession(id string) ([]Record, error) {
	var recs []Record
	prefix := []byte(id + "\x00")
	c := t.Bucket([]byte(bBySession)).Cursor()
	for k, _ := c.Seek(prefix); bytes.HasPrefix(k, prefix); k, _ = c.Next() {
		key, ok := parseKey(k[len(prefix):])
		if !ok {
			continue
		}
		r, ok, err := t.record(key)
		if err != nil || !ok || r.Session != id { // a bad row, or an index entry without one
			continue
		}
		recs = append(recs, r)
	}
	return recs, nil
}

// tidySession drops a session's row when nothing needs it any more.
func (t *tx) tidySession(id string) error {
	var row session
	if ok, err := t.get(bSessions, []byte(id), &row); err != nil || !ok || row.State == sessionLive {
		return nil
	}
	recs, err := t.ofSession(id)
	if err != nil || len(recs) > 0 {
		return err
	}
	return errors.Join(t.drop(bSessions, []byte(id)), t.dropCursorsOf(id))
}

// Notice is something that a person should know of.
type Notice struct {
	At   time.Time `json:"at"`
	Text string    `json:"text"`
}

// maxNotices is how many are kept.
const maxNotices = 256

func (t *tx) notice(format string, args ...any) error {
	b := t.Bucket([]byte(bNotices))
	seq, err := b.NextSequence()
	if err != nil {
		return err
	}
	if seq > maxNotices {
		if err := b.Delete(binary.BigEndian.AppendUint64(nil, seq-maxNotices)); err != nil {
			return err
		}
	}
	n := Notice{time.Now().Round(time.Second), fmt.Sprintf(format, args...)}
	return t.put(bNotices, binary.BigEndian.AppendUint64(nil, seq), n)
}

func (t *tx) notices() ([]Notice, error) {
	var all []Notice
	c := t.Bucket([]byte(bNotices)).Cursor()
	for k, v := c.First(); k != nil; k, v = c.Next() {
		var n Notice
		if data, err := open(bNotices, k, v); err == nil && json.Unmarshal(data, &n) == nil {
			all = append(all, n)
		}
	}
	return all, nil
}
