package store

import (
	"bytes"
	"encoding/binary"
	"errors"
)

// claimDue goes through the records whose time has come.
func (s *Store) claimDue(t *tx, c Claims) (claimed, expired []Record, err error) {
	if err := s.register(t); err != nil {
		return nil, nil, err
	}
	keys, err := t.dueKeys(c)
	if err != nil {
		return nil, nil, err
	}
	verdicts := make(map[string]verdict)
	for _, key := range keys {
		r, ok, err := t.record(key)
		if err != nil || !ok {
			continue
		}
		if r.Due <= t.host.now() && (r.Phase == Gone || r.Kind == Persistent && r.Phase == Creating) {
			if err := t.expire(r); err != nil {
				return claimed, nil, err
			}
			expired = append(expired, r)
			continue
		}
		if c.Limit > 0 && len(claimed) == c.Limit || !s.claimable(r, verdicts) || c.Wanted != nil && !c.Wanted(r.Target) {
			continue
		}
		claimed = append(claimed, r)
		if claimed[len(claimed)-1], err = s.claim(t, r); err != nil {
			return claimed, nil, err
		}
	}
	return claimed, expired, nil
}

// dueKeys returns the machines whose due time has come, or that a person does
// not want to wait for, and drops entries that lead nowhere.
func (t *tx) dueKeys(claims Claims) ([]Key, error) {
	now := t.host.now()
	var keys []Key
	var dangling [][]byte
	c := t.Bucket([]byte(bDue)).Cursor()
	for k, _ := c.First(); k != nil; k, _ = c.Next() {
		if len(k) < 8 {
			dangling = append(dangling, bytes.Clone(k))
			continue
		}
		due := int64(binary.BigEndian.Uint64(k))
		if due > now && !claims.NoGrace && !claims.Again {
			break
		}
		key, ok := parseKey(k[8:])
		var r Record
		if ok {
			ok, _ = t.get(bMachines, key.bytes(), &r)
		}
		if !ok || r.Due != due {
			dangling = append(dangling, bytes.Clone(k))
			continue
		}
		if due <= now || claims.NoGrace && r.Phase == Ready || claims.Again && r.Phase == Deleting {
			keys = append(keys, key)
		}
	}
	var err error
	for _, k := range dangling {
		err = errors.Join(err, t.Bucket([]byte(bDue)).Delete(k))
	}
	return keys, err
}

// expire drops a record whose name need not be kept any longer.
func (t *tx) expire(r Record) error {
	if r.Kind == Persistent && r.Phase == Creating {
		err := t.notice("the create of %s machine %s was interrupted; if it exists it is kept", r.Target, r.Name)
		if err != nil {
			return err
		}
	}
	return t.dropRecord(r)
}
