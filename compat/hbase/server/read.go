package server

import (
	"context"
	"errors"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/compat/hbase/filter"
	"github.com/trestledb/trestle/compat/hbase/model"
	"github.com/trestledb/trestle/compat/hbase/pb"
	"github.com/trestledb/trestle/compat/hbase/wire"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/schema"
)

// errStop ends a read that has what it wants.
var errStop = errors.New("the reader has enough")

// A reader is a scan.Writer that gives each row, as far as the query wants it,
// to sink.
type reader struct {
	rowReader
	// sink takes a row. stop ends the read after it.
	sink func(key []byte, cells []filter.Cell) (stop bool, err error)
	// pause, if set, is asked now and then whether to stop after a row, or a run
	// of rows that had nothing.
	pause func() bool
	// ahead says that a read which has enough goes on until it is known whether
	// another row follows.
	ahead bool

	looking bool   // for a row that follows
	seen    int64  // rows with a cell that the engine passed
	empty   int    // rows since pause was asked
	skipped int    // rows below seek
	seek    []byte // of the filter: rows up to here need not be read
	stopped bool
	at      []byte // the last row that is behind the reader
}

func newReader(q *query, room *room, sink func(key []byte, cells []filter.Cell) (stop bool, err error)) *reader {
	return &reader{rowReader: rowReader{q: q, room: room}, sink: sink}
}

func (r *reader) StartRow(key []byte) {
	if !r.looking {
		r.start(key)
	}
}

func (r *reader) Cell(c *row.Cell) {
	if !r.looking {
		r.add(c)
	}
}

// askEvery is after how many rows pause is asked.
const askEvery = 64

// seekAfter is how many rows below a filter's hint are read before the read is
// begun anew at the hint: near ones are cheaper to read through.
const seekAfter = 32

func (r *reader) EndRow() (full bool, err error) {
	if r.looking {
		r.looking, r.stopped = false, true // there is one; at stays before it
		return true, nil
	}
	if r.err != nil {
		return false, r.err
	}
	r.seen++
	r.at = append(r.at[:0], r.key...)
	out, err := r.q.finish(r.cells)
	if err != nil {
		return false, err
	}
	if len(out) > 0 {
		if r.stopped, err = r.sink(r.key, out); err != nil {
			return false, err
		}
		r.skipped, r.seek = 0, nil
	} else if f := r.q.filter; f != nil {
		if hint, ok := f.Seek(); ok {
			r.seek = append(r.seek[:0], hint...)
			r.skipped++
		} else {
			r.skipped, r.seek = 0, nil
		}
	}
	if f := r.q.filter; f != nil && f.Done() {
		r.stopped = true
	} else if r.stopped && r.ahead {
		r.looking, r.stopped = true, false
		return false, nil
	}
	if r.empty++; r.empty >= askEvery && r.pause != nil {
		r.empty = 0
		r.stopped = r.stopped || r.pause()
	}
	return r.stopped || r.skipped >= seekAfter, nil
}

func (r *reader) Scanned(key []byte) {
	if !r.stopped {
		r.at = append(r.at[:0], key...)
	}
}

func (r *reader) Flush() error {
	if r.stopped || r.skipped >= seekAfter {
		return errStop
	}
	if r.pause != nil && r.pause() {
		r.stopped = true
		return errStop
	}
	return nil
}

// read gives rows of ranges, sorted and disjoint, to r until it has enough. It
// returns what is left of the ranges.
func (s *Server) read(ctx context.Context, table string, ranges []row.Range, reversed bool, r *reader) (rest []row.Range, err error) {
	node := r.q.node()
	for len(ranges) > 0 {
		_, err := s.b.ReadRows(ctx, &scan.Request{Table: table, Ranges: ranges, Reversed: reversed, Filter: node}, r)
		if err == nil {
			return nil, nil
		}
		if !errors.Is(err, errStop) {
			return ranges, err
		}
		ranges = behind(ranges, r.at, reversed)
		if r.stopped {
			return ranges, nil
		}
		// The filter knows of nothing before its hint.
		if hint := r.seek; len(hint) > 0 {
			if reversed {
				ranges = cut(ranges, row.Range{End: row.Successor(hint)})
			} else {
				ranges = cut(ranges, row.Range{Start: hint})
			}
		}
		r.skipped, r.seek = 0, nil
	}
	return nil, nil
}

// behind returns the parts of ranges that a read which is at key has not read.
// The key is empty if it has read nothing.
func behind(ranges []row.Range, key []byte, reversed bool) []row.Range {
	if len(key) == 0 {
		return ranges
	}
	if reversed {
		return cut(ranges, row.Range{End: key})
	}
	return cut(ranges, row.Range{Start: row.Successor(key)})
}

func cut(ranges []row.Range, to row.Range) []row.Range {
	out := make([]row.Range, 0, len(ranges))
	for _, r := range ranges {
		if part := r.Intersect(to); !part.Empty() {
			out = append(out, part)
		}
	}
	return out
}

// region returns the region of a request. Its client may do what it asks for.
func (s *Server) region(ctx context.Context, c *Call, spec *pb.RegionSpecifier, what Action) (context.Context, *model.Region, *model.Table, error) {
	r, t, err := s.catalog.Region(ctx, spec)
	if errors.Is(err, model.ErrMoved) {
		return ctx, nil, nil, wire.NotServingRegion.New("%s", err.Error())
	}
	if err != nil {
		return ctx, nil, nil, err
	}
	ctx, err = s.authorize(ctx, c, what, t)
	return ctx, r, t, err
}

func (s *Server) authorize(ctx context.Context, c *Call, what Action, t *model.Table) (context.Context, error) {
	if s.o.Authorize == nil {
		return ctx, nil
	}
	name := ""
	if t != nil {
		name = t.Resource
	}
	return s.o.Authorize(ctx, c, what, name)
}

// checkRow reports a row that is not in a region, or can be in none.
func checkRow(r *model.Region, key []byte) error {
	if len(key) == 0 {
		return wire.DoNotRetryIO.New("a row of length 0")
	}
	if len(key) > schema.MaxHBaseRowKey {
		return wire.DoNotRetryIO.New("a row of length %d; at most %d", len(key), schema.MaxHBaseRowKey)
	}
	if r != model.MetaRegion && !r.Contains(key) {
		return wire.WrongRegion.New("row %q is not in region %v, which ends at %q", shorten(string(key)), r, shorten(string(r.End)))
	}
	return nil
}

// getBytes is what is reserved for a row and the answer with it, few of which are larger.
const getBytes = 64 << 10

func (s *Server) get(ctx context.Context, c *Call, req *pb.GetRequest) (*pb.GetResponse, error) {
	ctx, region, t, err := s.region(ctx, c, req.GetRegion(), Read)
	if err != nil {
		return nil, err
	}
	if err := c.reserve(ctx, s, getBytes); err != nil {
		return nil, err
	}
	// Clients that do not say their version take the cells of a Get in its
	// message, as HBase's own server gives it to them.
	res, err := s.getRow(ctx, c, region, t, req.GetGet(), c.Blocks && c.Versioned)
	return &pb.GetResponse{Result: res}, err
}

// getRow answers a Get, with its cells in the block of the call or in the
// result.
func (s *Server) getRow(ctx context.Context, c *Call, region *model.Region, t *model.Table, get *pb.Get, block bool) (*pb.Result, error) {
	if get.GetClosestRowBefore() {
		return nil, wire.UnknownProtocol.New("Is this a pre-hbase-1.0.0 or asynchbase client? Client is invoking getClosestRowBefore removed in hbase-2.0.0 replaced by reverse Scan.")
	}
	if err := checkRow(region, get.GetRow()); err != nil {
		return nil, err
	}
	eager := get.LoadColumnFamiliesOnDemand != nil && !get.GetLoadColumnFamiliesOnDemand()
	var computed *table
	if t == nil {
		var err error
		if computed, err = s.computed(ctx, region.Table, get.GetRow(), get.GetRow()); err != nil {
			return nil, err
		}
	}
	defer c.room.filtered()
	q, err := newQuery(t, computed.families(), get, eager, false, time.Now(), &c.room)
	if err != nil {
		return nil, err
	}
	res := &pb.Result{Stale: proto.Bool(false)}
	exists := false
	sink := func(_ []byte, cells []filter.Cell) (bool, error) {
		exists = len(cells) > 0
		if get.GetExistenceOnly() {
			return true, nil
		}
		n := cellsSize(cells)
		if err := c.room.answered(n); err != nil {
			return true, err
		}
		if block {
			res.AssociatedCellCount = proto.Int32(int32(len(cells)))
			c.Block = appendCells(slices.Grow(c.Block, int(n)), cells)
		} else {
			res.Cell = cellsProto(cells)
		}
		return true, nil
	}
	r := newReader(q, &c.room, sink)
	if t == nil {
		err = computed.get(r, get.GetRow())
	} else {
		_, err = s.read(ctx, t.Resource, q.rows(row.Single(get.GetRow())), false, r)
	}
	if err != nil {
		return nil, err
	}
	if get.GetExistenceOnly() {
		res.Exists = proto.Bool(exists)
	} else if block && res.AssociatedCellCount == nil {
		res.AssociatedCellCount = proto.Int32(0)
	}
	return res, nil
}

// cellsSize returns what appendCells appends.
func cellsSize(cells []filter.Cell) (n int64) {
	for i := range cells {
		c := &cells[i]
		n += int64(wire.CellSize(len(c.Row), len(c.Family), len(c.Qualifier), len(c.Value)))
	}
	return n
}

func appendCells(dst []byte, cells []filter.Cell) []byte {
	for i := range cells {
		c := &cells[i]
		dst = wire.AppendCell(dst, c.Row, c.Family, c.Qualifier, c.Timestamp, c.Type, c.Value)
	}
	return dst
}

// cellsProto copies cells into messages.
func cellsProto(cells []filter.Cell) []*pb.Cell {
	out := make([]*pb.Cell, len(cells))
	list := make([]pb.Cell, len(cells))
	for i := range cells {
		c, p := &cells[i], &list[i]
		p.Row, p.Family, p.Qualifier, p.Value = clone(c.Row), clone(c.Family), clone(c.Qualifier), clone(c.Value)
		p.Timestamp, p.CellType = proto.Uint64(uint64(c.Timestamp)), pb.CellType(c.Type).Enum()
		out[i] = p
	}
	return out
}

// clone never returns nil: an absent field is not the same as an empty one to
// every client.
func clone(b []byte) []byte { return append([]byte{}, b...) }
