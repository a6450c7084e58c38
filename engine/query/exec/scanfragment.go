package exec

import (
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"slices"
	"sync"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/fragment"
	"github.com/trestledb/trestle/engine/query/types"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
)

// A fragmentScan is a Scan with what is made of its rows, as far as that may be done
// where a tablet is: conditions, projections, and for an aggregation the states of
// groups. A server that cannot do it gives rows, of which the same is made here.
type fragmentScan struct {
	scan  *tableScan
	chain Operator // over in
	in    *injected
	// merge takes the states of an aggregation; nil if rows come.
	merge func(b *types.Batch) error
	types []*types.Type
	rest  string // of a piece: batches to be given out
	batch types.Batch
	busy  bool // chain has a batch
	// stream is told how far the scan is, if it is that of one. key is the column of a piece
	// that has the row key, -1 if there is none.
	stream *stream
	key    int
}

// buildFragment returns the operator of r if it is a fragment, nil if it is none.
func (x *execution) buildFragment(r algebra.Rel, outer *frame) (Operator, error) {
	if x.leaves[r] != nil || x.local {
		return nil, nil
	}
	f := fragment.Of(r)
	if f == nil || f.Scan == r {
		return nil, nil
	}
	if !f.Reduces() {
		return nil, nil
	}
	if a := f.Scan.Access; a != nil && (a.Limit != nil || a.Keys != nil && a.Keys.Op == algebra.KeyEqual && a.Keys.Field == algebra.RowKey) {
		return nil, nil // of few rows
	}
	f.Now = x.now
	if outer != nil {
		// One that refers to the rows around is better off with its rows at hand.
		if _, ok := f.Append(nil, x.Params.Values); !ok {
			return nil, nil
		}
	}
	op, err := newScan(x, f.Scan, outer)
	if err != nil {
		return nil, err
	}
	s := &fragmentScan{scan: op.(*tableScan), in: &injected{}, types: f.ResultTypes()}
	s.scan.fragment = sync.OnceValue(func() []byte {
		b, ok := f.Append(nil, x.Params.Values)
		if !ok {
			return nil
		}
		return b
	})
	if st := x.stream; st != nil && st.scan == f.Scan {
		s.stream, s.key = st, keyColumn(f)
		s.scan.position, s.scan.after, s.scan.resumed = true, st.from.key, st.from.set
	}
	agg, isAggregate := r.(*algebra.Aggregate)
	rows := r
	if isAggregate {
		rows = agg.Input
	}
	sort := f.Sort()
	if sort != nil {
		rows = sort.Input
	}
	if s.chain, err = x.over(rows, f.Scan, s.in, outer); err != nil {
		return nil, err
	}
	s.batch.Cols = newVectors(s.types)
	if !isAggregate && sort == nil {
		return s, nil
	}
	x.setLeaf(rows, s)
	defer x.setLeaf(rows, nil)
	if sort != nil {
		return newLimit(x, r.(*algebra.Limit), outer)
	}
	top, err := newAggregate(x, agg, outer)
	if err == nil {
		s.merge = top.(*aggregate).mergeStates
	}
	return top, err
}

// keyColumn returns which column of what f gives has the row key, -1 if none has.
func keyColumn(f *fragment.Fragment) int {
	t := f.Scan.Table
	return slices.IndexFunc(f.Rel.Columns(), func(c algebra.Column) bool {
		return slices.ContainsFunc(f.Scan.Uses, func(u algebra.ScanColumn) bool {
			return u.ID == c.ID && !u.Existence && t.Columns[u.Index].Kind == algebra.RowKeyColumn
		})
	})
}

func (x *execution) setLeaf(r algebra.Rel, op Operator) {
	if x.leaves == nil {
		x.leaves = map[algebra.Rel]Operator{}
	}
	if x.leaves[r] = op; op == nil {
		delete(x.leaves, r)
	}
}

// over returns the operator of r, in which leaf stands for the Scan s.
func (x *execution) over(r algebra.Rel, s *algebra.Scan, leaf Operator, outer *frame) (Operator, error) {
	local := x.local
	x.local = true
	x.setLeaf(s, leaf)
	defer func() {
		x.setLeaf(s, nil)
		x.local = local
	}()
	op, _, err := x.build(r, outer)
	if m, ok := op.(*measured); ok {
		op = m.op // what it gives out is counted where the fragment passes it on
	}
	return op, err
}

// injected gives batches to the operators over it, and then ends; the next ones begin
// them again.
type injected struct{ list []*types.Batch }

func (i *injected) Open(context.Context) error { i.list = nil; return nil }
func (i *injected) Close() error               { return nil }
func (i *injected) Next(context.Context) (*types.Batch, error) {
	if len(i.list) == 0 {
		return nil, io.EOF
	}
	b := i.list[0]
	i.list = i.list[1:]
	return b, nil
}

// set makes b all that there is.
func (i *injected) set(b *types.Batch) { i.list = append(i.list[:0], b) }

// Open implements Operator.
func (s *fragmentScan) Open(ctx context.Context) error {
	s.rest, s.busy = "", false
	if err := s.chain.Open(ctx); err != nil {
		return err
	}
	return s.scan.Open(ctx)
}

// Close implements Operator.
func (s *fragmentScan) Close() error {
	err := s.chain.Close()
	if e := s.scan.Close(); err == nil {
		err = e
	}
	return err
}

// Next implements Operator.
func (s *fragmentScan) Next(ctx context.Context) (*types.Batch, error) {
	for {
		switch {
		case s.busy:
			b, err := s.chain.Next(ctx)
			if !errors.Is(err, io.EOF) {
				return b, err
			}
			s.busy = false
		case s.rest != "":
			var err error
			if s.rest, err = nextBatch(s.rest, s.types, &s.batch); err != nil {
				return nil, err
			}
			if s.merge == nil {
				s.passed()
				return &s.batch, nil
			}
			if err := s.merge(&s.batch); err != nil {
				return nil, err
			}
		default:
			b, err := s.scan.next()
			if err != nil {
				return nil, err
			}
			if b.piece == nil {
				s.in.set(&b.batch)
				s.busy = true
			} else if s.rest, err = openPiece(b.piece); err != nil {
				return nil, err
			}
			if s.stream != nil && (s.key < 0 || s.rest == "") {
				s.stream.advance(s.scan.lastKey())
			}
		}
	}
}

// passed tells the stream how far batch is, which is of a piece.
func (s *fragmentScan) passed() {
	switch {
	case s.stream == nil:
	case s.key < 0:
		s.stream.partly = s.rest != ""
	case s.rest == "":
		s.stream.advance(s.scan.lastKey())
	case s.batch.Len > 0:
		s.stream.advance(bytesOf(s.batch.Cols[s.key].Strs[s.batch.Len-1]))
	}
}

// A piece is a CRC-32C of what follows, and then batches, each behind its length.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

const pieceHead = crc32.Size

func sealPiece(b []byte) {
	binary.LittleEndian.PutUint32(b, crc32.Checksum(b[pieceHead:], castagnoli))
}

func openPiece(b []byte) (string, error) {
	if len(b) < pieceHead || binary.LittleEndian.Uint32(b) != crc32.Checksum(b[pieceHead:], castagnoli) {
		return "", errBadPiece
	}
	return string(b[pieceHead:]), nil
}

var errBadPiece = fault.New(fault.Internal, "what a tablet server made of a query was damaged on its way")

// nextBatch sets b to the first batch of in and returns what follows.
func nextBatch(in string, ts []*types.Type, b *types.Batch) (rest string, err error) {
	d := decoderOf(in)
	one := d.text()
	if d.Bad() || one == "" || decodeBatch(one, ts, b) != nil {
		return "", errBadPiece
	}
	return in[len(in)-d.Len():], nil
}

// appendPieceBatch appends rows to a piece.
func appendPieceBatch(dst []byte, ts []*types.Type, cols []*types.Vector, sel []int32, n int, scratch *[]byte) []byte {
	*scratch = appendBatch((*scratch)[:0], ts, cols, sel, 0, n)
	return append(binary.AppendUvarint(dst, uint64(len(*scratch))), *scratch...)
}

// mergeStates takes keys of groups and their states.
func (a *aggregate) mergeStates(b *types.Batch) error {
	s := a.sets[0]
	groups := make([]int32, b.Len)
	if s.table != nil {
		groups = s.table.number(b.Cols[:len(s.keys)], nil, b.Len)
	}
	for i, state := range s.states {
		if s.table != nil {
			state.resize(s.table.len())
		}
		v := b.Cols[len(s.keys)+i]
		for k, g := range groups {
			if v.IsNull(k) {
				return errBadPiece
			}
			if err := state.merge(int(g), []byte(v.Strs[k])); err != nil {
				return err
			}
		}
	}
	return a.account()
}

// eachState calls f with the keys and the states of groups, types.BatchRows at a time.
func (a *aggregate) eachState(f func(cols []*types.Vector, n int)) {
	s := a.sets[0]
	cols := make([]*types.Vector, len(s.types))
	nk := len(s.keys)
	states := newVectors(s.types[nk:])
	copy(cols[nk:], states)
	fill := func(base, n int) {
		var buf []byte
		for i, state := range s.states {
			states[i].Resize(n)
			for g := range n {
				buf = state.appendState(base+g, buf[:0])
				states[i].Strs[g] = string(buf)
			}
		}
		f(cols, n)
	}
	if s.table == nil {
		fill(0, 1)
		return
	}
	for k, chunk := range s.table.keys.chunks {
		copy(cols, chunk.Cols)
		fill(k<<chunkBits, chunk.Len)
	}
}

// What a fragment gathers before it gives it out: groups, and rows, in bytes. After
// lastCheckpoint rows it tells how far it is, so that not all is lost if its server
// ends. The first rows come after firstCheckpoint, as the reader may wait for them.
const (
	gatherGroups    = 4 << 20
	gatherRows      = 64 << 10
	firstCheckpoint = 8 << 10
	lastCheckpoint  = 256 << 10
)

// A FragmentEncoder runs a fragment over the rows that it is given, as a scan.Writer at
// the tablet's server, and passes on what comes of it in pieces: see
// scan.EncodedWriter. It serves one goroutine.
type FragmentEncoder struct {
	x      *execution
	cancel context.CancelCauseFunc
	sink   *scanSink
	chain  Operator // the rows
	agg    *aggregate
	// top gives the first rows of those in made: of the rows that were the first so far,
	// and those that came.
	top  Operator
	made *injected
	kept rows
	// keptBytes is what kept is charged with.
	keptBytes int64
	in        *injected
	types     []*types.Type
	pass      func(*scan.Piece, []byte) error

	out     []byte // the next piece
	scratch []byte
	key     []byte
	// checkpoint is after how many rows a piece is passed, whatever is in it.
	checkpoint int64
	// What has been taken in since the last piece, and of the row that is open.
	rows, cells, rowCells int64
	last                  []byte
}

var _ scan.Writer = (*FragmentEncoder)(nil)

// NewFragmentEncoder returns the FragmentEncoder of an encoded fragment, which passes
// pieces to pass; that owns their bytes. The error is fragment.Decode's.
func NewFragmentEncoder(pool *Pool, encoded []byte, pass func(*scan.Piece, []byte) error) (*FragmentEncoder, error) {
	f, err := fragment.Decode(encoded)
	if err != nil {
		return nil, err
	}
	e := &FragmentEncoder{pass: pass, in: &injected{}, types: f.ResultTypes(), out: make([]byte, pieceHead), checkpoint: firstCheckpoint}
	if f.IsAggregate() || f.Sort() != nil {
		e.checkpoint = lastCheckpoint
	}
	e.x, e.cancel = newExecution(context.Background(), Config{Pool: pool})
	e.x.now, e.x.local = f.Now, true
	ok := false
	defer func() {
		if !ok {
			e.Close()
		}
	}()
	e.x.setLeaf(f.Scan, e.in)
	made := &injected{}
	if sort := f.Sort(); sort != nil {
		if e.chain, _, err = e.x.build(sort.Input, nil); err != nil {
			return nil, err
		}
		if err := e.chain.Open(e.x.ctx); err != nil {
			return nil, err
		}
		e.x.setLeaf(sort.Input, made)
	}
	op, _, err := e.x.build(f.Rel, nil)
	if err != nil {
		return nil, err
	}
	if m, is := op.(*measured); is {
		op = m.op
	}
	switch sort := f.Sort(); {
	case sort != nil:
		e.top, e.made = op, made
	case f.IsAggregate():
		if e.agg, ok = op.(*aggregate); !ok {
			return nil, fault.New(fault.Internal, "an aggregation is a %T", op)
		}
		e.agg.gathers, ok = true, false
	default:
		e.chain = op
	}
	if err := op.Open(e.x.ctx); err != nil {
		return nil, err
	}
	e.sink = newScanSink(e.x.ctx, newScanLayout(f.Scan, types.BatchRows), nil, e.x.share("Scan"))
	e.sink.direct = e.take
	ok = true
	return e, nil
}

// take runs the fragment over a batch of rows.
func (e *FragmentEncoder) take(b *types.Batch) error {
	e.in.set(b)
	if e.agg != nil {
		return e.agg.consume(e.x.ctx)
	}
	for {
		b, err := e.chain.Next(e.x.ctx)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if e.top != nil {
			err = e.takeTop(b)
		} else {
			e.out = appendPieceBatch(e.out, e.types, b.Cols, b.Sel, b.Rows(), &e.scratch)
		}
		if err != nil {
			return err
		}
	}
}

// takeTop keeps the first rows of those that it has and of b.
func (e *FragmentEncoder) takeTop(b *types.Batch) error {
	if err := e.top.Open(e.x.ctx); err != nil {
		return err
	}
	e.made.list = append(append(e.made.list[:0], e.kept.chunks...), b)
	next := rows{types: e.types}
	for {
		b, err := e.top.Next(e.x.ctx)
		if errors.Is(err, io.EOF) {
			e.kept = next
			more := next.bytes - e.keptBytes
			if more > 0 {
				err = e.sink.share.need(more)
			} else {
				e.sink.share.grow(more)
				err = nil
			}
			if err == nil {
				e.keptBytes = next.bytes
			}
			return err
		}
		if err != nil {
			return err
		}
		next.append(b.Cols, b.Sel, b.Len)
	}
}

// StartRow implements scan.Writer.
func (e *FragmentEncoder) StartRow(key []byte) {
	e.key, e.rowCells = append(e.key[:0], key...), 0
	e.sink.StartRow(key)
}

// Cell implements scan.Writer.
func (e *FragmentEncoder) Cell(c *row.Cell) {
	e.rowCells++
	e.sink.Cell(c)
}

// EndRow implements scan.Writer.
func (e *FragmentEncoder) EndRow() (full bool, err error) {
	if _, err := e.sink.EndRow(); err != nil {
		return false, err
	}
	e.rows++
	e.cells += e.rowCells
	e.last = append(e.last[:0], e.key...)
	return e.due(), nil
}

// due tells whether there is enough for a piece.
func (e *FragmentEncoder) due() bool {
	return len(e.out) >= gatherRows || e.rows >= e.checkpoint ||
		e.agg != nil && (e.agg.short || e.rows%types.BatchRows == 0 && e.agg.sets[0].size() >= gatherGroups)
}

// Scanned implements scan.Writer.
func (e *FragmentEncoder) Scanned([]byte) {}

// Flush implements scan.Writer. What was taken in is passed on if it is enough for a
// piece.
func (e *FragmentEncoder) Flush() error {
	if e.sink.open {
		e.sink.open = false
		e.sink.drop()
	}
	if !e.due() {
		return nil
	}
	return e.Finish()
}

// Holds tells whether rows were taken in of which nothing was passed on.
func (e *FragmentEncoder) Holds() bool { return e.rows > 0 }

// Finish passes on what is left.
func (e *FragmentEncoder) Finish() error {
	if e.rows == 0 {
		return nil
	}
	if err := e.sink.end(); err != nil {
		return err
	}
	if e.agg != nil {
		e.agg.eachState(func(cols []*types.Vector, n int) {
			for at := 0; at < n; at += types.BatchRows {
				take := min(n-at, types.BatchRows)
				e.scratch = appendBatch(e.scratch[:0], e.types, cols, nil, at, take)
				e.out = append(binary.AppendUvarint(e.out, uint64(len(e.scratch))), e.scratch...)
			}
		})
		e.agg.clear(e.agg.sets[0])
		e.agg.share.free()
		e.agg.short = false
	}
	for _, c := range e.kept.chunks {
		e.out = appendPieceBatch(e.out, e.types, c.Cols, nil, c.Len, &e.scratch)
	}
	e.kept = rows{}
	e.sink.share.grow(-e.keptBytes)
	e.keptBytes = 0
	out := e.out
	e.out = make([]byte, pieceHead, min(cap(out), gatherRows+gatherRows/2))
	sealPiece(out)
	p := scan.Piece{Rows: e.rows, Cells: max(e.cells, e.rows), Key: e.last}
	e.rows, e.cells, e.checkpoint = 0, 0, min(2*e.checkpoint, lastCheckpoint)
	return e.pass(&p, out)
}

// Close frees what the fragment holds.
func (e *FragmentEncoder) Close() {
	e.cancel(context.Canceled)
	for _, op := range []Operator{e.chain, e.top} {
		if op != nil {
			_ = op.Close()
		}
	}
	if e.agg != nil {
		_ = e.agg.Close()
	}
	if e.sink != nil {
		e.sink.share.free()
	}
	e.x.close()
}
