package server

import (
	"bytes"
	"context"
	"encoding/binary"
	"math"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/compat/hbase/filter"
	"github.com/trestledb/trestle/compat/hbase/model"
	"github.com/trestledb/trestle/compat/hbase/pb"
	"github.com/trestledb/trestle/compat/hbase/wire"
	enginefilter "github.com/trestledb/trestle/engine/filter"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/gateway/backend"
)

// A condition is what must hold of a row for it to be changed.
type condition struct {
	family, qualifier []byte
	times             timeRange
	compare           func(cell []byte, missing bool) (bool, error)
	// get is set for a condition that is a filter: what it would return.
	get *pb.Get
}

// parseCondition reads a condition on the row key. Its comparator stays in room.
func parseCondition(c *pb.Condition, t *model.Table, key []byte, room *room) (*condition, error) {
	if c == nil {
		return nil, nil
	}
	if !bytes.Equal(c.GetRow(), key) {
		return nil, wire.DoNotRetryIO.New("Action's getRow must match: a condition on row %q of a change of row %q", shorten(string(c.GetRow())), shorten(string(key)))
	}
	times, err := timesOf(c.GetTimeRange())
	if err != nil {
		return nil, err
	}
	if c.GetFilter() != nil {
		get := &pb.Get{Row: key, Filter: c.GetFilter(), TimeRange: c.GetTimeRange()}
		_, err := newQuery(t, nil, get, true, false, time.Now(), room)
		room.filtered()
		return &condition{get: get}, err
	}
	if _, ok := t.Schema.Families[string(c.GetFamily())]; !ok {
		return nil, noFamily(t, c.GetFamily())
	}
	compare, err := comparison(c.GetCompareType(), c.GetComparator(), room)
	if err != nil {
		return nil, filterError(err)
	}
	return &condition{family: c.GetFamily(), qualifier: c.GetQualifier(), times: times, compare: compare}, nil
}

// A present is the part of a row that an update has read.
type present struct {
	t     *model.Table
	now   int64
	cells []row.Cell
	room  *room
}

// newest returns the nth newest cell of a column, counted from 0, as a read
// would.
func (p *present) newest(family string, qualifier []byte, times timeRange, n int) (value []byte, ts int64, ok bool) {
	rule := p.t.Families[family]
	rank, last := 0, int64(math.MinInt64)
	for i := range p.cells {
		c := &p.cells[i]
		if c.Family != family || !bytes.Equal(c.Qualifier, qualifier) {
			continue
		}
		at := p.t.Unit.HBase(c.Timestamp)
		if !times.contains(at) || rank > 0 && at == last {
			continue
		}
		if rank >= int(rule.Versions) || rule.TTL < model.Forever && p.t.Unit == model.Millis && at < p.now-rule.TTL*1000 && rank >= int(rule.MinVersions) {
			return nil, 0, false
		}
		if rank == n {
			return c.Value, at, true
		}
		rank, last = rank+1, at
	}
	return nil, 0, false
}

// holds tells whether the condition holds. at is the timestamp of the cell that
// was looked at, 0 if there is none.
func (c *condition) holds(p *present) (ok bool, at int64, err error) {
	if c.get != nil {
		defer p.room.filtered()
		q, err := newQuery(p.t, nil, c.get, true, false, time.UnixMilli(p.now), p.room)
		if err != nil {
			return false, 0, err
		}
		r := rowReader{q: q, room: p.room}
		defer p.room.forget()
		r.start(c.get.GetRow())
		for i := range p.cells {
			r.add(&p.cells[i])
		}
		if r.err != nil {
			return false, 0, r.err
		}
		out, err := q.finish(r.cells)
		return len(out) > 0, 0, err
	}
	value, at, found := p.newest(string(c.family), c.qualifier, c.times, 0)
	ok, err = c.compare(value, !found)
	return ok, at, filterError(err)
}

// needs returns a filter that leaves what the condition and the changes look
// at; nil if that is everything.
func needs(cond *condition, changes []*change) *enginefilter.Node {
	columns := map[string][]row.Range{}
	versions, timed := 1, false
	need := func(family, qualifier []byte, times timeRange) {
		columns[string(family)] = append(columns[string(family)], row.Single(qualifier))
		timed = timed || times != allTimes
	}
	if cond != nil {
		if cond.get != nil {
			return nil
		}
		need(cond.family, cond.qualifier, cond.times)
	}
	for _, ch := range changes {
		if !ch.reads() {
			continue
		}
		deletes := map[string]int{}
		for i := range ch.cells {
			c := &ch.cells[i]
			if ch.kind == pb.MutationProto_PUT || ch.kind == pb.MutationProto_DELETE {
				if c.Type != wire.TypeDelete || c.Timestamp != model.Latest {
					continue
				}
				k := string(c.Family) + ":" + string(c.Qualifier)
				deletes[k]++
				versions = max(versions, deletes[k])
			}
			need(c.Family, c.Qualifier, ch.times)
		}
	}
	for f, r := range columns {
		columns[f] = row.Union(r)
	}
	n := &enginefilter.Node{Op: enginefilter.Columns, Columns: columns, Children: []*enginefilter.Node{nil}}
	if timed {
		return n
	}
	return &enginefilter.Node{Op: enginefilter.Chain, Children: []*enginefilter.Node{n, {Op: enginefilter.CellsPerColumnLimit, N: int32(min(versions, math.MaxInt32))}}}
}

// An outcome is what became of the changes of a row.
type outcome struct {
	processed bool
	// repeated says that they had been made before.
	repeated bool
	// cells are the new ones of increments and appends, sorted.
	cells []filter.Cell
}

// update makes changes, which have been checked, of one row, if the condition
// (nil: none) holds and they have not been made with the same nonce before.
func (s *Server) update(ctx context.Context, c *Call, t *model.Table, key []byte, n nonce, cond *condition, changes []*change) (outcome, error) {
	reads := cond != nil
	for _, ch := range changes {
		reads = reads || ch.reads()
	}
	b := &batch{t: t, now: time.Now().UnixMilli()}
	if !reads {
		for _, ch := range changes {
			b.put(ch)
		}
		if len(b.muts) == 0 {
			return outcome{processed: true}, nil
		}
		err := s.b.MutateRow(ctx, t.Resource, &row.Entry{Key: key, Mutations: b.muts, Token: row.Token{Token: n.token()}})
		return outcome{processed: true}, err
	}
	var out outcome
	repeated, err := s.b.(backend.RowUpdater).UpdateRow(ctx, t.Resource, key, n.token(), needs(cond, changes), func(cells []row.Cell) ([]row.Mutation, error) {
		out = outcome{processed: true}
		b.now, b.muts = time.Now().UnixMilli(), b.muts[:0]
		p := &present{t, b.now, cells, &c.room}
		if cond != nil {
			ok, at, err := cond.holds(p)
			if err != nil || !ok {
				out.processed = false
				return nil, err
			}
			b.now = max(b.now, at)
		}
		for _, ch := range changes {
			if err := b.apply(ch, p, &out); err != nil {
				return nil, err
			}
		}
		return b.muts, nil
	})
	if err != nil {
		return outcome{}, err
	}
	if repeated {
		return outcome{processed: true, repeated: true}, nil
	}
	slices.SortStableFunc(out.cells, func(a, b filter.Cell) int {
		if c := bytes.Compare(a.Family, b.Family); c != 0 {
			return c
		}
		return bytes.Compare(a.Qualifier, b.Qualifier)
	})
	return out, nil
}

// apply adds what a change makes of the present row. What it reads is what was
// there before all changes.
func (b *batch) apply(ch *change, p *present, out *outcome) error {
	if !ch.reads() {
		b.put(ch)
		return nil
	}
	deletes := map[string]int{}
	for i := range ch.cells {
		c := &ch.cells[i]
		family := string(c.Family)
		switch ch.kind {
		case pb.MutationProto_PUT, pb.MutationProto_DELETE:
			if c.Type != wire.TypeDelete || c.Timestamp != model.Latest {
				b.cell(c, ch.ttl)
				continue
			}
			k := family + ":" + string(c.Qualifier)
			if _, ts, ok := p.newest(family, c.Qualifier, allTimes, deletes[k]); ok {
				b.cover(family, clone(c.Qualifier), ts, ts)
			}
			deletes[k]++
			continue
		}
		old, ts, ok := p.newest(family, c.Qualifier, ch.times, 0)
		at := b.latest(c.Timestamp)
		if ok {
			at = b.now
			if ts < math.MaxInt64 {
				at = max(ts+1, b.now)
			}
		}
		var value []byte
		if ch.kind == pb.MutationProto_INCREMENT {
			n, err := long(c.Value)
			if err != nil {
				return err
			}
			if ok {
				was, err := long(old)
				if err != nil {
					return err
				}
				n += was
			}
			value = binary.BigEndian.AppendUint64(nil, uint64(n))
		} else {
			if n := len(old) + len(c.Value); n > schema.MaxValue {
				return wire.DoNotRetryIO.New("a value of %d bytes; at most %d", n, schema.MaxValue)
			}
			value = append(append(make([]byte, 0, len(old)+len(c.Value)), old...), c.Value...)
		}
		b.set(c, at, value, ch.ttl)
		if !ch.quiet {
			out.cells = append(out.cells, filter.Cell{Row: ch.row, Family: c.Family, Qualifier: c.Qualifier, Timestamp: at, Type: wire.TypePut, Value: value})
		}
	}
	return nil
}

func long(b []byte) (int64, error) {
	if len(b) != 8 {
		return 0, wire.DoNotRetryIO.New("Field is not a long, it's %d bytes wide", len(b))
	}
	return int64(binary.BigEndian.Uint64(b)), nil
}

// once makes an increment or append that has a nonce once: a repetition returns
// what is there now.
func (s *Server) once(ctx context.Context, c *Call, t *model.Table, region *model.Region, group uint64, cond *condition, ch *change) (outcome, error) {
	n := nonce{group, ch.nonce}
	if ch.kind != pb.MutationProto_INCREMENT && ch.kind != pb.MutationProto_APPEND {
		n = nonce{}
	}
	out, err := s.update(ctx, c, t, ch.row, n, cond, []*change{ch})
	if err != nil || !out.repeated || ch.quiet {
		return out, err
	}
	get := &pb.Get{Row: ch.row, TimeRange: &pb.TimeRange{From: proto.Uint64(uint64(ch.times.from)), To: proto.Uint64(uint64(ch.times.to))}}
	for i := range ch.cells {
		get.Column = append(get.Column, &pb.Column{Family: ch.cells[i].Family, Qualifier: [][]byte{clone(ch.cells[i].Qualifier)}})
	}
	q, err := newQuery(t, nil, get, true, false, time.Now(), &c.room)
	if err != nil {
		return outcome{}, err
	}
	r := newReader(q, &c.room, func(_ []byte, cells []filter.Cell) (bool, error) {
		if err := c.room.answered(cellsSize(cells)); err != nil {
			return true, err
		}
		out.cells = copyCells(cells)
		return true, nil
	})
	_, err = s.read(ctx, t.Resource, []row.Range{row.Single(ch.row)}, false, r)
	return out, err
}

// result returns the new cells of a change, in the block of the call or in
// the message.
func (c *Call) result(cells []filter.Cell) *pb.Result {
	if c.Blocks {
		c.Block = appendCells(c.Block, cells)
		return &pb.Result{AssociatedCellCount: proto.Int32(int32(len(cells)))}
	}
	return &pb.Result{Cell: cellsProto(cells)}
}

// mutable returns the region and the table that a change is for.
func (s *Server) mutable(ctx context.Context, c *Call, spec *pb.RegionSpecifier, what Action) (context.Context, *model.Region, *model.Table, error) {
	ctx, region, t, err := s.region(ctx, c, spec, what)
	if err == nil && t == nil {
		err = wire.DoNotRetryIO.New("%s is computed and cannot be written", region.Table)
	}
	return ctx, region, t, err
}

func (s *Server) mutate(ctx context.Context, c *Call, req *pb.MutateRequest) (*pb.MutateResponse, error) {
	ch, err := parseChange(req.GetMutation(), &c.Cells)
	if err != nil {
		return nil, err
	}
	what := Write
	if req.GetCondition() != nil || ch.reads() {
		what = ReadWrite
	}
	ctx, region, t, err := s.mutable(ctx, c, req.GetRegion(), what)
	if err != nil {
		return nil, err
	}
	if err := checkRow(region, ch.row); err != nil {
		return nil, err
	}
	if err := ch.check(t); err != nil {
		return nil, err
	}
	cond, err := parseCondition(req.GetCondition(), t, ch.row, &c.room)
	if err != nil {
		return nil, err
	}
	out, err := s.once(ctx, c, t, region, req.GetNonceGroup(), cond, ch)
	if err != nil {
		return nil, err
	}
	resp := &pb.MutateResponse{Processed: proto.Bool(out.processed)}
	if out.processed && (ch.kind == pb.MutationProto_INCREMENT || ch.kind == pb.MutationProto_APPEND) && !ch.quiet {
		resp.Result = c.result(out.cells)
	}
	return resp, nil
}

// comparison returns whether a value, if there is one, meets a condition. It is
// the comparator's relation to the value that counts: not, as in a filter, the
// value's to the comparator.
func comparison(op pb.CompareType, m *pb.Comparator, room *room) (func(value []byte, missing bool) (bool, error), error) {
	if op >= pb.CompareType_NO_OP {
		return nil, wire.DoNotRetryIO.New("Unknown Compare op %v", op)
	}
	c, err := filter.DecodeComparator(m, room.decode)
	if err != nil {
		return nil, filterError(err)
	}
	// Nothing to compare with is asked for as an empty value is.
	none := emptyComparator(m)
	return func(value []byte, missing bool) (bool, error) {
		if none {
			return (missing || len(value) == 0) == (op != pb.CompareType_NOT_EQUAL), nil
		}
		if missing {
			return false, nil
		}
		n, err := filter.Compare(c, value)
		if err != nil {
			return false, filterError(err)
		}
		switch op {
		case pb.CompareType_LESS:
			return n < 0, nil
		case pb.CompareType_LESS_OR_EQUAL:
			return n <= 0, nil
		case pb.CompareType_EQUAL:
			return n == 0, nil
		case pb.CompareType_NOT_EQUAL:
			return n != 0, nil
		case pb.CompareType_GREATER_OR_EQUAL:
			return n >= 0, nil
		}
		return n > 0, nil
	}, nil
}

// emptyComparator tells whether a comparator has no value. It has been decoded
// without an error.
func emptyComparator(m *pb.Comparator) bool {
	switch name := m.GetName(); name[strings.LastIndexByte(name, '.')+1:] {
	case "NullComparator":
		return true
	case "BinaryComparator", "BinaryPrefixComparator":
		var c pb.BinaryComparator // the two have the same fields
		return proto.Unmarshal(m.GetSerializedComparator(), &c) == nil && len(c.GetComparable().GetValue()) == 0
	case "SubstringComparator":
		var c pb.SubstringComparator
		return proto.Unmarshal(m.GetSerializedComparator(), &c) == nil && c.GetSubstr() == ""
	case "RegexStringComparator":
		var c pb.RegexStringComparator
		return proto.Unmarshal(m.GetSerializedComparator(), &c) == nil && c.GetPattern() == ""
	}
	return false
}
