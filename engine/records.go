package engine

import (
	"context"
	"encoding/binary"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/tablet"
)

// put replaces the value of a row of the METADATA tablet by what change makes
// of the old one (nil for none), durably; nil deletes the row. An error of
// change, and any other that comes before the change is in the log, is joined
// with metadata.ErrNotApplied.
func (s *Store) put(ctx context.Context, key []byte, change func(old []byte) ([]byte, error)) error {
	pos, err := s.meta.UpdateAsync(ctx, key, func(v *tablet.View, b *tablet.Batch) error {
		_, old, ok, err := v.Newest(nil, 0, nil)
		if err != nil {
			return err
		}
		if ok && old == nil {
			old = []byte{}
		}
		next, err := change(old)
		if err != nil {
			return err
		}
		if next == nil {
			b.DeleteRow()
		} else {
			b.Set(0, nil, 0, next)
		}
		return nil
	})
	if err != nil {
		return notApplied{err}
	}
	// Whoever gives up waiting would not know what is stored.
	return s.meta.Wait(context.WithoutCancel(ctx), pos)
}

// notApplied is an error that also is metadata.ErrNotApplied.
type notApplied struct{ error }

func (e notApplied) Unwrap() []error { return []error{e.error, metadata.ErrNotApplied} }

// get returns the durable value of a row of the METADATA tablet.
func (s *Store) get(ctx context.Context, key []byte) (value []byte, ok bool, err error) {
	_, value, ok, err = s.meta.View(ctx, key).Newest(nil, 0, nil)
	return value, ok, err
}

// list calls emit for the rows of the METADATA tablet that start with prefix.
// The slices are valid during the call only.
func (s *Store) list(ctx context.Context, prefix []byte, emit func(key, value []byte) error) error {
	q, err := tablet.NewQuery(metaSchema, nil, false)
	if err != nil {
		return err
	}
	w := &lister{emit: emit}
	var stats scan.Stats
	rest := []row.Range{row.Prefix(prefix)}
	for len(rest) > 0 {
		if rest, _, err = s.meta.Read(ctx, q, rest, 0, w, &stats); err != nil {
			return err
		}
	}
	return nil
}

type lister struct {
	emit  func(key, value []byte) error
	key   []byte
	value []byte
}

func (l *lister) StartRow(key []byte)   { l.key = append(l.key[:0], key...) }
func (l *lister) Cell(c *row.Cell)      { l.value = append(l.value[:0], c.Value...) }
func (l *lister) EndRow() (bool, error) { return false, l.emit(l.key, l.value) }
func (l *lister) Scanned([]byte)        {}
func (l *lister) Flush() error          { return nil }

var _ scan.Writer = (*lister)(nil)

func recordKey(key string) []byte { return append([]byte{'r'}, key...) }

// A record's value is stored behind its version.
func splitRecord(key string, b []byte) (value []byte, version uint64, err error) {
	if len(b) < 8 {
		return nil, 0, fault.New(fault.Corruption, "record %q has %d bytes", key, len(b))
	}
	return b[8:], binary.BigEndian.Uint64(b), nil
}

// GetRecord implements backend.Records.
func (s *Store) GetRecord(ctx context.Context, key string) ([]byte, uint64, error) {
	b, ok, err := s.get(ctx, recordKey(key))
	if err != nil {
		return nil, 0, err
	}
	if !ok {
		return nil, 0, fault.New(fault.NotFound, "record %q does not exist", key)
	}
	return splitRecord(key, b)
}

// PutRecord implements backend.Records.
func (s *Store) PutRecord(ctx context.Context, key string, value []byte, version uint64) (uint64, error) {
	var next uint64
	err := s.put(ctx, recordKey(key), func(old []byte) ([]byte, error) {
		// Versions of a key grow over its deletions too, or a compare-and-set
		// could take a new record for the old one.
		if err := checkVersion(key, old, version); err != nil {
			return nil, err
		}
		next = s.newID()
		return append(binary.BigEndian.AppendUint64(nil, next), value...), nil
	})
	return next, err
}

// DeleteRecord implements backend.Records.
func (s *Store) DeleteRecord(ctx context.Context, key string, version uint64) error {
	return s.put(ctx, recordKey(key), func(old []byte) ([]byte, error) {
		return nil, checkVersion(key, old, version)
	})
}

func checkVersion(key string, old []byte, version uint64) error {
	var have uint64
	if old != nil {
		var err error
		if _, have, err = splitRecord(key, old); err != nil {
			return err
		}
	}
	if have != version {
		return fault.New(fault.Aborted, "record %q has version %d, not %d", key, have, version)
	}
	return nil
}

// ListRecords implements backend.Records.
func (s *Store) ListRecords(ctx context.Context, prefix string, emit func(key string, value []byte, version uint64) error) error {
	return s.list(ctx, recordKey(prefix), func(key, b []byte) error {
		value, version, err := splitRecord(string(key[1:]), b)
		if err != nil {
			return err
		}
		return emit(string(key[1:]), append([]byte(nil), value...), version)
	})
}
