package exec

import (
	"bytes"
	"context"
	"encoding/binary"
	"math"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/types"
	"github.com/trestledb/trestle/engine/varint"
)

// A stream is a plan whose rows come in the order of one scan, so that it can go on
// behind any of them: Filter, Project, Keep and Unnest over a Scan, perhaps with one
// Limit, which has no Unnest over it.
type stream struct {
	scan  *algebra.Scan
	limit *algebra.Limit
	// unnests are the Unnests, with their operators.
	unnests map[*algebra.Unnest]*unnest

	// from is where the run begins.
	from position
	// What was read: the key of the last row of the scan's batch, and of the batch before
	// it, nil for none, and how many batches there were.
	last    []byte
	before  []byte
	spare   []byte // memory for a key
	batches int64
	counted int64 // the batch of which rows is about
	rows    int64 // given out of it
	partly  bool  // more of it comes from the scan, as rows without keys
	limiter *limit
}

// position is a place in the rows of a stream: behind the row of the scan with key, and
// behind rows more of what is made of the rows that follow. left and skip are what is
// left of a LIMIT.
type position struct {
	key        []byte
	set        bool // key counts
	rows       int64
	left, skip int64
	resumed    bool // it is not the beginning
}

// Streams tells whether the run of a query has positions.
func Streams(r algebra.Rel) bool { return streamOf(r) != nil }

// streamOf returns r as a stream, nil if it is none.
func streamOf(r algebra.Rel) *stream {
	s := &stream{}
	for {
		switch t := r.(type) {
		case *algebra.Filter:
			r = t.Input
		case *algebra.Project:
			r = t.Input
		case *algebra.Keep:
			r = t.Input
		case *algebra.Unnest:
			if s.unnests == nil {
				s.unnests = map[*algebra.Unnest]*unnest{}
			}
			s.unnests[t] = nil
			r = t.Input
		case *algebra.Limit:
			if s.limit != nil || s.unnests != nil {
				return nil // the rows that a limit passes are counted, not what is made of them
			}
			s.limit = t
			r = t.Input
		case *algebra.Scan:
			if t.Table.Schema == nil || t.History != nil && t.History.Unpack {
				return nil
			}
			s.scan = t
			return s
		default:
			return nil
		}
	}
}

// appendTo appends the encoding of p.
func (p *position) appendTo(dst []byte) []byte {
	flag := byte(0)
	if p.set {
		flag = 1
	}
	dst = append(dst, flag)
	dst = binary.AppendUvarint(dst, uint64(p.rows))
	dst = binary.AppendUvarint(dst, uint64(p.left))
	dst = binary.AppendUvarint(dst, uint64(p.skip))
	return append(dst, p.key...)
}

// parsePosition reads what appendTo wrote.
func parsePosition(in []byte) (p position, err error) {
	bad := func() (position, error) {
		return position{}, fault.New(fault.Invalid, "the position is not one of this query")
	}
	d := varint.Of(in)
	p = position{set: d.Bool(), resumed: true}
	for _, to := range []*int64{&p.rows, &p.left, &p.skip} {
		*to = int64(d.UvarintMax(math.MaxInt64))
	}
	if p.key = bytes.Clone(d.Rest()); d.Bad() || !p.set && len(p.key) > 0 {
		return bad()
	}
	return p, nil
}

// position returns where the run is, behind the last batch that it gave out. Within a
// batch of the scan it counts rows, which others may change until the query goes on: then
// as many of those that follow are missing, or come twice. So that is for places only that
// have no key.
func (s *stream) position() []byte {
	p := s.from
	switch {
	case s.batches == 0:
	case s.within():
		p = position{key: s.before, set: s.before != nil, rows: s.rows}
	default:
		p = position{key: s.last, set: true}
	}
	p.left, p.skip = math.MaxInt64, 0
	if s.limiter != nil {
		p.left, p.skip = s.limiter.left, s.limiter.skip
	}
	return p.appendTo(make([]byte, 0, 1+3*binary.MaxVarintLen64+len(p.key)))
}

// within tells whether more is to come of the scan's batch.
func (s *stream) within() bool {
	for _, u := range s.unnests {
		if u.within() {
			return true
		}
	}
	return s.partly
}

// given counts rows that were made of the scan's batch.
func (s *stream) given(n int) {
	if s.counted != s.batches {
		s.counted, s.rows = s.batches, 0
	}
	s.rows += int64(n)
}

// tracked is the scan of a stream: it remembers the keys of what it gave out.
type tracked struct {
	*tableScan
	s *stream
}

func (t tracked) Open(ctx context.Context) error {
	t.after, t.resumed = t.s.from.key, t.s.from.set
	return t.tableScan.Open(ctx)
}

func (t tracked) Next(ctx context.Context) (*types.Batch, error) {
	b, err := t.tableScan.Next(ctx)
	if err == nil {
		t.s.advance(t.lastKey())
	}
	return b, err
}

// advance notes that the scan has given a batch, of which key is that of the last row.
func (s *stream) advance(key []byte) {
	s.partly = false
	spare := s.spare
	s.spare = nil
	if s.batches > 1 {
		spare = s.before
	}
	if s.before = s.last; s.batches == 0 {
		s.before = nil
		if s.from.set {
			s.before = s.from.key
		}
	}
	s.last = append(spare[:0], key...)
	s.batches++
}

// skipRows leaves out the first rows: those that were given out before a stream went on.
type skipRows struct {
	Operator
	s    *stream
	left int64
	out  types.Batch
	sel  []int32
}

func (o *skipRows) Open(ctx context.Context) error {
	o.left = o.s.from.rows
	return o.Operator.Open(ctx)
}

func (o *skipRows) Next(ctx context.Context) (*types.Batch, error) {
	for {
		b, err := o.Operator.Next(ctx)
		if err != nil {
			return nil, err
		}
		n := int64(b.Rows())
		o.s.given(int(n))
		if o.left == 0 {
			return b, nil
		}
		if n <= o.left {
			o.left -= n
			continue
		}
		o.sel = o.sel[:0]
		for k := o.left; k < n; k++ {
			o.sel = append(o.sel, int32(rowOf(b, int(k))))
		}
		o.left = 0
		o.out = types.Batch{Len: b.Len, Sel: o.sel, Cols: b.Cols}
		return &o.out, nil
	}
}
