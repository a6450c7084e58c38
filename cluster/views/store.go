package views

import (
	"bytes"
	"context"
	"encoding/binary"
	"slices"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/filter"
	"github.com/trestledb/trestle/engine/matview"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/tablet"
	"github.com/trestledb/trestle/engine/varint"
)

// A store is what a tablet has of contributions, and of the outbox.
type store struct {
	t                            *tablet.Tablet
	contribution, expiry, outbox cell.FamilyID
	contributions, expiries      *tablet.Query
	entries                      []*entry // that the outbox had when it was opened
}

// openStore returns the store of a tablet. Everything that was written to it before, by another
// Worker or in an attempt that was given up, is durable then, and seen.
func openStore(ctx context.Context, t *tablet.Tablet, sch *schema.Table, mistake Mistake) (*store, error) {
	s := &store{t: t}
	for name, id := range map[string]*cell.FamilyID{matview.ContributionFamily: &s.contribution, matview.ExpiryFamily: &s.expiry, matview.OutboxFamily: &s.outbox} {
		f, ok := sch.Families[name]
		if !ok {
			return nil, fault.New(fault.Corruption, "table %s has no column family %s", sch.Name, name)
		}
		*id = f.ID
	}
	var err error
	if s.contributions, err = familyQuery(sch, matview.ContributionFamily); err != nil {
		return nil, err
	}
	if s.expiries, err = familyQuery(sch, matview.ExpiryFamily); err != nil {
		return nil, err
	}
	entries, err := familyQuery(sch, matview.OutboxFamily)
	if err != nil {
		return nil, err
	}
	if err := t.Update(ctx, t.Bounds().Start, func(*tablet.View, *tablet.Batch) error { return nil }); err != nil {
		return nil, err
	}
	err = s.scan(ctx, entries, []row.Range{t.Bounds()}, 0, func(key []byte, c *row.Cell) error {
		e, err := parseEntry(key, c.Qualifier, c.Value)
		if err != nil {
			return err
		}
		switch {
		case mistake == SplitLosesOutbox && e.shard != uint64(t.ID()), mistake == MergeLosesShard && !bytes.Equal(key, t.Bounds().Start):
			return nil
		case mistake == SplitBeginsAnew:
			e.shard = uint64(t.ID())
		}
		s.entries = append(s.entries, e)
		return nil
	})
	slices.SortFunc(s.entries, (*entry).compare)
	return s, err
}

func familyQuery(sch *schema.Table, family string) (*tablet.Query, error) {
	return tablet.NewQuery(sch, &filter.Node{Op: filter.ColumnRange, Family: family}, false)
}

// scan calls each with the cells that a query leaves of rows in ranges, of limit rows at
// most, if that is not 0. They are valid during the call.
func (s *store) scan(ctx context.Context, q *tablet.Query, ranges []row.Range, limit int64, each func(key []byte, c *row.Cell) error) error {
	w := &cellReader{each: each}
	var stats scan.Stats
	for rest := slices.Clone(ranges); len(rest) > 0; {
		var err error
		left := limit
		if limit > 0 {
			left -= stats.RowsReturned
		}
		if rest, _, err = s.t.Read(ctx, q, rest, left, w, &stats); err != nil {
			return err
		}
		if limit > 0 && stats.RowsReturned >= limit {
			return nil
		}
	}
	return nil
}

// portion is scan of the first rows of ranges, of limit rows and about portionBytes at most. It
// may give none where the tablet has had many. It returns what is left of the ranges.
func (s *store) portion(ctx context.Context, q *tablet.Query, ranges []row.Range, limit int64, each func(key []byte, c *row.Cell) error) (rest []row.Range, err error) {
	w := &cellReader{each: each, most: portionBytes, mostRows: limit}
	// Not with Read's limit: there is nothing left of ranges for Read once it is reached.
	rest, _, err = s.t.Read(ctx, q, ranges, 0, w, new(scan.Stats))
	return rest, err
}

// A cellReader gives cells to a function.
type cellReader struct {
	each func(key []byte, c *row.Cell) error
	key  []byte
	err  error
	// It is full after so many bytes of values, and after so many rows, if they are not 0.
	most     int
	mostRows int64
	bytes    int // of values
	rows     int64
}

func (r *cellReader) full() bool {
	return r.most > 0 && r.bytes >= r.most || r.mostRows > 0 && r.rows >= r.mostRows
}

func (r *cellReader) StartRow(key []byte) { r.key = append(r.key[:0], key...) }

func (r *cellReader) Cell(c *row.Cell) {
	if r.err == nil {
		r.err = r.each(r.key, c)
		r.bytes += len(c.Value)
	}
}

func (r *cellReader) EndRow() (bool, error) {
	r.rows++
	return r.full(), r.err
}

func (*cellReader) Scanned([]byte) {}
func (*cellReader) Flush() error   { return nil }

// An entry of the outbox is what a batch of contributions means to rows of the view. It is
// a cell: the row is the first of the tablet that has written it, so that one child of a
// split has all entries of a shard.
type entry struct {
	row        []byte
	shard, seq uint64
	value      []byte // for each row of the view: uvarint length, key; uvarint length, payload
	oldest     cell.Seq
	look       bool  // it is of a look at all rows
	held       int64 // of the outbox's memory
}

func (e *entry) compare(o *entry) int { return bytes.Compare(e.qualifier(), o.qualifier()) }

func (e *entry) qualifier() []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(make([]byte, 0, 16), e.shard), e.seq)
}

func parseEntry(row, qualifier, value []byte) (*entry, error) {
	if len(qualifier) != 16 {
		return nil, fault.New(fault.Corruption, "an entry of an outbox has a name of %d bytes", len(qualifier))
	}
	e := &entry{row: bytes.Clone(row), shard: binary.BigEndian.Uint64(qualifier), seq: binary.BigEndian.Uint64(qualifier[8:]), value: bytes.Clone(value)}
	return e, e.each(func([]byte, []byte) {})
}

// each calls visit for the rows of the view, ascending. What it gets aliases the entry.
func (e *entry) each(visit func(key, payload []byte)) error {
	d := varint.Of(e.value)
	for d.Len() > 0 {
		key, payload := d.Bytes(), d.Bytes()
		if d.Bad() {
			return fault.New(fault.Corruption, "an entry of an outbox is malformed: shard %d, number %d", e.shard, e.seq)
		}
		visit(key, payload)
	}
	return nil
}

func appendDelta(b, key, payload []byte) []byte {
	b = append(binary.AppendUvarint(b, uint64(len(key))), key...)
	return append(binary.AppendUvarint(b, uint64(len(payload))), payload...)
}
