package stream

import (
	"fmt"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
)

// The operations.
const (
	opMutateRow = iota + 1
	opMutateRows
	opCheckAndMutateRow
	opReadModifyWriteRow
	opDropRange
	opReadRows
	opControl
	opCancel // gives up the question of that number; has no answer
	opPing
	opUpdateRow
	opApplyView
)

// The kinds of answers.
const (
	answerOK = iota
	answerError
	// answerBye asks for no more questions on this stream; earlier ones are answered. It
	// belongs to no question.
	answerBye
	// answerLarge asks to use Scan, as the rows are too large.
	answerLarge
)

const (
	service    = "/trestle.cluster.v1.Tablets/"
	methodScan = service + "Scan"
	methodCall = service + "Call"
	// methodChanges gives the changes of a tablet for as long as the caller listens.
	methodChanges = service + "Changes"

	// smallBytes is how long a question may be to travel among others.
	smallBytes = 64 << 10
	// batchBytes bounds the memory that is kept for frames to be sent.
	batchBytes = 256 << 10
	// rowsBytes is how many bytes of rows are in a message; maxRowPart where a row
	// is torn.
	rowsBytes  = 128 << 10
	maxRowPart = 4 << 20
	// maxMessage is more than the largest cell, or request, with all around it.
	maxMessage = 512 << 20
)

// A raw message is bytes.
type raw struct {
	b []byte
	// pooled says that b comes from batches and goes back there: once it is sent, or by
	// its receiver.
	pooled bool
}

// free gives the memory of a pooled message back.
func (m *raw) free() {
	if b := m.b; b != nil {
		m.b = nil
		batches.Put(&b)
	}
}

// codec passes raw messages through.
type codec struct{}

func (codec) Name() string { return "trestle-raw" }

func (codec) Marshal(v any) (mem.BufferSlice, error) {
	m, ok := v.(*raw)
	if !ok {
		return nil, fmt.Errorf("%T is not a message between servers", v)
	}
	b := m.b
	if !m.pooled {
		return mem.BufferSlice{mem.SliceBuffer(b)}, nil
	}
	return mem.BufferSlice{mem.NewBuffer(&b, &batches)}, nil
}

func (codec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(*raw)
	if !ok {
		return fmt.Errorf("%T is not a message between servers", v)
	}
	if m.pooled {
		m.b = *batches.Get(data.Len())
		data.CopyTo(m.b)
		return nil
	}
	// Decoded values point into it, for as long as they are needed.
	m.b = data.Materialize()
	return nil
}

// batches keeps the memory of messages.
var batches batchPool

type batchPool struct{ pool sync.Pool }

// Get implements mem.BufferPool.
func (p *batchPool) Get(n int) *[]byte {
	if b, ok := p.pool.Get().(*[]byte); ok {
		if cap(*b) >= n {
			*b = (*b)[:n]
			return b
		}
	}
	b := make([]byte, n, max(n, 4<<10))
	return &b
}

// Put implements mem.BufferPool.
func (p *batchPool) Put(b *[]byte) {
	if cap(*b) <= 2*batchBytes {
		p.pool.Put(b)
	}
}

func (p *batchPool) empty() []byte { return (*p.Get(0))[:0] }

var changesDesc = grpc.StreamDesc{StreamName: "Changes", ServerStreams: true}

var scanDesc = grpc.StreamDesc{StreamName: "Scan", ServerStreams: true}
