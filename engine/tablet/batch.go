package tablet

import (
	"encoding/binary"
	"slices"
	"sync"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/changes"
	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/stamp"
	"github.com/trestledb/trestle/engine/varint"
)

// A Batch is the changes of rows: for each its operations in order, all or none
// of which are applied. Keys and values are aliased, not copied, until the batch
// is applied.
type Batch struct {
	rows   []rowOps
	prefix []byte // of all rows, back to back
	suffix []byte // of all operations, back to back
	ops    []op
	size   int // what it takes in the commit log, at most
}

// rowOps is the change of a row.
type rowOps struct {
	key       []byte
	prefixEnd int // where its parts of prefix and ops end
	opsEnd    int
}

type op struct {
	end   int // of its part of suffix
	kind  cell.Kind
	value []byte
}

var batches = sync.Pool{New: func() any { return new(Batch) }}

// NewBatch returns an empty batch that begins with the row key. Free gives it
// back.
func NewBatch(key []byte) *Batch {
	b := batches.Get().(*Batch)
	b.Row(key)
	return b
}

// Free gives b back. It must not be used afterwards.
func (b *Batch) Free() {
	clear(b.rows)
	clear(b.ops)
	b.rows, b.prefix, b.suffix, b.ops, b.size = b.rows[:0], b.prefix[:0], b.suffix[:0], b.ops[:0], 0
	if cap(b.prefix)+cap(b.suffix) <= 128<<10 && cap(b.ops) <= 4096 && cap(b.rows) <= 4096 {
		batches.Put(b)
	}
}

// Grow makes room for n more rows of an operation each, with keys of so many bytes in all.
func (b *Batch) Grow(n, keyBytes int) {
	b.rows, b.ops = slices.Grow(b.rows, n), slices.Grow(b.ops, n)
	b.prefix, b.suffix = slices.Grow(b.prefix, keyBytes+2*n), slices.Grow(b.suffix, suffixBytes*n)
}

// suffixBytes is what a cell without a qualifier has in suffix.
const suffixBytes = 12

// Row makes the operations that follow those of the row key. Changes of one row
// are applied in order.
func (b *Batch) Row(key []byte) {
	if len(b.rows) > 0 {
		b.size += commitlog.RecordBytes
	}
	start := len(b.prefix)
	b.prefix = cell.AppendRow(b.prefix, key)
	b.rows = append(b.rows, rowOps{key, len(b.prefix), len(b.ops)})
	b.size += len(b.prefix) - start + binary.MaxVarintLen32
}

// Len returns the number of operations.
func (b *Batch) Len() int { return len(b.ops) }

// Size returns how much of the commit log the batch takes, in bytes.
func (b *Batch) Size() int { return b.size }

func (b *Batch) add(kind cell.Kind, value []byte) {
	start := 0
	if n := len(b.ops); n > 0 {
		start = b.ops[n-1].end
	}
	b.ops = append(b.ops, op{len(b.suffix), kind, value})
	b.rows[len(b.rows)-1].opsEnd = len(b.ops)
	b.size += len(b.suffix) - start + len(value) + 1 + 2*binary.MaxVarintLen32
}

// Set writes a cell.
func (b *Batch) Set(f cell.FamilyID, qualifier []byte, ts int64, value []byte) {
	b.suffix = cell.AppendCell(b.suffix, f, qualifier, ts)
	b.add(cell.Set, value)
}

// SetUntil writes a cell that lives until a time in microseconds.
func (b *Batch) SetUntil(f cell.FamilyID, qualifier []byte, ts int64, value []byte, until int64) {
	b.suffix = cell.AppendCell(b.suffix, f, qualifier, ts)
	b.add(cell.SetUntil, cell.AppendUntil(make([]byte, 0, 8+len(value)), until, value))
}

// DeleteRow deletes all cells of the row.
func (b *Batch) DeleteRow() { b.add(cell.Set, nil) }

// DeleteFamily deletes all cells of a family.
func (b *Batch) DeleteFamily(f cell.FamilyID) {
	b.suffix = cell.AppendFamily(b.suffix, f)
	b.add(cell.Set, nil)
}

// DeleteColumn deletes the cells of a column whose timestamps are in r.
func (b *Batch) DeleteColumn(f cell.FamilyID, qualifier []byte, r cell.TimeRange) {
	b.CoverColumn(f, qualifier, r, false)
}

// CoverColumn deletes as DeleteColumn does, and if sticky also what is written
// later.
func (b *Batch) CoverColumn(f cell.FamilyID, qualifier []byte, r cell.TimeRange, sticky bool) {
	b.suffix = cell.AppendColumn(b.suffix, f, qualifier)
	b.add(cell.Set, markerValue(r, sticky))
}

// CoverFamily is CoverColumn of all columns of a family.
func (b *Batch) CoverFamily(f cell.FamilyID, r cell.TimeRange, sticky bool) {
	b.suffix = cell.AppendFamily(b.suffix, f)
	b.add(cell.Set, markerValue(r, sticky))
}

func markerValue(r cell.TimeRange, sticky bool) []byte {
	if sticky {
		return cell.AppendSticky(nil, r)
	}
	return cell.AppendRanges(nil, r)
}

// Input notes the input of an aggregate, as changes.AppendInput made it, for the record
// of changes. The operation that is added next has the result.
func (b *Batch) Input(op changes.Op, f cell.FamilyID, qualifier []byte, ts int64, input []byte) {
	b.suffix = cell.AppendCell(b.suffix, f, qualifier, ts)
	b.add(cell.Recorded, append([]byte{byte(op)}, input...))
}

// untold is what Recorded has in place of an operation that has no effect.
const untold changes.Op = 0

// Covered notes for the record of changes what of a family the operation that is added next
// covers: r of these columns, or nothing.
func (b *Batch) Covered(f cell.FamilyID, columns [][]byte, r cell.TimeRange) {
	for _, q := range columns {
		b.suffix = cell.AppendColumn(b.suffix, f, q)
		b.add(cell.Recorded, cell.AppendRanges([]byte{byte(changes.DeleteColumn)}, r))
	}
	if len(columns) == 0 {
		b.suffix = cell.AppendFamily(b.suffix, f)
		b.add(cell.Recorded, []byte{byte(untold)})
	}
}

// Records implements commitlog.Records: a row is a record.
func (b *Batch) Records() int { return len(b.rows) }

// AppendRecord implements commitlog.Records. The payload is
//
//	uvarint length, row prefix
//	for each operation: uvarint length, key suffix; kind u8; uvarint length, value
//
// and the record itself says how many operations there are.
func (b *Batch) AppendRecord(dst []byte, i int) ([]byte, int) {
	prefix, first, start := b.row(i)
	dst = binary.AppendUvarint(dst, uint64(len(prefix)))
	dst = append(dst, prefix...)
	ops := b.ops[first:b.rows[i].opsEnd]
	for k := range ops {
		o := &ops[k]
		dst = binary.AppendUvarint(dst, uint64(o.end-start))
		dst = append(dst, b.suffix[start:o.end]...)
		dst = append(dst, byte(o.kind))
		dst = binary.AppendUvarint(dst, uint64(len(o.value)))
		dst = append(dst, o.value...)
		start = o.end
	}
	return dst, len(ops)
}

// row returns the prefix of row i, its first operation and where the suffix of
// that begins.
func (b *Batch) row(i int) (prefix []byte, first, start int) {
	if i > 0 {
		prefix, first = b.prefix[b.rows[i-1].prefixEnd:], b.rows[i-1].opsEnd
	} else {
		prefix = b.prefix
	}
	if first > 0 {
		start = b.ops[first-1].end
	}
	return prefix[:b.rows[i].prefixEnd-(len(b.prefix)-len(prefix))], first, start
}

// An adder takes the operations of a record.
type adder interface {
	AddParts(prefix, suffix, value []byte, seq cell.Seq, kind cell.Kind)
}

// A recorder is an adder that keeps the order of records.
type recorder interface{ BeginRecord() }

func (b *Batch) insert(m adder, first cell.Seq) { b.insertFrom(0, m, first) }

// insertFrom leaves out the operations before n. The first of all, not of those
// given to m, has the sequence number first.
func (b *Batch) insertFrom(n int, m adder, first cell.Seq) {
	step := stamp.Step(first)
	rec, _ := m.(recorder)
	for r := range b.rows {
		prefix, from, start := b.row(r)
		if rec != nil {
			rec.BeginRecord()
		}
		for i := from; i < b.rows[r].opsEnd; i++ {
			o := &b.ops[i]
			if i >= n {
				m.AddParts(prefix, b.suffix[start:o.end], o.value, first+cell.Seq(i)*step, o.kind)
			}
			start = o.end
		}
	}
}

// DecodeRecord gives the operations of a log record's payload to m. Nothing is
// given to m if the payload is malformed, which is fault.Corruption.
func DecodeRecord(payload []byte, first cell.Seq, n int, m adder) error {
	if err := walkRecord(payload, first, n, func(_, _, _ []byte, _ cell.Seq, _ cell.Kind) {}); err != nil {
		return err
	}
	if r, ok := m.(recorder); ok {
		r.BeginRecord()
	}
	return walkRecord(payload, first, n, m.AddParts)
}

// RecordRow returns the key of the row that a log record's payload changes.
func RecordRow(rec *commitlog.Record) (key []byte, err error) {
	var prefix []byte
	err = walkRecord(rec.Payload, cell.Seq(rec.FirstSeq), rec.N, func(p, _, _ []byte, _ cell.Seq, _ cell.Kind) { prefix = p })
	if err == nil && prefix == nil {
		err = fault.New(fault.Corruption, "log record at sequence number %d: it changes nothing", rec.FirstSeq)
	}
	if err != nil {
		return nil, err
	}
	return cell.RowOf(nil, prefix)
}

func walkRecord(payload []byte, first cell.Seq, n int, f func(prefix, suffix, value []byte, seq cell.Seq, kind cell.Kind)) error {
	bad := func(what string) error {
		return fault.New(fault.Corruption, "log record at sequence number %d: %s", first, what)
	}
	if !stamp.Fits(first, n) {
		return bad("no such sequence number")
	}
	step := stamp.Step(first)
	d := varint.Of(payload)
	prefix := d.Bytes()
	if d.Bad() || cell.EscapedLen(prefix) != len(prefix) {
		return bad("malformed row")
	}
	for i := range n {
		suffix, kind := d.Bytes(), cell.Kind(d.Byte())
		if d.Bad() {
			return bad("malformed key")
		}
		if _, err := cell.ParseSuffix(suffix); err != nil {
			return bad(err.Error())
		}
		value := d.Bytes()
		if d.Bad() {
			return bad("malformed value")
		}
		if !kind.Valid(len(value)) && (kind != cell.Recorded || len(value) == 0) {
			return bad("unknown kind")
		}
		f(prefix, suffix, value, first+cell.Seq(i)*step, kind)
	}
	if d.Len() > 0 {
		return bad("bytes behind the last operation")
	}
	return nil
}
