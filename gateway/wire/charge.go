package wire

import (
	"slices"
	"unsafe"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/trestledb/trestle/engine/budget"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
)

// A field of two bytes can take 192 once it is decoded. What a request takes is
// counted before it is taken, since its caller may yet be refused.
const (
	// freeBytes of a request are not counted: small requests never wait for memory.
	freeBytes = 16 << 10
	// coveredCost is how many bytes of what was decoded the gateway has charged for a
	// byte of a large message. It charges three. One is the byte as received; a message
	// of many short fields does not need the others for anything else.
	coveredCost = 2

	// messageBytes is what generated code takes for a message in a message: a struct of
	// 168 bytes at most, and a pointer in a slice that grows.
	messageBytes = 192
	// fieldBytes is what it takes for another field: a string's header in a slice that
	// grows, or the member of a oneof, beside the field's bytes.
	fieldBytes = 64

	mutationBytes = int(unsafe.Sizeof(row.Mutation{}))
	entryBytes    = int(unsafe.Sizeof(row.Entry{})) + 1 // and whether its result is known
	ruleBytes     = int(unsafe.Sizeof(row.Rule{}))
	// A key or span of a row set is in a slice that grows, and becomes a range.
	rangeBytes = int(unsafe.Sizeof(row.Range{}))
	keyBytes   = 2*int(unsafe.Sizeof([]byte{})) + rangeBytes
	spanBytes  = 2*int(unsafe.Sizeof(span{})) + rangeBytes + 16 // its ends are copied
)

// A charge is what a request has of the budget for what it is decoded to.
type charge struct {
	memory *budget.Budget
	size   int // of the encoded message
	left   int // that may still be used, paid or free
	taken  int64
}

func newCharge(memory *budget.Budget, size int) charge {
	return charge{memory: memory, size: size, left: freeBytes + coveredCost*size}
}

// use counts n bytes. The error is Exhausted.
func (c *charge) use(n int) error {
	if c.left -= n; c.left < 0 {
		return c.take()
	}
	return nil
}

// take pays for what is used, and for a quarter of it more: slices grow by that.
func (c *charge) take() error {
	n := int64(max(freeBytes, int(c.taken/4)) - c.left)
	if !c.memory.Try(n) {
		if limit := c.memory.Limit(); c.taken+n+int64(coveredCost+1)*int64(c.size) > limit {
			return fault.New(fault.Exhausted, "The request takes more than the %d bytes of memory that requests have, once it is decoded: send less at a time, or see --memory", limit)
		}
		return budget.Busy()
	}
	c.taken += n
	c.left += int(n)
	return nil
}

// room returns s for another to be appended. It doubles what is large: append, which
// adds a quarter to that, leaves four times the last as garbage.
func room[T any](s []T) []T {
	if len(s) < cap(s) || len(s) < 256 {
		return s
	}
	return slices.Grow(s, len(s)+1)
}

func (c *charge) release() {
	c.memory.Release(c.taken)
	*c = charge{}
}

// unmarshal merges b into m by generated code.
func (c *charge) unmarshal(b []byte, m proto.Message) error {
	// No field has fewer than two bytes.
	if most := len(b) / 2 * messageBytes; most <= c.left {
		c.left -= most
	} else if err := c.count(b, m.ProtoReflect().Descriptor(), protowire.DefaultRecursionLimit); err != nil {
		return err
	}
	return proto.UnmarshalOptions{Merge: true}.Unmarshal(b, m)
}

// count uses what a message of d takes that b is decoded to. It stops where generated
// code does, which says why.
func (c *charge) count(b []byte, d protoreflect.MessageDescriptor, depth int) error {
	for fields := d.Fields(); len(b) > 0 && depth > 0; {
		f, rest, err := nextField(b)
		if err != nil {
			return nil
		}
		b = rest
		of := fields.ByNumber(f.num)
		if of == nil || of.Message() == nil {
			err = c.use(fieldBytes)
		} else if err = c.use(messageBytes); err == nil {
			err = c.count(f.bytes, of.Message(), depth-1)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// A Kept is what a message that generated code has decoded keeps of the memory of
// requests: what it is charged, and its buffer, on which the gateway's charge depends.
type Kept struct{ received }

// Release gives it back. A nil Kept has nothing.
func (k *Kept) Release() {
	if k != nil {
		k.release()
	}
}

// A received is the buffer that a request aliases, and what the request is charged.
type received struct {
	buf  mem.Buffer
	used bool
	charge
}

// keep takes a reference to a received message and returns its bytes. A
// message in several buffers, that is one above some 16 KiB, is made one: this
// is its copy between the socket and the log.
func (r *received) keep(data mem.BufferSlice, pool mem.BufferPool, memory *budget.Budget) ([]byte, error) {
	if r.used {
		return nil, errTwice
	}
	r.used = true
	r.buf = data.MaterializeToBuffer(pool)
	b := r.buf.ReadOnlyData()
	r.charge = newCharge(memory, len(b))
	return b, nil
}

func (r *received) release() {
	if r.buf != nil {
		r.buf.Free()
	}
	r.buf, r.used = nil, false
	r.charge.release()
}
