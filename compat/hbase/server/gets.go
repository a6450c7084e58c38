package server

import (
	"bytes"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/compat/hbase/filter"
	"github.com/trestledb/trestle/compat/hbase/model"
	"github.com/trestledb/trestle/compat/hbase/pb"
	"github.com/trestledb/trestle/compat/hbase/wire"
	"github.com/trestledb/trestle/engine/row"
)

// A gathering is gets that want the same of rows of one table, so that they
// can be one read.
type gathering struct {
	t    *model.Table
	gets []*action
}

// gather puts a get to those that are like it, if its row may be read. It
// returns false if it has to be read alone: a filter has state, and computed
// tables are not read this way.
func gather(to []*gathering, x *action) ([]*gathering, bool) {
	if x.t == nil || x.get.GetFilter() != nil || x.get.GetClosestRowBefore() {
		return to, false
	}
	if x.err = checkRow(x.region, x.get.GetRow()); x.err != nil {
		return to, true
	}
	for _, g := range to {
		if g.t == x.t && alike(g.gets[0].get, x.get) {
			g.gets = append(g.gets, x)
			return to, true
		}
	}
	if len(to) == parallel {
		return to, false
	}
	return append(to, &gathering{t: x.t, gets: []*action{x}}), true
}

// alike tells whether two gets without filters differ in nothing but the row.
func alike(a, b *pb.Get) bool {
	return a.GetExistenceOnly() == b.GetExistenceOnly() && a.GetMaxVersions() == b.GetMaxVersions() &&
		a.GetStoreLimit() == b.GetStoreLimit() && a.GetStoreOffset() == b.GetStoreOffset() &&
		sameTimes(a.GetTimeRange(), b.GetTimeRange()) &&
		slices.EqualFunc(a.GetColumn(), b.GetColumn(), func(a, b *pb.Column) bool {
			return bytes.Equal(a.GetFamily(), b.GetFamily()) && slices.EqualFunc(a.GetQualifier(), b.GetQualifier(), bytes.Equal)
		}) &&
		slices.EqualFunc(a.GetCfTimeRange(), b.GetCfTimeRange(), func(a, b *pb.ColumnFamilyTimeRange) bool {
			return bytes.Equal(a.GetColumnFamily(), b.GetColumnFamily()) && sameTimes(a.GetTimeRange(), b.GetTimeRange())
		})
}

func sameTimes(a, b *pb.TimeRange) bool {
	ta, erra := timesOf(a)
	tb, errb := timesOf(b)
	return ta == tb && erra == nil && errb == nil
}

// pieces cuts gets, in the order of their rows, into parts that are read at the
// same time. Small ones are not worth a goroutine.
func (g *gathering) pieces() [][]*action {
	slices.SortStableFunc(g.gets, func(a, b *action) int { return bytes.Compare(a.get.GetRow(), b.get.GetRow()) })
	return slices.Collect(slices.Chunk(g.gets, max(piece, (len(g.gets)+parallel-1)/parallel)))
}

// piece is how many rows are read one after the other at least.
const piece = 16

// getRows answers gets that are alike, sorted by row. size is how much the
// Multi's block has, share is what is reserved for each get.
func (s *Server) getRows(c *Call, gets []*action, share int64, size *atomic.Int64) {
	first := gets[0]
	fail := func(err error) {
		for _, x := range gets {
			x.res, x.err = nil, err
		}
	}
	q, err := newQuery(first.t, nil, first.get, false, false, time.Now(), nil)
	if err != nil {
		fail(err)
		return
	}
	ranges := make([]row.Range, 0, len(gets))
	results := make([]pb.Result, len(gets))
	for i, x := range gets {
		x.res = &results[i]
		x.res.Stale = proto.Bool(false)
		if x.get.GetExistenceOnly() {
			x.res.Exists = proto.Bool(false)
		} else if c.Blocks {
			x.res.AssociatedCellCount = proto.Int32(0)
		}
		if i == 0 || !bytes.Equal(x.get.GetRow(), gets[i-1].get.GetRow()) {
			ranges = append(ranges, row.Single(x.get.GetRow()))
		}
	}
	rest := gets
	block := newBuffer()
	room := &room{memory: s.o.Memory, free: share * int64(len(gets)), again: true}
	defer func() {
		room.forget()
		first.buffer, first.taken = block, room.taken
	}()
	r := newReader(q, room, func(key []byte, cells []filter.Cell) (stop bool, err error) {
		for len(rest) > 0 && bytes.Compare(rest[0].get.GetRow(), key) < 0 {
			rest = rest[1:]
		}
		if len(rest) > 0 && size.Load() >= s.o.multiBytes() {
			return true, nil
		}
		for ; len(rest) > 0 && bytes.Equal(rest[0].get.GetRow(), key); rest = rest[1:] {
			x := rest[0]
			if x.get.GetExistenceOnly() {
				x.res.Exists = proto.Bool(true)
				continue
			}
			if err := room.answered(cellsSize(cells)); err != nil {
				return true, err
			}
			if c.Blocks {
				*x.res.AssociatedCellCount = int32(len(cells))
				n := len(block)
				block = appendCells(block, cells)
				x.block = block[n:]
				size.Add(int64(len(x.block)))
			} else {
				x.res.Cell = cellsProto(cells)
				size.Add(int64(proto.Size(x.res)))
			}
		}
		return false, nil
	})
	_, err = s.read(first.ctx, first.t.Resource, ranges, false, r)
	switch {
	case err != nil:
		gets = rest
		fail(err)
		if e, ok := errors.AsType[*wire.Exception](err); ok && e.DoNotRetry {
			// It is about one row. The others were not read.
			for _, x := range rest {
				if !bytes.Equal(x.get.GetRow(), r.key) {
					x.err = retryAtOnce.New("another row was not read: %v", err)
				}
			}
		}
	case r.stopped:
		gets = rest
		fail(retryAtOnce.New("the response has %d bytes already", size.Load()))
	}
}
