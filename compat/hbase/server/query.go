package server

import (
	"bytes"
	"errors"
	"math"
	"slices"
	"sort"
	"time"

	"github.com/trestledb/trestle/compat/hbase/filter"
	"github.com/trestledb/trestle/compat/hbase/model"
	"github.com/trestledb/trestle/compat/hbase/pb"
	"github.com/trestledb/trestle/compat/hbase/wire"
	"github.com/trestledb/trestle/engine/cell"
	enginefilter "github.com/trestledb/trestle/engine/filter"
	"github.com/trestledb/trestle/engine/row"
)

// A timeRange is HBase's [from, to) in its own timestamps.
type timeRange struct{ from, to int64 }

var allTimes = timeRange{0, math.MaxInt64}

func timesOf(t *pb.TimeRange) (timeRange, error) {
	r := allTimes
	if t == nil {
		return r, nil
	}
	if t.From != nil {
		r.from = int64(t.GetFrom())
	}
	if t.To != nil {
		r.to = int64(t.GetTo())
	}
	if r.from < 0 || r.to < 0 || r.to < r.from {
		return r, wire.DoNotRetryIO.New("time range [%d, %d)", r.from, r.to)
	}
	return r, nil
}

func (r timeRange) contains(ts int64) bool {
	return ts >= r.from && (ts < r.to || r.to == math.MaxInt64)
}

// A family is what a query wants of a column family.
type family struct {
	name []byte
	// qualifiers are sorted; nil is all of them.
	qualifiers [][]byte
	times      timeRange
	rule       model.Family
	oldest     int64 // timestamp of a cell that TTL lets live
	// versions is the smaller of the query's number and the family's.
	versions int
}

// A query is what a get or a scan wants of every row. It has the state of its
// filter, so it is for one reader.
type query struct {
	unit     model.Unit
	families []family // by name; nil: it was made for no table
	filter   *filter.Filter
	storeOffset,
	storeLimit int
	// fine says that several stored timestamps may be one of HBase's.
	fine bool
	raw  bool // computed tables: no rules
}

// A spec is the part that Get and Scan have in common.
type spec interface {
	GetColumn() []*pb.Column
	GetTimeRange() *pb.TimeRange
	GetCfTimeRange() []*pb.ColumnFamilyTimeRange
	GetMaxVersions() uint32
	GetStoreLimit() uint32
	GetStoreOffset() uint32
	GetFilter() *pb.Filter
	GetLoadColumnFamiliesOnDemand() bool
}

// newQuery checks what a get or a scan asks for. t is nil for computed tables,
// whose families are given then. A filter is decoded if room has place for it.
func newQuery(t *model.Table, computed []string, sp spec, eager, reversed bool, now time.Time, room *room) (*query, error) {
	q := &query{storeOffset: int(min(sp.GetStoreOffset(), math.MaxInt32)), storeLimit: int(min(sp.GetStoreLimit(), math.MaxInt32))}
	rules := map[string]model.Family{}
	if t != nil {
		rules, q.unit = t.Families, t.Unit
		q.fine = t.Unit == model.Millis && t.Schema.Granularity%1000 != 0
	} else {
		q.raw = true
		for _, f := range computed {
			rules[f] = model.Family{Versions: math.MaxInt32, TTL: model.Forever}
		}
	}
	times, err := timesOf(sp.GetTimeRange())
	if err != nil {
		return nil, err
	}
	versions := int(min(sp.GetMaxVersions(), math.MaxInt32))
	if versions < 1 {
		return nil, wire.DoNotRetryIO.New("max_versions must be positive")
	}
	add := func(name []byte, qualifiers [][]byte) error {
		rule, ok := rules[string(name)]
		if !ok {
			return noFamily(t, name)
		}
		at, found := sort.Find(len(q.families), func(i int) int { return bytes.Compare(name, q.families[i].name) })
		if found {
			f := &q.families[at]
			if f.qualifiers == nil || len(qualifiers) == 0 {
				f.qualifiers = nil
			} else {
				f.qualifiers = append(f.qualifiers, qualifiers...)
			}
			return nil
		}
		f := family{name: name, times: times, rule: rule, oldest: math.MinInt64, versions: min(versions, int(rule.Versions))}
		if len(qualifiers) > 0 {
			f.qualifiers = slices.Clone(qualifiers)
		}
		if rule.TTL < model.Forever && q.unit == model.Millis {
			f.oldest = now.UnixMilli() - rule.TTL*1000
		}
		q.families = slices.Insert(q.families, at, f)
		return nil
	}
	if len(sp.GetColumn()) == 0 {
		for name := range rules {
			if err := add([]byte(name), nil); err != nil {
				return nil, err
			}
		}
	}
	for _, c := range sp.GetColumn() {
		if err := add(c.GetFamily(), c.GetQualifier()); err != nil {
			return nil, err
		}
	}
	for i := range q.families {
		f := &q.families[i]
		slices.SortFunc(f.qualifiers, bytes.Compare)
		f.qualifiers = slices.CompactFunc(f.qualifiers, bytes.Equal)
	}
	for _, c := range sp.GetCfTimeRange() {
		f := q.family(string(c.GetColumnFamily()))
		if f == nil {
			continue
		}
		if f.times, err = timesOf(c.GetTimeRange()); err != nil {
			return nil, err
		}
	}
	if sp.GetFilter() != nil {
		q.filter, err = filter.New(sp.GetFilter(), filter.Options{Reversed: reversed, StoreOffset: q.storeOffset, StoreLimit: q.storeLimit,
			Eager: eager, Take: room.decode, Versions: func(name []byte) int {
				if f := q.family(string(name)); f != nil {
					return f.versions
				}
				return math.MaxInt
			}})
		if err != nil {
			return nil, filterError(err)
		}
	}
	return q, nil
}

// filterError is an error of package filter as an exception.
func filterError(err error) error {
	var e *filter.Error
	if errors.As(err, &e) {
		return wire.Class{Name: e.Class, DoNotRetry: true}.New("%s", e.Msg)
	}
	return err
}

func noFamily(t *model.Table, name []byte) error {
	table := model.Meta.String()
	if t != nil {
		table = t.Name.String()
	}
	return wire.NoSuchFamily.New("Column family %s does not exist in table %s", shorten(string(name)), table)
}

// family returns what the query wants of a family, nil if that is nothing.
func (q *query) family(name string) *family {
	for i := range q.families {
		if string(q.families[i].name) == name {
			return &q.families[i]
		}
	}
	return nil
}

// node returns a filter of the engine that leaves every cell that the query
// wants, and few others.
func (q *query) node() *enginefilter.Node {
	var chain []*enginefilter.Node
	columns := map[string][]row.Range{}
	times, versions := timeRange{math.MaxInt64, 0}, 0
	for i := range q.families {
		f := &q.families[i]
		if q.filter != nil && !q.filter.Family(f.name) {
			continue
		}
		ranges := []row.Range{row.All}
		if f.qualifiers != nil {
			ranges = ranges[:0]
			for _, name := range f.qualifiers {
				ranges = append(ranges, row.Single(name))
			}
		} else if q.filter != nil {
			start, end := q.filter.Qualifiers()
			ranges[0] = row.Range{Start: start, End: end}
		}
		columns[string(f.name)] = row.Union(ranges)
		times = timeRange{min(times.from, f.times.from), max(times.to, f.times.to)}
		n := f.versions
		if q.filter != nil {
			n = int(f.rule.Versions) // HBase counts the query's versions after the filter
		}
		versions = max(versions, n)
	}
	if len(columns) == 0 {
		return &enginefilter.Node{Op: enginefilter.BlockAll}
	}
	chain = append(chain, &enginefilter.Node{Op: enginefilter.Columns, Columns: columns, Children: []*enginefilter.Node{nil}})
	if times != allTimes {
		start, end := q.unit.Bounds(times.from, times.to)
		chain = append(chain, &enginefilter.Node{Op: enginefilter.TimestampRange, Times: cell.TimeRange{Start: start, End: end}})
	}
	if versions < math.MaxInt32 && !q.fine && len(q.cfTimes()) == 0 {
		chain = append(chain, &enginefilter.Node{Op: enginefilter.CellsPerColumnLimit, N: int32(versions)})
	}
	if len(chain) == 1 {
		return chain[0]
	}
	return &enginefilter.Node{Op: enginefilter.Chain, Children: chain}
}

// cfTimes returns the families whose times differ from those of the first.
func (q *query) cfTimes() (out []int) {
	for i := range q.families {
		if q.families[i].times != q.families[0].times {
			out = append(out, i)
		}
	}
	return out
}

// rows returns the parts of a range that the filter may pass.
func (q *query) rows(r row.Range) []row.Range {
	if q.filter != nil {
		if list, ok := q.filter.Rows(); ok {
			out := make([]row.Range, 0, len(list))
			for _, p := range list {
				if part := r.Intersect(row.Range{Start: p.Start, End: p.End}); !part.Empty() {
					out = append(out, part)
				}
			}
			return row.Union(out)
		}
	}
	if r.Empty() {
		return nil
	}
	return []row.Range{r}
}

// A rowReader takes the cells of one row, in order. It keeps those that the
// families' rules and the query's columns and times let through: HBase's
// filters see only these. With q and room it is ready for start.
type rowReader struct {
	q     *query
	room  *room
	cells []filter.Cell
	arena []byte
	key   []byte
	err   error // of room: the row is not kept

	fam   *family
	name  string
	qual  []byte
	count int   // live versions of the column
	last  int64 // timestamp of the one before
}

func (r *rowReader) start(key []byte) {
	r.cells, r.arena = r.cells[:0], r.arena[:0]
	r.fam, r.name, r.qual = nil, "", nil
	r.room.row = int64(cap(r.arena)) + int64(cap(r.cells))*cellBytes
	r.key = r.copy(key)
}

// An arena grows from the smallest to the largest. A value of a quarter of that has
// memory of its own, so that no more than a quarter is left over.
const minArena, maxArena = 4 << 10, 1 << 20

// copy keeps p until the next row. What the arena held before it grew is still
// there for slices of it.
func (r *rowReader) copy(p []byte) []byte {
	if len(p) > cap(r.arena)-len(r.arena) {
		n := len(p)
		if n < maxArena/4 {
			n = max(min(2*cap(r.arena), maxArena), n, minArena)
		}
		if r.keep(int64(n)); r.err != nil {
			return nil
		}
		if n == len(p) {
			return append([]byte(nil), p...)
		}
		r.arena = make([]byte, 0, n)
	}
	n := len(r.arena)
	r.arena = append(r.arena, p...)
	return r.arena[n:len(r.arena):len(r.arena)]
}

// keep counts n bytes of the row. A row for which there is no room is let go.
func (r *rowReader) keep(n int64) {
	if r.err = r.room.read(n); r.err != nil {
		r.cells, r.arena = nil, nil
		r.room.forget()
	}
}

func (r *rowReader) add(c *row.Cell) {
	if r.err != nil {
		return
	}
	if r.name != c.Family || r.fam == nil {
		r.name = c.Family
		if r.fam = r.q.family(c.Family); r.fam == nil {
			return
		}
		r.qual = nil
	}
	f := r.fam
	ts := r.q.unit.HBase(c.Timestamp)
	if !f.times.contains(ts) {
		return
	}
	if r.qual == nil || !bytes.Equal(r.qual, c.Qualifier) {
		r.qual = r.copy(c.Qualifier)
		r.count = 0
	} else if ts == r.last {
		return // a finer timestamp than HBase's: the newest stands for all
	}
	r.last = ts
	if !r.q.raw {
		if r.count >= int(f.rule.Versions) || ts < f.oldest && r.count >= int(f.rule.MinVersions) {
			r.count++
			return
		}
		r.count++
	}
	value, n := r.copy(c.Value), cap(r.cells)
	if r.err != nil {
		return
	}
	r.cells = append(r.cells, filter.Cell{Row: r.key, Family: f.name, Qualifier: r.qual, Value: value, Timestamp: ts, Type: wire.TypePut})
	if grown := cap(r.cells) - n; grown > 0 {
		r.keep(int64(grown) * cellBytes)
	}
}

// finish returns what the query leaves of a row. The result is valid until the
// next row.
func (q *query) finish(cells []filter.Cell) ([]filter.Cell, error) {
	if q.filter != nil {
		out, err := q.filter.Row(cells)
		return out, filterError(err)
	}
	out := cells[:0]
	var f *family
	inFamily, versions := 0, 0
	for i := range cells {
		c := &cells[i]
		newColumn := f == nil || !bytes.Equal(f.name, c.Family)
		if newColumn {
			f, inFamily = q.family(string(c.Family)), 0
		}
		if newColumn || i > 0 && !bytes.Equal(cells[i-1].Qualifier, c.Qualifier) {
			versions = 0
		}
		if versions++; versions > f.versions {
			continue
		}
		if inFamily++; inFamily <= q.storeOffset || q.storeLimit > 0 && inFamily > q.storeOffset+q.storeLimit {
			continue
		}
		out = append(out, *c)
	}
	return out, nil
}
