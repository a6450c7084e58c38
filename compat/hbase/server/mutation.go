package server

import (
	"bytes"
	"encoding/binary"
	"math"

	"github.com/trestledb/trestle/compat/hbase/model"
	"github.com/trestledb/trestle/compat/hbase/pb"
	"github.com/trestledb/trestle/compat/hbase/wire"
	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
)

// A change is one mutation of a client: a put, a delete, an increment or an
// append of one row. It aliases the request.
type change struct {
	kind  pb.MutationProto_MutationType
	row   []byte
	cells []wire.Cell
	// at is the timestamp of a delete without cells, which deletes the row.
	at int64
	// ttl is how long the cells live from their timestamps on, in milliseconds; 0
	// is for good.
	ttl int64
	// quiet says that the client does not want the new cells.
	quiet bool
	times timeRange
	nonce uint64
}

// The attributes of mutations that mean something.
const (
	attrTTL        = "_ttl"
	attrResults    = "_rr_"
	attrACL        = "acl"
	attrVisibility = "VISIBILITY"
)

// deleteTypes are the types of cells by a delete's DeleteType.
var deleteTypes = map[pb.MutationProto_DeleteType]byte{
	pb.MutationProto_DELETE_ONE_VERSION:       wire.TypeDelete,
	pb.MutationProto_DELETE_MULTIPLE_VERSIONS: wire.TypeDeleteColumn,
	pb.MutationProto_DELETE_FAMILY:            wire.TypeDeleteFamily,
	pb.MutationProto_DELETE_FAMILY_VERSION:    wire.TypeDeleteFamilyVersion,
}

// parseChange reads a mutation and its cells of the request's block. Those are
// behind it afterwards, also when it returns an exception; any other error says
// that nothing behind them can be read.
func parseChange(m *pb.MutationProto, block *wire.Cells) (*change, error) {
	ch := &change{kind: m.GetMutateType(), row: m.GetRow(), at: model.Latest, times: allTimes, nonce: m.GetNonce()}
	if m.Timestamp != nil {
		ch.at = int64(m.GetTimestamp())
	}
	var wrong error
	blame := func(format string, args ...any) {
		if wrong == nil {
			wrong = wire.DoNotRetryIO.New(format, args...)
		}
	}
	n := int(m.GetAssociatedCellCount())
	if n < 0 || n > block.Len() {
		return nil, wire.FatalConnection.New("a mutation of %d cells", n)
	}
	if n > 0 {
		ch.cells = make([]wire.Cell, n)
	}
	for i := range ch.cells {
		c := &ch.cells[i]
		if err := block.Next(c); err != nil {
			return nil, wire.FatalConnection.New("%s", err.Error())
		}
		if m.Row == nil && i == 0 {
			ch.row = c.Row
		}
		if !bytes.Equal(c.Row, ch.row) {
			blame("a mutation of row %q has a cell of row %q", shorten(string(ch.row)), shorten(string(c.Row)))
		}
		if c.Timestamp == model.Latest && m.Timestamp != nil {
			c.Timestamp = ch.at
		}
	}
	for _, cv := range m.GetColumnValue() {
		for _, qv := range cv.GetQualifierValue() {
			c := wire.Cell{Row: ch.row, Family: cv.GetFamily(), Qualifier: qv.GetQualifier(), Timestamp: ch.at, Type: wire.TypePut, Value: qv.GetValue(), Tags: qv.GetTags()}
			if qv.Timestamp != nil {
				c.Timestamp = int64(qv.GetTimestamp())
			}
			if qv.DeleteType != nil {
				c.Type = deleteTypes[qv.GetDeleteType()]
			} else if ch.kind == pb.MutationProto_DELETE {
				blame("a delete of %q:%q without its type", shorten(string(c.Family)), shorten(string(c.Qualifier)))
			}
			ch.cells = append(ch.cells, c)
		}
	}
	for _, a := range m.GetAttribute() {
		switch a.GetName() {
		case attrTTL:
			if len(a.GetValue()) != 8 {
				blame("attribute %s of %d bytes; it is 8", attrTTL, len(a.GetValue()))
				continue
			}
			if ch.ttl = int64(binary.BigEndian.Uint64(a.GetValue())); ch.ttl <= 0 || ch.ttl == math.MaxInt64 {
				ch.ttl = 0
			}
		case attrResults:
			ch.quiet = len(a.GetValue()) == 1 && a.GetValue()[0] == 0
		case attrACL, attrVisibility:
			blame("cells have no access control of their own here: attribute %s", a.GetName())
		}
	}
	if m.GetTimeRange() != nil {
		var err error
		if ch.times, err = timesOf(m.GetTimeRange()); err != nil {
			blame("%s", err.Error())
		}
	}
	switch ch.kind {
	case pb.MutationProto_APPEND, pb.MutationProto_INCREMENT, pb.MutationProto_PUT:
		if len(ch.cells) == 0 {
			blame("No columns to %v", ch.kind)
		}
	case pb.MutationProto_DELETE:
	default:
		blame("mutation of type %d", ch.kind)
	}
	for i := range ch.cells {
		c := &ch.cells[i]
		switch {
		case len(c.Qualifier) > schema.MaxQualifier:
			blame("a qualifier of %d bytes; at most %d", len(c.Qualifier), schema.MaxQualifier)
		case len(c.Value) > schema.MaxValue:
			blame("a value of %d bytes; at most %d", len(c.Value), schema.MaxValue)
		case c.Timestamp < 0:
			blame("timestamp %d", c.Timestamp)
		}
	}
	return ch, wrong
}

// check reports a family that the table does not have.
func (ch *change) check(t *model.Table) error {
	for i := range ch.cells {
		f, ok := t.Schema.Families[string(ch.cells[i].Family)]
		if !ok {
			return noFamily(t, ch.cells[i].Family)
		}
		if f.Aggregate != schema.NotAggregate {
			return wire.DoNotRetryIO.New("family %s adds up what is put into it, which HBase's clients cannot do", f.Name)
		}
	}
	return nil
}

// reads tells whether what a change does depends on what is in the row.
func (ch *change) reads() bool {
	switch ch.kind {
	case pb.MutationProto_APPEND, pb.MutationProto_INCREMENT:
		return true
	}
	for i := range ch.cells {
		if ch.cells[i].Type == wire.TypeDelete && ch.cells[i].Timestamp == model.Latest {
			return true
		}
	}
	return false
}

// A batch turns changes of one row into mutations.
type batch struct {
	t    *model.Table
	now  int64 // ms; what LATEST means
	muts []row.Mutation
}

func (b *batch) latest(ts int64) int64 {
	if ts == model.Latest {
		return b.now
	}
	return ts
}

// set writes a cell.
func (b *batch) set(c *wire.Cell, ts int64, value []byte, ttl int64) {
	m := row.Mutation{Op: row.SetCell, Family: string(c.Family), Qualifier: c.Qualifier, Timestamp: b.t.Unit.Micros(ts), Value: value}
	if tag, ok := wire.Tag(c.Tags, wire.TagTTL); ok && len(tag) == 8 {
		ttl = int64(binary.BigEndian.Uint64(tag))
	}
	if ttl > 0 && ttl < math.MaxInt64 {
		// From the cell's timestamp on, if that is a time.
		since := ts
		if b.t.Unit == model.Raw {
			since = b.now
		}
		if since < math.MaxInt64/1000-ttl {
			m.Until = max((since+ttl)*1000, 1)
		}
	}
	b.muts = append(b.muts, m)
}

// cover deletes what is in [from, to] of a column, or of a family if qualifier
// is nil.
func (b *batch) cover(family string, qualifier []byte, from, to int64) {
	m := row.Mutation{Op: row.DeleteColumn, Family: family, Qualifier: qualifier, Sticky: b.t.Sticky,
		Times: cell.TimeRange{Start: math.MinInt64, End: math.MaxInt64}}
	if from != math.MinInt64 {
		m.Times.Start = b.t.Unit.Micros(from)
	}
	if end := b.t.Unit.Micros(to + 1); to < math.MaxInt64 && end > m.Times.Start {
		m.Times.End = end
	}
	if qualifier == nil {
		m.Op = row.DeleteFamily
	}
	b.muts = append(b.muts, m)
}

// put adds what a change does that does not read.
func (b *batch) put(ch *change) {
	if ch.kind == pb.MutationProto_DELETE && len(ch.cells) == 0 {
		for _, name := range b.t.Schema.FamilyNames() {
			b.cover(name, nil, math.MinInt64, b.latest(ch.at))
		}
		return
	}
	for i := range ch.cells {
		b.cell(&ch.cells[i], ch.ttl)
	}
}

// cell adds one cell of a put or a delete.
func (b *batch) cell(c *wire.Cell, ttl int64) {
	ts := b.latest(c.Timestamp)
	qualifier := c.Qualifier
	if qualifier == nil {
		qualifier = []byte{}
	}
	switch c.Type {
	case wire.TypeDelete:
		b.cover(string(c.Family), qualifier, ts, ts)
	case wire.TypeDeleteColumn:
		b.cover(string(c.Family), qualifier, math.MinInt64, ts)
	case wire.TypeDeleteFamily:
		b.cover(string(c.Family), nil, math.MinInt64, ts)
	case wire.TypeDeleteFamilyVersion:
		b.cover(string(c.Family), nil, ts, ts)
	default:
		b.set(c, ts, c.Value, ttl)
	}
}
