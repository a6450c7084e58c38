package stream

import (
	"encoding/binary"
	"math"
	"slices"
	"time"

	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/filter"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/varint"
)

// errMalformed is a message that no server of this version sends.
var errMalformed = fault.New(fault.Internal, "malformed message between servers")

func appendBytes(b, v []byte) []byte {
	return append(binary.AppendUvarint(b, uint64(len(v))), v...)
}

func appendString(b []byte, v string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(v))), v...)
}

// A decoder reads a message. Its results point into the message.
type decoder struct{ varint.Decoder }

func decoderOf(b []byte) decoder { return decoder{varint.Of(b)} }

func (d *decoder) err() error {
	if d.Bad() {
		return errMalformed
	}
	return nil
}

// bytes returns nil for an empty slice.
func (d *decoder) bytes() []byte {
	b := d.Bytes()
	if len(b) == 0 {
		return nil
	}
	return b
}

func (d *decoder) string() string { return string(d.bytes()) }

// room is how many elements to make room for before they are seen: an element
// may be larger in memory than in the message.
func room(n int) int { return min(n, 1024) }

func appendTarget(b []byte, at rpc.Target) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(b, uint64(at.Tablet)), at.Schema)
}

func (d *decoder) target() rpc.Target {
	return rpc.Target{Tablet: metadata.TabletID(d.Uvarint()), Schema: d.Uvarint()}
}

func appendRange(b []byte, r row.Range) []byte { return appendBytes(appendBytes(b, r.Start), r.End) }

func (d *decoder) rowRange() row.Range { return row.Range{Start: d.bytes(), End: d.bytes()} }

func appendRanges(b []byte, ranges []row.Range) []byte {
	b = binary.AppendUvarint(b, uint64(len(ranges)))
	for _, r := range ranges {
		b = appendRange(b, r)
	}
	return b
}

func (d *decoder) ranges() []row.Range {
	n := d.Count()
	if n == 0 {
		return nil
	}
	out := make([]row.Range, 0, room(n))
	for range n {
		out = append(out, d.rowRange())
	}
	return out
}

func appendTimes(b []byte, t cell.TimeRange) []byte {
	return binary.AppendVarint(binary.AppendVarint(b, t.Start), t.End)
}

func (d *decoder) times() cell.TimeRange { return cell.TimeRange{Start: d.Varint(), End: d.Varint()} }

// The flags of a mutation.
const (
	hasTruncate = 1 << iota
	hasSticky
	hasTimes
	hasInput
	hasUntil
)

func appendMutation(b []byte, m *row.Mutation) []byte {
	var flags byte
	if m.Truncate {
		flags |= hasTruncate
	}
	if m.Sticky {
		flags |= hasSticky
	}
	if m.Times != (cell.TimeRange{}) {
		flags |= hasTimes
	}
	in := &m.Input
	if in.Kind != 0 || in.Int != 0 || in.Float != 0 || len(in.Bytes) > 0 {
		flags |= hasInput
	}
	if m.Until != 0 {
		flags |= hasUntil
	}
	b = append(b, byte(m.Op), flags)
	b = appendString(b, m.Family)
	b = appendBytes(b, m.Qualifier)
	b = binary.AppendVarint(b, m.Timestamp)
	b = appendBytes(b, m.Value)
	if flags&hasUntil != 0 {
		b = binary.AppendVarint(b, m.Until)
	}
	if flags&hasTimes != 0 {
		b = appendTimes(b, m.Times)
	}
	if flags&hasInput != 0 {
		b = append(b, byte(in.Kind))
		b = binary.AppendVarint(b, in.Int)
		b = appendBytes(b, in.Bytes)
		b = binary.BigEndian.AppendUint64(b, math.Float64bits(in.Float))
	}
	return b
}

func (d *decoder) mutation(m *row.Mutation) {
	m.Op = row.Op(d.Byte())
	flags := d.Byte()
	m.Truncate, m.Sticky = flags&hasTruncate != 0, flags&hasSticky != 0
	m.Family = d.string()
	m.Qualifier = d.bytes()
	m.Timestamp = d.Varint()
	m.Value = d.bytes()
	if flags&hasUntil != 0 {
		m.Until = d.Varint()
	}
	if flags&hasTimes != 0 {
		m.Times = d.times()
	}
	if flags&hasInput != 0 {
		m.Input = row.Input{Kind: row.InputKind(d.Byte()), Int: d.Varint(), Bytes: d.bytes(), Float: d.float()}
	}
}

func (d *decoder) float() float64 { return math.Float64frombits(d.Uint64BE()) }

func appendMutations(b []byte, muts []row.Mutation) []byte {
	b = binary.AppendUvarint(b, uint64(len(muts)))
	for i := range muts {
		b = appendMutation(b, &muts[i])
	}
	return b
}

func (d *decoder) mutations() []row.Mutation {
	n := d.Count()
	if n == 0 {
		return nil
	}
	out := make([]row.Mutation, 0, room(n))
	for range n {
		if d.Bad() {
			break
		}
		out = append(out, row.Mutation{})
		d.mutation(&out[len(out)-1])
	}
	return out
}

func appendEntry(b []byte, e *row.Entry) []byte {
	b = appendBytes(b, e.Key)
	b = appendBytes(b, e.Token.Token)
	if len(e.Token.Token) > 0 {
		b = appendTime(b, e.Token.Start)
	}
	return appendMutations(b, e.Mutations)
}

func (d *decoder) entry(e *row.Entry) {
	e.Key = d.bytes()
	if e.Token.Token = d.bytes(); len(e.Token.Token) > 0 {
		e.Token.Start = d.time()
	}
	e.Mutations = d.mutations()
}

// appendTime writes microseconds since the epoch, and whether there is a time.
func appendTime(b []byte, t time.Time) []byte {
	if t.IsZero() {
		return append(b, 0)
	}
	return binary.AppendVarint(append(b, 1), t.UnixMicro())
}

func (d *decoder) time() time.Time {
	if d.Byte() == 0 {
		return time.Time{}
	}
	return time.UnixMicro(d.Varint())
}

func appendEntries(b []byte, entries []row.Entry) []byte {
	b = binary.AppendUvarint(b, uint64(len(entries)))
	for i := range entries {
		b = appendEntry(b, &entries[i])
	}
	return b
}

func (d *decoder) entries() []row.Entry {
	n := d.Count()
	out := make([]row.Entry, 0, room(n))
	for range n {
		if d.Bad() {
			break
		}
		out = append(out, row.Entry{})
		d.entry(&out[len(out)-1])
	}
	return out
}

func appendRules(b []byte, rules []row.Rule) []byte {
	b = binary.AppendUvarint(b, uint64(len(rules)))
	for i := range rules {
		r := &rules[i]
		b = appendString(b, r.Family)
		b = appendBytes(b, r.Qualifier)
		if r.IsAppend {
			b = appendBytes(append(b, 1), r.Append)
		} else {
			b = binary.AppendVarint(append(b, 0), r.Increment)
		}
	}
	return b
}

func (d *decoder) rules() []row.Rule {
	n := d.Count()
	out := make([]row.Rule, 0, room(n))
	for range n {
		if d.Bad() {
			break
		}
		r := row.Rule{Family: d.string(), Qualifier: d.bytes()}
		if d.Byte() != 0 {
			r.IsAppend, r.Append = true, append([]byte{}, d.bytes()...)
		} else {
			r.Increment = d.Varint()
		}
		out = append(out, r)
	}
	return out
}

// The flags of a cell. Fields equal to those of the cell before are left out.
const (
	sameFamily = 1 << iota
	sameQualifier
	hasLabels
)

func appendCell(b []byte, c *row.Cell, flags byte) []byte {
	if len(c.Labels) > 0 {
		flags |= hasLabels
	}
	b = append(b, flags)
	if flags&sameFamily == 0 {
		b = appendString(b, c.Family)
	}
	if flags&sameQualifier == 0 {
		b = appendBytes(b, c.Qualifier)
	}
	b = binary.AppendVarint(b, c.Timestamp)
	b = appendBytes(b, c.Value)
	if flags&hasLabels != 0 {
		b = binary.AppendUvarint(b, uint64(len(c.Labels)))
		for _, l := range c.Labels {
			b = appendString(b, l)
		}
	}
	return b
}

// cell decodes a cell over the one before.
func (d *decoder) cell(c *row.Cell) {
	flags := d.Byte()
	if flags&sameFamily == 0 {
		if f := d.bytes(); string(f) != c.Family {
			c.Family = string(f)
		}
	}
	if flags&sameQualifier == 0 {
		c.Qualifier = d.bytes()
	}
	c.Timestamp = d.Varint()
	c.Value = d.bytes()
	c.Labels = nil
	if flags&hasLabels != 0 {
		n := d.Count()
		for range n {
			c.Labels = append(c.Labels, d.string())
		}
	}
}

func appendCells(b []byte, cells []row.Cell) []byte {
	b = binary.AppendUvarint(b, uint64(len(cells)))
	for i := range cells {
		b = appendCell(b, &cells[i], 0)
	}
	return b
}

func (d *decoder) cells() []row.Cell {
	n := d.Count()
	out := make([]row.Cell, 0, room(n))
	for range n {
		if d.Bad() {
			break
		}
		out = append(out, row.Cell{})
		d.cell(&out[len(out)-1])
	}
	return out
}

// maxDepth bounds the nesting of filters. Those that are valid are flatter.
const maxDepth = 100

// The flags of a bound.
const (
	boundSet = 1 << iota
	boundOpen
)

func appendBound(b []byte, v filter.Bound) []byte {
	var flags byte
	if v.Set {
		flags |= boundSet
	}
	if v.Open {
		flags |= boundOpen
	}
	b = append(b, flags)
	if v.Set {
		b = appendBytes(b, v.Key)
	}
	return b
}

func (d *decoder) bound() filter.Bound {
	flags := d.Byte()
	v := filter.Bound{Set: flags&boundSet != 0, Open: flags&boundOpen != 0}
	if v.Set {
		v.Key = d.bytes()
	}
	return v
}

// appendFilter writes 0 for nil.
func appendFilter(b []byte, n *filter.Node) []byte {
	if n == nil {
		return append(b, 0)
	}
	b = append(b, byte(n.Op))
	switch n.Op {
	case filter.PassAll, filter.BlockAll, filter.Sink, filter.StripValue, filter.Ends:
	case filter.Chain, filter.Interleave, filter.Condition:
		b = appendFilters(b, n.Children)
	case filter.RowKeyRegex, filter.FamilyRegex, filter.QualifierRegex, filter.ValueRegex, filter.ValueBitmask:
		b = appendBytes(b, n.Pattern)
	case filter.RowSample:
		b = binary.BigEndian.AppendUint64(b, math.Float64bits(n.P))
	case filter.ColumnRange:
		b = appendBound(appendBound(appendString(b, n.Family), n.Start), n.End)
	case filter.ValueRange:
		b = appendBound(appendBound(b, n.Start), n.End)
	case filter.TimestampRange:
		b = appendTimes(b, n.Times)
	case filter.CellsPerRowOffset, filter.CellsPerRowLimit, filter.CellsPerColumnLimit:
		b = binary.AppendVarint(b, int64(n.N))
	case filter.ApplyLabel:
		b = appendString(b, n.Label)
	case filter.Columns:
		b = binary.AppendUvarint(b, uint64(len(n.Columns)))
		for family, ranges := range n.Columns {
			b = appendRanges(appendString(b, family), ranges)
		}
		b = appendFilters(b, n.Children)
	}
	return b
}

func appendFilters(b []byte, nodes []*filter.Node) []byte {
	b = binary.AppendUvarint(b, uint64(len(nodes)))
	for _, n := range nodes {
		b = appendFilter(b, n)
	}
	return b
}

func (d *decoder) filter(depth int) *filter.Node {
	op := filter.Op(d.Byte())
	if op == 0 {
		return nil
	}
	n := &filter.Node{Op: op}
	if depth > maxDepth {
		d.Fail()
		return nil
	}
	switch op {
	case filter.PassAll, filter.BlockAll, filter.Sink, filter.StripValue, filter.Ends:
	case filter.Chain, filter.Interleave, filter.Condition:
		n.Children = d.filters(depth)
	case filter.RowKeyRegex, filter.FamilyRegex, filter.QualifierRegex, filter.ValueRegex, filter.ValueBitmask:
		n.Pattern = d.bytes()
	case filter.RowSample:
		n.P = d.float()
	case filter.ColumnRange:
		n.Family, n.Start, n.End = d.string(), d.bound(), d.bound()
	case filter.ValueRange:
		n.Start, n.End = d.bound(), d.bound()
	case filter.TimestampRange:
		n.Times = d.times()
	case filter.CellsPerRowOffset, filter.CellsPerRowLimit, filter.CellsPerColumnLimit:
		v := d.Varint()
		if n.N = int32(v); int64(n.N) != v {
			d.Fail()
		}
	case filter.ApplyLabel:
		n.Label = d.string()
	case filter.Columns:
		count := d.Count()
		n.Columns = make(map[string][]row.Range, room(count))
		for range count {
			if d.Bad() {
				break
			}
			family := d.string()
			n.Columns[family] = d.ranges()
		}
		n.Children = d.filters(depth)
	default:
		d.Fail()
	}
	return n
}

func (d *decoder) filters(depth int) []*filter.Node {
	n := d.Count()
	out := make([]*filter.Node, 0, room(n))
	for range n {
		if d.Bad() {
			break
		}
		out = append(out, d.filter(depth+1))
	}
	return out
}

func appendRead(b []byte, r *rpc.Read) []byte {
	b = appendRanges(b, r.Ranges)
	b = binary.AppendVarint(b, r.Limit)
	if r.Reversed {
		b = append(b, 1)
	} else {
		b = append(b, 0)
	}
	return appendFilter(b, r.Filter)
}

func (d *decoder) read() *rpc.Read {
	return &rpc.Read{Ranges: d.ranges(), Limit: d.Varint(), Reversed: d.Byte() != 0, Filter: d.filter(0)}
}

func appendStats(b []byte, s *scan.Stats) []byte {
	for _, n := range [...]int64{s.RowsSeen, s.RowsReturned, s.CellsSeen, s.CellsReturned} {
		b = binary.AppendVarint(b, n)
	}
	return b
}

func (d *decoder) stats() scan.Stats {
	return scan.Stats{RowsSeen: d.Varint(), RowsReturned: d.Varint(), CellsSeen: d.Varint(), CellsReturned: d.Varint()}
}

// clone gives ranges memory of their own.
func clone(ranges []row.Range) []row.Range {
	for i := range ranges {
		ranges[i] = row.Range{Start: slices.Clone(ranges[i].Start), End: slices.Clone(ranges[i].End)}
	}
	return ranges
}
