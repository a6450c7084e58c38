package sql

import (
	"context"
	"hash/crc32"
	"sync"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/trestledb/trestle/engine/budget"
)

// Sizes of batches and messages, in bytes. A batch grows from the first to the
// largest: the first rows are soon there, and many rows cost few messages. No
// message has more of a batch than maxPiece, so that clients with gRPC's limit
// of 4 MiB take it.
const (
	firstBatch = 64 << 10
	maxBatch   = 1 << 20
	maxPiece   = 1 << 20
)

// The tags of ExecuteQueryResponse and of what is in it, each one byte.
const (
	tagMetadata  = 1<<3 | byte(protowire.BytesType)
	tagResults   = 2<<3 | byte(protowire.BytesType)
	tagBatch     = 3<<3 | byte(protowire.BytesType) // PartialResultSet.proto_rows_batch
	tagBatchData = 1<<3 | byte(protowire.BytesType)
	tagToken     = 5<<3 | byte(protowire.BytesType)
	tagChecksum  = 6<<3 | byte(protowire.VarintType)
	tagReset     = 7<<3 | byte(protowire.VarintType)
)

// pad is appended to a batch whose checksum would be 0: a field that ProtoRows
// does not have.
var pad = []byte{15<<3 | byte(protowire.VarintType), 0}

// A writer frames a stream of results.
type writer struct {
	send   func(mem.BufferSlice) error
	budget *budget.Budget
	taken  int64 // of budget

	batch   []byte   // what there is of the batch
	segment *segment // that it is in; nil if it is in memory of its own
	target  int      // how long a batch should be

	begun  bool  // a message with results was sent
	sent   int64 // bytes of batches
	tokens int
	// since is how many of them came after the last token.
	since int64
}

func newWriter(b *budget.Budget, send func(mem.BufferSlice) error) (*writer, error) {
	w := &writer{send: send, budget: b, target: firstBatch}
	return w, w.take(smallSegment)
}

// take has the writer hold n bytes of the budget at least.
func (w *writer) take(n int64) error {
	if n <= w.taken {
		return nil
	}
	if !w.budget.Try(n - w.taken) {
		return budget.Busy()
	}
	w.taken = n
	return nil
}

// close gives back what the writer holds.
func (w *writer) close() {
	w.budget.Release(w.taken)
	w.taken = 0
	w.drop()
}

func (w *writer) drop() {
	if w.segment != nil {
		w.segment.Put(nil)
	}
	w.segment, w.batch = nil, nil
}

// room returns the batch, with memory for what is to be appended: so many rows.
func (w *writer) room(rows int) []byte {
	if w.batch == nil {
		switch {
		case w.sent > 0:
			w.segment = newSegment(&largeSegments, largeSegment)
		case rows > fewRows:
			w.segment = newSegment(&firstSegments, firstSegment)
		default:
			w.segment = newSegment(&smallSegments, smallSegment)
		}
		w.batch = w.segment.buf[:0]
	}
	return w.batch
}

// keep takes over a batch that was appended to.
func (w *writer) keep(b []byte) error {
	if w.segment != nil && cap(b) != cap(w.segment.buf) {
		w.segment.Put(nil) // it was too small
		w.segment = nil
	}
	w.batch = b
	return w.take(int64(cap(b)))
}

// Sizes of the memory that batches begin with. Many results are one short row.
const (
	smallSegment = 2 << 10
	firstSegment = firstBatch + firstBatch/2
	largeSegment = maxBatch + maxBatch/8 // a row goes over the target before it is seen
)

// fewRows is how many rows may well fit into a small segment.
const fewRows = 16

var smallSegments, firstSegments, largeSegments sync.Pool

// A segment is memory for a batch. It is the mem.BufferPool of its own buffer, to
// be used again when gRPC has no more use for it.
type segment struct{ buf []byte }

func newSegment(pool *sync.Pool, n int) *segment {
	if s, ok := pool.Get().(*segment); ok {
		return s
	}
	return &segment{make([]byte, 0, n)}
}

// Get implements mem.BufferPool; it is not called.
func (s *segment) Get(n int) *[]byte { b := make([]byte, n); return &b }

// Put implements mem.BufferPool: the segment is free.
func (s *segment) Put(*[]byte) {
	s.buf = s.buf[:0]
	switch cap(s.buf) {
	case smallSegment:
		smallSegments.Put(s)
	case firstSegment:
		firstSegments.Put(s)
	default:
		largeSegments.Put(s)
	}
}

// full tells whether the batch is long enough.
func (w *writer) full() bool { return len(w.batch) >= w.target }

// checksum returns that of the batch, which may get longer by it.
func (w *writer) checksum() (uint32, error) {
	sum := crc32.Checksum(w.batch, castagnoli)
	if sum == 0 && len(w.batch) > 0 {
		if err := w.keep(append(w.batch, pad...)); err != nil {
			return 0, err
		}
		sum = crc32.Checksum(w.batch, castagnoli)
	}
	return sum, nil
}

// metadata sends the description of the columns, before all results.
func (w *writer) metadata(encoded []byte) error {
	b := append(protowire.AppendVarint([]byte{tagMetadata}, uint64(len(encoded))), encoded...)
	return w.send(mem.BufferSlice{mem.SliceBuffer(b)})
}

// flush sends the batch, if there is one, and the token, if it is not empty.
func (w *writer) flush(sum uint32, token []byte) error {
	batch, in := w.batch, w.segment
	w.batch, w.segment = nil, nil
	err := w.message(batch, in, sum, token)
	w.target = min(2*w.target, maxBatch)
	return err
}

// message sends a batch in as many messages as it takes. in is the segment that the
// batch is in, nil for none.
func (w *writer) message(batch []byte, in *segment, sum uint32, token []byte) error {
	if len(batch) == 0 && len(token) == 0 {
		return nil
	}
	w.sent += int64(len(batch))
	w.since += int64(len(batch))
	if len(token) > 0 {
		w.since = 0
		w.tokens++
	}
	if in != nil && cap(in.buf) == smallSegment {
		// Few bytes are copied into a message of one buffer: gRPC pools no buffer of less
		// than a kilobyte, so the segment would be lost.
		err := w.small(batch, sum, token)
		in.Put(nil)
		return err
	}
	if len(batch) <= maxPiece {
		var data mem.Buffer
		if len(batch) > 0 && in != nil {
			in.buf = batch
			data = mem.NewBuffer(&in.buf, in)
		} else if in != nil {
			in.Put(nil)
		} else if len(batch) > 0 {
			data = mem.SliceBuffer(batch)
		}
		return w.piece(data, sum, len(batch) > 0, token)
	}
	for len(batch) > maxPiece {
		if err := w.piece(mem.SliceBuffer(batch[:maxPiece:maxPiece]), 0, false, nil); err != nil {
			return err
		}
		batch = batch[maxPiece:]
	}
	return w.piece(mem.SliceBuffer(batch), sum, true, token)
}

// maxHead is the most that appendHead appends, and tailRoom what appendTail does without
// the token.
const (
	maxHead  = 32
	tailRoom = 16
)

// small sends one message in one buffer.
func (w *writer) small(batch []byte, sum uint32, token []byte) error {
	b := make([]byte, 0, maxHead+len(batch)+tailRoom+len(token))
	b = w.appendHead(b, len(batch), sum, len(batch) > 0, token)
	b = appendTail(append(b, batch...), sum, len(batch) > 0, token)
	return w.send(mem.BufferSlice{mem.SliceBuffer(b)})
}

// piece sends one message. data may be nil; last says that it ends a batch.
func (w *writer) piece(data mem.Buffer, sum uint32, last bool, token []byte) error {
	n := 0
	if data != nil {
		n = data.Len()
	}
	out := make(mem.BufferSlice, 0, 3)
	out = append(out, mem.SliceBuffer(w.appendHead(make([]byte, 0, maxHead), n, sum, last, token)))
	if data != nil {
		out = append(out, data)
	}
	if tail := appendTail(nil, sum, last, token); tail != nil {
		out = append(out, mem.SliceBuffer(tail))
	}
	return w.send(out)
}

// appendHead appends what comes before n bytes of a batch.
func (w *writer) appendHead(dst []byte, n int, sum uint32, last bool, token []byte) []byte {
	inner := 0 // the length of proto_rows_batch
	size := 0  // and of the PartialResultSet
	if n > 0 {
		inner = 1 + protowire.SizeVarint(uint64(n)) + n
		size += 1 + protowire.SizeVarint(uint64(inner)) + inner
	}
	if !w.begun {
		size += 2
	}
	if last {
		size += 1 + protowire.SizeVarint(uint64(sum))
	}
	if len(token) > 0 {
		size += 1 + protowire.SizeVarint(uint64(len(token))) + len(token)
	}
	dst = protowire.AppendVarint(append(dst, tagResults), uint64(size))
	if !w.begun {
		dst = append(dst, tagReset, 1)
		w.begun = true
	}
	if n > 0 {
		dst = protowire.AppendVarint(append(dst, tagBatch), uint64(inner))
		dst = protowire.AppendVarint(append(dst, tagBatchData), uint64(n))
	}
	return dst
}

// appendTail appends what comes behind them.
func appendTail(dst []byte, sum uint32, last bool, token []byte) []byte {
	if last {
		dst = protowire.AppendVarint(append(dst, tagChecksum), uint64(sum))
	}
	if len(token) > 0 {
		dst = append(protowire.AppendVarint(append(dst, tagToken), uint64(len(token))), token...)
	}
	return dst
}

// token seals a resume token.
func (s *Service) token(ctx context.Context, t *resume) ([]byte, error) {
	return seal(ctx, s.o.MAC, purposeResume, t.encode(make([]byte, 0, 64+len(t.position))))
}
