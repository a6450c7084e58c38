package backend

import (
	"context"
	"fmt"
	"math"
	"runtime/debug"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/compat/hbase/model"
	"github.com/trestledb/trestle/compat/hbase/pb"
	"github.com/trestledb/trestle/compat/hbase/wire"
	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/filter"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
)

const filters = "org.apache.hadoop.hbase.filter."

// A query is a read of a table: what HBase is asked for, and the filter that
// the gateway runs over the answer.
type query struct {
	program *filter.Program
	rows    row.Range
	scan    *pb.Scan
	// none tells that there is nothing to ask for.
	none bool
}

// newQuery leaves to HBase what it can do exactly: families, one range of
// qualifiers, one of timestamps, the number of versions, values that are not
// wanted. All else is done by the program.
func newQuery(t *table, f *filter.Node) (*query, error) {
	p, err := filter.Compile(f)
	if err != nil {
		return nil, err
	}
	h := p.Hints()
	q := &query{program: p, rows: h.Rows, none: h.None, scan: &pb.Scan{MaxVersions: proto.Uint32(math.MaxInt32)}}
	var qualifier [][]byte
	if h.Qualifiers.IsSingle() {
		qualifier = [][]byte{t.toHBase(h.Qualifiers.Start)}
	}
	for _, name := range t.schema.FamilyNames() {
		if h.Families == nil || h.Families(name) {
			q.scan.Column = append(q.scan.Column, &pb.Column{Family: []byte(name), Qualifier: qualifier})
		}
	}
	if len(q.scan.Column) == 0 {
		q.none = true
	}
	q.scan.TimeRange = timeRange(h.Times, t.unit)
	if n := versions(f); n > 0 {
		q.scan.MaxVersions = proto.Uint32(uint32(n))
	}
	var list []*pb.Filter
	if qualifier == nil && (len(h.Qualifiers.Start) > 0 || len(h.Qualifiers.End) > 0) {
		m := &pb.ColumnRangeFilter{MinColumnInclusive: proto.Bool(true), MaxColumnInclusive: proto.Bool(false)}
		if len(h.Qualifiers.Start) > 0 {
			m.MinColumn = t.toHBase(h.Qualifiers.Start)
		}
		if len(h.Qualifiers.End) > 0 {
			m.MaxColumn = t.toHBase(h.Qualifiers.End)
		}
		list = append(list, hbaseFilter("ColumnRangeFilter", m))
	}
	if strips(f) {
		list = append(list, hbaseFilter("KeyOnlyFilter", &pb.KeyOnlyFilter{LenAsVal: proto.Bool(false)}))
	}
	switch len(list) {
	case 0:
	case 1:
		q.scan.Filter = list[0]
	default:
		q.scan.Filter = hbaseFilter("FilterList", &pb.FilterList{Operator: pb.FilterList_MUST_PASS_ALL.Enum(), Filters: list})
	}
	return q, nil
}

func hbaseFilter(name string, m proto.Message) *pb.Filter {
	b, err := proto.Marshal(m)
	if err != nil {
		panic(err) // all required fields are set
	}
	return &pb.Filter{Name: proto.String(filters + name), SerializedFilter: b}
}

// timeRange returns the HBase timestamps of [r.Start, r.End), nil for all.
func timeRange(r cell.TimeRange, unit model.Unit) *pb.TimeRange {
	out := &pb.TimeRange{From: proto.Uint64(0), To: proto.Uint64(math.MaxInt64)}
	if r.Start > 0 {
		out.From = proto.Uint64(uint64(ceil(r.Start, unit)))
	}
	if r.End != math.MaxInt64 {
		out.To = proto.Uint64(uint64(ceil(max(r.End, 0), unit)))
	}
	if out.GetFrom() == 0 && out.GetTo() == math.MaxInt64 {
		return nil
	}
	return out
}

// ceil returns the first HBase timestamp that is not before micros.
func ceil(micros int64, unit model.Unit) int64 {
	ts := hbaseTime(unit, micros)
	if unit == model.Millis && micros%1000 > 0 {
		ts++
	}
	return ts
}

// versions returns how many cells of a column f lets through at most, if it
// counts them before anything else that chooses among them; 0 is all.
func versions(f *filter.Node) int32 {
	if f == nil {
		return 0
	}
	switch f.Op {
	case filter.CellsPerColumnLimit:
		return f.N
	case filter.Chain:
		for _, k := range f.Children {
			if k == nil {
				continue
			}
			switch k.Op {
			case filter.PassAll, filter.FamilyRegex, filter.QualifierRegex, filter.ColumnRange, filter.TimestampRange, filter.RowKeyRegex:
				// HBase chooses by time before it counts, and these take or leave
				// a column as a whole.
			case filter.CellsPerColumnLimit:
				return k.N
			default:
				return 0
			}
		}
	}
	return 0
}

// strips tells whether f drops all values and looks at none.
func strips(f *filter.Node) bool {
	if f == nil {
		return false
	}
	if f.Op == filter.StripValue {
		return true
	}
	if f.Op != filter.Chain || looksAtValues(f) {
		return false
	}
	for _, k := range f.Children {
		switch {
		case k == nil:
		case k.Op == filter.StripValue:
			return true
		case k.Op == filter.Sink || k.Op == filter.Interleave || k.Op == filter.Condition:
			return false // cells may have gone around
		case strips(k):
			return true
		}
	}
	return false
}

func looksAtValues(f *filter.Node) bool {
	if f == nil {
		return false
	}
	switch f.Op {
	case filter.ValueRegex, filter.ValueRange, filter.ValueBitmask, filter.Sink:
		return true
	}
	return slices.ContainsFunc(f.Children, looksAtValues)
}

// A reader puts what a scanner finds through a filter.
type reader struct {
	t        *table
	w        scan.Writer
	pipeline *filter.Pipeline
	stats    *scan.Stats
	limit    int64

	key   []byte
	want  bool // the rest of the row
	began bool // StartRow was called for the row
	inRow bool
	full  bool
	cell  row.Cell
}

// Cell implements filter.Writer.
func (r *reader) Cell(c *row.Cell) {
	if !r.began {
		r.began = true
		r.w.StartRow(r.key)
	}
	r.stats.CellsReturned++
	r.w.Cell(c)
}

// piece implements taker.
func (r *reader) piece(p *piece) (bool, error) {
	if !r.inRow {
		if r.full {
			r.full = false
			if err := r.w.Flush(); err != nil {
				return false, err
			}
		}
		r.key, r.inRow, r.began = append(r.key[:0], p.row...), true, false
		r.stats.RowsSeen++
		r.want = r.pipeline.StartRow(r.key)
	}
	for i := range p.cells {
		r.stats.CellsSeen++
		if !r.want {
			continue
		}
		c := &p.cells[i]
		if string(c.Family) != r.cell.Family {
			r.cell.Family = string(c.Family)
		}
		r.cell.Qualifier, r.cell.Timestamp, r.cell.Value, r.cell.Labels = r.t.fromHBase(c.Qualifier), r.t.unit.Micros(c.Timestamp), c.Value, nil
		r.want = r.pipeline.Cell(&r.cell) != filter.NextRow
	}
	return false, nil
}

// end implements taker.
func (r *reader) end() (bool, error) {
	r.inRow = false
	if err := r.pipeline.EndRow(); err != nil {
		return false, err
	}
	if !r.began {
		r.w.Scanned(r.key)
		return false, nil
	}
	r.stats.RowsReturned++
	var err error
	r.full, err = r.w.EndRow()
	return err == nil && r.stats.RowsReturned == r.limit, err
}

// ReadRows implements backend.Data.
func (b *Backend) ReadRows(ctx context.Context, req *scan.Request, w scan.Writer) (scan.Stats, error) {
	var stats scan.Stats
	err := b.onTable(ctx, req.Table, func(t *table) error {
		q, err := newQuery(t, req.Filter)
		if err != nil || q.none {
			return err
		}
		r := &reader{t: t, w: w, stats: &stats, limit: req.Limit}
		r.pipeline = q.program.Pipeline(r, nil)
		s := &scanner{b: b, client: b.client(), table: t.key(), template: q.scan, reversed: req.Reversed}
		exact := req.Filter == nil || q.program.IsPassAll()
		ranges := slices.Clone(req.Ranges)
		if req.Reversed {
			slices.Reverse(ranges)
		}
		ranges = slices.DeleteFunc(ranges, func(x row.Range) bool { return x.Intersect(q.rows).Empty() })
		for len(ranges) > 0 {
			if n := singles(ranges); n > 1 {
				n = min(n, lookAhead)
				stop, err := s.points(ctx, ranges[:n], r)
				if stop || err != nil {
					return err
				}
				ranges = ranges[n:]
				continue
			}
			s.rows = 0
			if req.Limit > 0 && exact {
				s.rows = req.Limit - stats.RowsReturned
			}
			x := ranges[0].Intersect(q.rows)
			if x.IsSingle() {
				s.rows = 1
			}
			if err := s.run(ctx, x, r); err != nil || req.Limit > 0 && stats.RowsReturned >= req.Limit {
				return err
			}
			ranges = ranges[1:]
		}
		return nil
	})
	return stats, err
}

// lookAhead is how many rows are fetched at a time if they are asked for by
// their keys.
const lookAhead = 16

// singles returns how many of the first ranges are of one row.
func singles(ranges []row.Range) int {
	n := slices.IndexFunc(ranges, func(r row.Range) bool { return !r.IsSingle() })
	if n < 0 {
		return len(ranges)
	}
	return n
}

// A fetched row is what points has of one row.
type fetched struct {
	row   []wire.Cell
	whole bool // false: the row is too long to be kept
	err   error
	// panicked is the panic of its reader, and where; "" if there was none.
	panicked string
}

// piece implements taker.
func (f *fetched) piece(p *piece) (bool, error) {
	if f.row != nil {
		f.row, f.whole = nil, false
		return true, nil
	}
	f.row = p.cells
	return false, nil
}

// end implements taker.
func (f *fetched) end() (bool, error) { return true, nil }

// points reads rows by their keys, several at a time, and gives them on in
// order. A row that does not come in one piece is read again, alone.
func (s *scanner) points(ctx context.Context, ranges []row.Range, to taker) (stop bool, err error) {
	got := make([]fetched, len(ranges))
	done := make([]chan struct{}, len(ranges))
	ctx, cancel := context.WithCancel(ctx)
	defer func() {
		cancel()
		for _, d := range done {
			<-d
		}
	}()
	for i := range ranges {
		done[i] = make(chan struct{})
		got[i].whole = true
		go func() {
			defer close(done[i])
			defer func() {
				if p := recover(); p != nil {
					got[i].panicked = fmt.Sprintf("%v\n%s", p, debug.Stack())
				}
			}()
			one := *s
			one.rows = 1
			got[i].err = one.run(ctx, ranges[i], &got[i])
		}()
	}
	for i := range ranges {
		<-done[i]
		switch g := &got[i]; {
		case g.panicked != "":
			panic(g.panicked) // the call's, which fails alone
		case g.err != nil:
			return false, g.err
		case !g.whole:
			one := *s
			one.rows = 1
			t := &watched{taker: to}
			if err := one.run(ctx, ranges[i], t); err != nil || t.stopped {
				return t.stopped, err
			}
		case len(g.row) > 0:
			if stop, err := to.piece(&piece{g.row[0].Row, g.row}); stop || err != nil {
				return stop, err
			}
			if stop, err := to.end(); stop || err != nil {
				return stop, err
			}
		}
		got[i].row = nil
	}
	return false, nil
}

// watched notes whether a taker has stopped the scan.
type watched struct {
	taker
	stopped bool
}

func (w *watched) piece(p *piece) (bool, error) {
	stop, err := w.taker.piece(p)
	w.stopped = w.stopped || stop
	return stop, err
}

func (w *watched) end() (bool, error) {
	stop, err := w.taker.end()
	w.stopped = w.stopped || stop
	return stop, err
}
