package materialize

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/filter"
	"github.com/trestledb/trestle/engine/matview"
	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/exec"
	"github.com/trestledb/trestle/engine/query/types"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/schema"
)

// Options are those of Evaluators.
type Options struct {
	// Source reads the rows of tables: in a tablet server its cluster's client.
	Source exec.Source
	// Catalog returns the catalog of the instance of a view's source, with all rights.
	Catalog func(ctx context.Context, v *schema.View) (algebra.Catalog, error)
	// Memory is what all evaluations may take together, in bytes, and a quarter of it is
	// what one may take: 0 is 64 MiB.
	Memory int64
	// Dir is where what has no room in memory goes; empty is the system's temporary
	// directory.
	Dir string
	// Tell is after how long Range tells where it is though no row contributes anything, as
	// soon as the reader pauses: after 8,192 rows. Default 100 ms.
	Tell time.Duration
}

// New returns the Evaluators of views.
func New(o Options) *Evaluators {
	if o.Memory == 0 {
		o.Memory = 64 << 20
	}
	if o.Tell == 0 {
		o.Tell = 100 * time.Millisecond
	}
	return &Evaluators{o: o, pool: exec.NewPool(exec.Limits{Query: o.Memory / 4, Memory: o.Memory, Dir: o.Dir})}
}

// Evaluators makes the evaluators of views: see matview.Evaluators. It is safe for
// concurrent use.
type Evaluators struct {
	o    Options
	pool *exec.Pool
}

var _ matview.Evaluators = (*Evaluators)(nil)

// Evaluator implements matview.Evaluators. A query whose meaning has changed, as it reads
// another table or has other columns, is FailedPrecondition.
func (e *Evaluators) Evaluator(ctx context.Context, v *schema.View) (matview.Evaluator, error) {
	cat, err := e.o.Catalog(ctx, v)
	if err != nil {
		return nil, err
	}
	view, err := Compile(ctx, cat, v.Query)
	if err != nil {
		return nil, fault.New(fault.FailedPrecondition, "materialized view %s: its query cannot be analyzed any more: %w", v.Name, err)
	}
	d := view.Definition
	if d.Source != v.Source || d.SourceID != v.SourceID || d.Index != v.Index || d.RawKey != v.RawKey || !slices.Equal(d.Key, v.Key) || !slices.Equal(d.Columns, v.Columns) {
		return nil, fault.New(fault.FailedPrecondition, "materialized view %s: its source is another table, or its query means something else, than when it was created", v.Name)
	}
	return &evaluator{e: e, view: view, d: v}, nil
}

type evaluator struct {
	e    *Evaluators
	view *View
	d    *schema.View
}

// Keys implements matview.Evaluator.
func (e *evaluator) Keys(ctx context.Context, keys [][]byte, emit func(*matview.Row) error) error {
	ranges := make([]row.Range, len(keys))
	for i, k := range keys {
		ranges[i] = row.Single(k)
	}
	from, noRoom, err := e.part(ctx, ranges, 0, emit)
	if !noRoom {
		return err
	}
	// One of the rows that are left, or several together, have no room.
	for len(keys) > 0 && bytes.Compare(keys[0], from) < 0 {
		keys = keys[1:]
	}
	switch len(keys) {
	case 0:
		return err
	case 1:
		return emit(&matview.Row{Key: keys[0], Err: err})
	}
	half := len(keys) / 2
	if err := e.Keys(ctx, keys[:half], emit); err != nil {
		return err
	}
	return e.Keys(ctx, keys[half:], emit)
}

// aroundLarge is how many rows are evaluated by their keys where one has no room, at first.
// Where the query leaves none of them it is not known how far that one is: twice as many
// are next, up to mostAround, or as many as have keys of mostAroundBytes.
const aroundLarge, mostAround, mostAroundBytes = 64, 8192, 512 << 10

// Range implements matview.Evaluator.
func (e *evaluator) Range(ctx context.Context, within row.Range, emit func(*matview.Row) error) error {
	around := 0
	for !within.Empty() {
		from, noRoom, err := e.part(ctx, []row.Range{within}, e.e.o.Tell, emit)
		if !noRoom {
			return err
		}
		if around = min(max(aroundLarge, 2*around), mostAround); from != nil {
			within.Start, around = from, aroundLarge
		}
		keys := &keyReader{}
		if _, err := e.e.o.Source.ReadRows(ctx, &scan.Request{Table: e.d.Source, Ranges: []row.Range{within}, Limit: int64(around), Filter: onlyKeys}, keys); err != nil && !errors.Is(err, errKeys) {
			return err
		}
		if len(keys.keys) == 0 {
			return nil
		}
		given, last := []byte(nil), keys.keys[len(keys.keys)-1]
		err = e.Keys(ctx, keys.keys, func(r *matview.Row) error {
			given = append(given[:0], r.Key...)
			return emit(r)
		})
		if err == nil && !bytes.Equal(given, last) {
			err = emit(&matview.Row{Key: last})
		}
		if err != nil {
			return err
		}
		within.Start = row.Successor(last)
	}
	return nil
}

// onlyKeys leaves of each row a cell without its value.
var onlyKeys = &filter.Node{Op: filter.Chain, Children: []*filter.Node{{Op: filter.CellsPerRowLimit, N: 1}, {Op: filter.StripValue}}}

// errKeys says that a keyReader has as many keys as it keeps.
var errKeys = errors.New("these are keys enough")

// A keyReader keeps the keys of rows, until they have mostAroundBytes.
type keyReader struct {
	keys  [][]byte
	bytes int
}

func (r *keyReader) StartRow(key []byte) {
	r.keys, r.bytes = append(r.keys, bytes.Clone(key)), r.bytes+len(key)
}
func (*keyReader) Cell(*row.Cell) {}
func (r *keyReader) EndRow() (bool, error) {
	if r.bytes >= mostAroundBytes {
		return false, errKeys
	}
	return false, nil
}
func (*keyReader) Scanned([]byte) {}
func (*keyReader) Flush() error   { return nil }

// part is run, and tells whether it failed as rows have no room. All rows before from were
// evaluated then, and given to emit. What emit says is no such failure: a tablet that has no
// room for writes says Exhausted too.
func (e *evaluator) part(ctx context.Context, within []row.Range, tell time.Duration, emit func(*matview.Row) error) (from []byte, noRoom bool, err error) {
	var refused error
	err = e.run(ctx, within, tell, func(r *matview.Row) error {
		from = append(append(from[:0], r.Key...), 0)
		refused = emit(r)
		return refused
	})
	return from, refused == nil && exec.OfQuery(err), err
}

// run evaluates the rows of ranges, and tells where it is as exec.Isolate does.
func (e *evaluator) run(ctx context.Context, within []row.Range, tell time.Duration, emit func(*matview.Row) error) error {
	if len(within) == 0 {
		return nil
	}
	c := exec.Config{Source: e.e.o.Source, Pool: e.e.pool, Params: algebra.Params{Now: time.Now()}, Parallel: 1}
	s := newSink(e.d, emit)
	err := exec.Isolate(ctx, c, e.view.derived.Query, e.view.derived.Columns, e.view.key, within, tell, s)
	if err == nil {
		err = s.flush()
	}
	return err
}

// A sink makes contributions of the result of the derived query. The rows of a batch
// are kept until the next one begins, as they may be undone.
type sink struct {
	d    *schema.View
	emit func(*matview.Row) error
	key  keyEncoder
	args []matview.Arg
	// data holds keys and contributions of done rows; rows says where.
	data []byte
	rows []spot
	err  []error // of rows, by spot.err - 1
	last []byte  // key that was given last
}

// A spot is where a row is in sink.data: its key in [at, key), its contribution in
// [key, end).
type spot struct {
	at, key, end int
	err          int // 0 is none
}

func newSink(d *schema.View, emit func(*matview.Row) error) *sink {
	return &sink{d: d, emit: emit, key: keyEncoder{d: d}, args: make([]matview.Arg, len(d.Columns))}
}

// Begin implements exec.IsolateSink.
func (s *sink) Begin() error { return s.flush() }

// Undo implements exec.IsolateSink.
func (s *sink) Undo() { s.data, s.rows, s.err = s.data[:0], s.rows[:0], s.err[:0] }

// Failed implements exec.IsolateSink.
func (s *sink) Failed(key string, err error) error {
	return s.give(&matview.Row{Key: []byte(key), Err: err})
}

// Through implements exec.IsolateSink.
func (s *sink) Through(key []byte) error {
	if err := s.flush(); err != nil || bytes.Equal(s.last, key) {
		return err
	}
	return s.give(&matview.Row{Key: key})
}

func (s *sink) give(r *matview.Row) error {
	s.last = append(s.last[:0], r.Key...)
	return s.emit(r)
}

// flush gives out the rows that are done.
func (s *sink) flush() error {
	var out matview.Row
	for i := range s.rows {
		p := &s.rows[i]
		out = matview.Row{Key: s.data[p.at:p.key:p.key], Contribution: s.data[p.key:p.end:p.end]}
		if p.err > 0 {
			out.Contribution, out.Err = nil, s.err[p.err-1]
		} else if p.end == p.key {
			continue
		}
		if err := s.give(&out); err != nil {
			return err
		}
	}
	s.Undo()
	return nil
}

// Take implements exec.IsolateSink.
func (s *sink) Take(b *types.Batch) error {
	for k := range b.Rows() {
		i := k
		if b.Sel != nil {
			i = int(b.Sel[k])
		}
		source := b.Cols[0].Strs[b.Cols[0].At(i)]
		if n := len(s.rows); n == 0 || string(s.data[s.rows[n-1].at:s.rows[n-1].key]) != source {
			at := len(s.data)
			s.data = append(s.data, source...)
			s.rows = append(s.rows, spot{at: at, key: len(s.data), end: len(s.data)})
		}
		p := &s.rows[len(s.rows)-1]
		if p.err > 0 {
			continue
		}
		if err := s.add(p, b, i); err != nil {
			s.err = append(s.err, err)
			p.err, p.end = len(s.err), p.key
			s.data = s.data[:p.key]
		}
	}
	return nil
}

// add adds an item for row i of the batch to p, the last of s.rows.
func (s *sink) add(p *spot, b *types.Batch, i int) error {
	keys := b.Cols[1:][:len(s.d.Key)]
	key, ok, err := s.key.encode(keys, i)
	if err != nil || !ok {
		return err
	}
	if s.d.Index && p.key-p.at > matview.MaxCounted {
		return fault.New(fault.OutOfRange, "the key of a row of the source of an index has %d bytes; the limit is %d", p.key-p.at, matview.MaxCounted)
	}
	for k, c := range b.Cols[1+len(s.d.Key):] {
		a := &s.args[k]
		*a = matview.Arg{Map: a.Map[:0]}
		j := c.At(i)
		if c.Null != nil && c.Null[j] {
			continue
		}
		a.Valid = true
		switch c.Type.Kind {
		case types.Float32, types.Float64:
			a.Float = c.Floats[j]
		case types.String, types.Bytes, types.Proto:
			a.Text = c.Strs[j]
		case types.Map:
			a.Map = appendMap(a.Map, c.Type, c.Lists[j])
		case types.Array, types.Struct:
		default:
			a.Int = c.Ints[j]
		}
	}
	made, err := matview.AppendItem(s.data[p.key:p.end], s.d, key, s.args)
	if n := p.key + len(made); n <= cap(s.data) && len(made) > 0 && &made[0] == &s.data[:n][p.key] {
		s.data = s.data[:n] // there was room
	} else {
		s.data = append(s.data[:p.key], made...)
	}
	p.end = len(s.data)
	return err
}

// appendMap appends the entries of a MAP with values of a column of an index.
func appendMap(dst []string, t *types.Type, list []types.Value) []string {
	for i := 0; i+1 < len(list); i += 2 {
		v := list[i+1]
		if !v.Valid {
			continue
		}
		text := v.Str
		switch t.Elem.Kind {
		case types.String, types.Bytes:
		default:
			text = string(matview.AppendValue(nil, typeOf(t.Elem), &matview.Arg{Valid: true, Int: v.Int, Float: v.Float}))
		}
		dst = append(dst, list[i].Str, text)
	}
	return dst
}

// keyEncoder makes the keys of rows of a view.
type keyEncoder struct {
	d      *schema.View
	schema *algebra.KeySchema
	values []types.Value
	out    []byte
}

// encode returns the key of row i; ok is false if one of its columns is NULL: then there
// is no row.
func (e *keyEncoder) encode(cols []*types.Vector, i int) (key []byte, ok bool, err error) {
	if e.schema == nil {
		e.schema = KeySchema(e.d)
		e.values = make([]types.Value, len(e.d.Key))
	}
	for k, c := range cols {
		if c.IsNull(i) {
			return nil, false, nil
		}
		e.values[k] = c.Value(i)
	}
	if e.d.RawKey {
		e.out = append(e.out[:0], e.values[0].Str...)
		if len(e.out) == 0 {
			return nil, false, fault.New(fault.OutOfRange, "the key of a row of the view would be empty")
		}
	} else if e.out, ok = e.schema.Encode(e.out[:0], e.values); !ok {
		return nil, false, nil
	}
	if len(e.out) > schema.MaxRowKey {
		return nil, false, fault.New(fault.OutOfRange, "the key of a row of the view would have %d bytes; the limit is %d", len(e.out), schema.MaxRowKey)
	}
	return e.out, true, nil
}

// KeySchema returns how the row key of a view without RawKey is made of its columns.
func KeySchema(d *schema.View) *algebra.KeySchema {
	k := &algebra.KeySchema{Encoding: algebra.OrderedCode}
	for _, c := range d.Key {
		f := algebra.KeyField{Name: c.Name}
		switch c.Type {
		case schema.ViewString:
			f.Type, f.Encoding = types.StringType, algebra.UTF8
		case schema.ViewInt:
			f.Type, f.Encoding = types.Int64Type, algebra.OrderedInt
		case schema.ViewTimestamp:
			f.Type, f.Encoding = types.TimestampType, algebra.OrderedInt
		default:
			f.Type, f.Encoding = types.BytesType, algebra.RawBytes
		}
		k.Fields = append(k.Fields, f)
	}
	return k
}
