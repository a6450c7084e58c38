package exec

import (
	"errors"
	"io"
	"strings"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/functions"
	"github.com/trestledb/trestle/engine/query/types"
)

// windowStream computes the calls of a stage over a partition that does not fit into
// memory. It reads the partition in order, once for whole partitions, once for peers
// and once to give rows out, and keeps no more of it than a batch.
type windowStream struct {
	w     *windowStage
	open  func() batchSource
	kept  *spool // what open reads, nil if it is the sorter's
	calls []*streamCall

	rows   batchSource
	batch  *types.Batch // of rows, from its at'th row on; nil if all were given out
	at     int
	held   int64         // the results of the batch that was given out last
	ahead  *streamCursor // of peers, nil if no call needs them
	number int64         // of the next row, from 0
	rank   int64
	dense  int64
	key    string
	ids    []int32
}

// streamCall is one call of a windowStream.
type streamCall struct {
	*windowCall
	kind   streamKind
	acc    functions.Accumulator
	state  stateShare
	where  *types.Vector
	vals   []types.Value
	result types.Value
	failed bool
}

// A streamKind is what rows a streamCall looks at.
type streamKind uint8

const (
	noStream   streamKind = iota
	rowNumbers            // ROW_NUMBER
	ranks                 // RANK
	denseRanks            // DENSE_RANK
	wholes                // an aggregate over the partition
	toRow                 // an aggregate over the rows up to the present one
	toPeers               // an aggregate over the rows up to the last peer of the present one
)

// streamKind returns how c can be streamed, noStream if it cannot.
func (c *windowCall) streamKind() streamKind {
	if c.call.Signature.Window != nil {
		switch c.call.Function.Name {
		case "ROW_NUMBER":
			return rowNumbers
		case "RANK":
			return ranks
		case "DENSE_RANK":
			return denseRanks
		}
		return noStream
	}
	f := &c.call.Frame
	switch {
	case c.call.Distinct || f.Start.Kind != algebra.UnboundedPreceding:
	case f.End.Kind == algebra.UnboundedFollowing:
		return wholes
	case f.End.Kind == algebra.CurrentRow && f.Rows:
		return toRow
	case f.End.Kind == algebra.CurrentRow:
		return toPeers
	}
	return noStream
}

// streams tells whether all calls of the stage can be streamed.
func (w *windowStage) streams() bool {
	for _, c := range w.calls {
		if c.streamKind() == noStream {
			return false
		}
	}
	return true
}

// stream makes the partition in work, which open reads, one that is streamed.
func (w *windowStage) stream(open func() batchSource, kept *spool) error {
	s := &windowStream{w: w, open: open, kept: kept, rows: open()}
	w.streaming = s
	for _, c := range w.calls {
		call := &streamCall{windowCall: c, kind: c.streamKind(), vals: make([]types.Value, len(c.agg.exprs))}
		if call.kind >= wholes {
			call.acc, call.state.call = c.call.Signature.New(&c.fc), c
		}
		if call.kind == toPeers && s.ahead == nil {
			s.ahead = &streamCursor{from: open()}
		}
		s.calls = append(s.calls, call)
	}
	return s.whole()
}

// whole computes the aggregates over the partition.
func (s *windowStream) whole() error {
	some := false
	for _, c := range s.calls {
		some = some || c.kind == wholes
	}
	if !some {
		return nil
	}
	from := s.open()
	for {
		if err := s.w.x.ctx.Err(); err != nil {
			return err
		}
		b, err := from.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		for _, c := range s.calls {
			if c.kind != wholes {
				continue
			}
			if err := c.load(b); err != nil {
				return err
			}
			for k := range b.Rows() {
				if err := c.add(rowOf(b, k)); err != nil {
					return err
				}
			}
		}
	}
	for _, c := range s.calls {
		if c.kind == wholes {
			if err := c.compute(); err != nil {
				return err
			}
		}
	}
	return nil
}

// load evaluates the arguments of the rows of b.
func (c *streamCall) load(b *types.Batch) error {
	sel := b.Sel
	c.where = nil
	if c.agg.where != nil {
		v, err := c.agg.where.eval(b, sel)
		if err != nil {
			return err
		}
		c.where = v
		rows := []int32{}
		for k := range b.Rows() {
			if i := rowOf(b, k); isTrue(v, i) {
				rows = append(rows, int32(i))
			}
		}
		if sel = rows; len(rows) == 0 {
			return nil
		}
	}
	for i, e := range c.agg.exprs {
		v, err := e.eval(b, sel)
		if err != nil {
			return err
		}
		c.agg.vecs[i] = v
	}
	return nil
}

// add adds row i of the batch that was loaded.
func (c *streamCall) add(i int) error {
	if c.failed || c.where != nil && !isTrue(c.where, i) {
		return nil
	}
	for k, v := range c.agg.vecs {
		c.vals[k] = v.Value(i)
		if !c.vals[k].Valid && (c.call.Function.IgnoreNulls || k == 0 && c.call.IgnoreNulls) {
			return nil
		}
	}
	err := c.acc.Add(c.vals)
	if err != nil && c.call.Safe && isRowError(err) {
		c.failed, err = true, nil
	}
	if err == nil {
		err = c.state.added(c.acc, c.vals)
	}
	return err
}

// compute sets result to the value of the rows so far.
func (c *streamCall) compute() error {
	if c.failed {
		c.result = types.Null
		return nil
	}
	v, err := c.acc.Result()
	if c.result = v.Clone(); err != nil && c.call.Safe && isRowError(err) {
		// Further rows may bring it back into range.
		c.result, err = types.Null, nil
	}
	return err
}

// streamCursor is a place in the rows of a source.
type streamCursor struct {
	from  batchSource
	batch *types.Batch
	k     int
}

// peers adds the rows with the key to the calls over peers.
func (s *windowStream) peers(key string) error {
	a := s.ahead
	for {
		if a.batch == nil {
			b, err := a.from.next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return err
			}
			a.batch, a.k = b, 0
			for _, c := range s.calls {
				if c.kind == toPeers {
					if err := c.load(b); err != nil {
						return err
					}
				}
			}
		}
		for ; a.k < a.batch.Rows(); a.k++ {
			i := rowOf(a.batch, a.k)
			if a.batch.Cols[s.w.inputs+1].Strs[i] != key {
				return s.computePeers()
			}
			for _, c := range s.calls {
				if c.kind == toPeers {
					if err := c.add(i); err != nil {
						return err
					}
				}
			}
		}
		a.batch = nil
		if err := s.w.x.ctx.Err(); err != nil {
			return err
		}
	}
	return s.computePeers()
}

func (s *windowStream) computePeers() error {
	for _, c := range s.calls {
		if c.kind == toPeers {
			if err := c.compute(); err != nil {
				return err
			}
		}
	}
	return nil
}

// maxResults bounds the results of a batch, in bytes: each may be as long as all that was
// aggregated. The stage may hold so much in any case.
const maxResults = leastNeed / 4

// next returns the next rows of the partition with the results of the calls, or io.EOF.
func (s *windowStream) next() (*types.Batch, error) {
	w := s.w
	if err := w.x.ctx.Err(); err != nil {
		return nil, err
	}
	if s.batch == nil {
		b, err := s.rows.next()
		if err != nil {
			return nil, err
		}
		s.batch, s.at = b, 0
		for _, c := range s.calls {
			if c.kind == toRow {
				if err := c.load(b); err != nil {
					return nil, err
				}
			}
		}
	}
	b := s.batch
	w.share.grow(-s.held)
	s.held = 0
	for k := range s.calls {
		w.out.Cols[w.inputs+k].Resize(b.Rows() - s.at)
	}
	s.ids = s.ids[:0]
	for ; s.at < b.Rows() && s.held < maxResults; s.at++ {
		i := rowOf(b, s.at)
		before := s.held
		if err := s.row(b, i, len(s.ids)); err != nil {
			return nil, err
		}
		s.ids = append(s.ids, int32(i))
		if err := w.share.need(s.held - before); err != nil {
			s.held = before
			return nil, err
		}
	}
	w.out.Len = len(s.ids)
	for c := range w.inputs {
		pick(w.out.Cols[c], b.Cols[c], s.ids)
	}
	if s.at == b.Rows() {
		s.batch = nil
	}
	return &w.out, nil
}

// row sets the at'th row of the results to those of row i of b, and counts in held what
// is new of them.
func (s *windowStream) row(b *types.Batch, i, at int) error {
	w := s.w
	if key := b.Cols[w.inputs+1].Strs[i]; s.number == 0 || key != s.key {
		s.key, s.rank = strings.Clone(key), s.number+1
		s.dense++
		if s.ahead != nil {
			if err := s.peers(s.key); err != nil {
				return err
			}
			for _, c := range s.calls {
				if c.kind == toPeers {
					s.held += resultBytes(c.result)
				}
			}
		}
	}
	s.number++
	for n, c := range s.calls {
		switch c.kind {
		case rowNumbers:
			c.result = types.NewInt(s.number)
		case ranks:
			c.result = types.NewInt(s.rank)
		case denseRanks:
			c.result = types.NewInt(s.dense)
		case toRow:
			if err := c.add(i); err != nil {
				return err
			}
			if err := c.compute(); err != nil {
				return err
			}
			s.held += resultBytes(c.result)
		}
		w.out.Cols[w.inputs+n].Set(at, c.result)
	}
	return nil
}

func (s *windowStream) close() {
	if s.kept != nil {
		s.kept.close()
	}
}

// idSource gives rows of a rows.
type idSource struct {
	rows *rows
	ids  []int32
	out  types.Batch
}

func (s *idSource) next() (*types.Batch, error) {
	if len(s.ids) == 0 {
		return nil, io.EOF
	}
	ids := s.ids[:min(len(s.ids), types.BatchRows)]
	s.ids = s.ids[len(ids):]
	if s.out.Cols == nil {
		s.out.Cols = newVectors(s.rows.types)
	}
	s.out.Len = len(ids)
	for c, v := range s.out.Cols {
		s.rows.gather(v, c, ids)
	}
	return &s.out, nil
}

// tooLarge tells whether err says that memory is used up.
func tooLarge(err error) bool { return fault.KindOf(err) == fault.Exhausted }
