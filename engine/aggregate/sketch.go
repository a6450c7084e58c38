package aggregate

import (
	"encoding/binary"
	"slices"

	"github.com/trestledb/trestle/engine/fault"
)

// A Sketch is a HyperLogLog++ sketch in memory, for callers that add many values
// to one: Add decodes and encodes the whole state for each. Its methods are called
// by one goroutine.
type Sketch struct {
	s sketch
	// pending are sparse values that are not in s yet, in no order.
	pending []uint32
}

// The precisions that HLL_COUNT.INIT takes.
const (
	MinPrecision     = 10
	MaxPrecision     = maxPrecision
	DefaultPrecision = newPrecision
)

// maxPending is how many values a sketch collects before it sorts them in: to
// insert each would move up to 2^16 others.
const maxPending = 512

// NewSketch returns an empty sketch of 2^precision registers, of MinPrecision to
// MaxPrecision, with the sparse precision that ZetaSketch gives it: 5 more.
func NewSketch(precision int) *Sketch {
	return &Sketch{s: sketch{p: precision, sp: min(precision+newSparsePrecision-newPrecision, maxSparsePrecision)}}
}

// NewFineSketch is NewSketch with the highest sparse precision there is. Up to some
// thousands of values its estimate is nearly always exact.
func NewFineSketch(precision int) *Sketch {
	return &Sketch{s: sketch{p: precision, sp: maxSparsePrecision}}
}

// ParseSketch returns the sketch of a state, which it copies what it needs of. A malformed one is
// fault.Invalid.
func ParseSketch(state []byte) (*Sketch, error) {
	s, err := decode(state)
	if err != nil {
		return nil, err
	}
	s.dense = slices.Clone(s.dense)
	return &Sketch{s: *s}, nil
}

// AddInt counts a 64-bit integer. A sketch of other values is fault.Invalid.
func (k *Sketch) AddInt(v int64) error {
	if k.s.valueType != typeInt {
		if err := k.s.setType(typeInt); err != nil {
			return err
		}
	}
	var word [8]byte
	binary.LittleEndian.PutUint64(word[:], uint64(v))
	k.add(fingerprint(word[:]))
	return nil
}

// AddBytes counts bytes or a string. A sketch of other values is fault.Invalid.
func (k *Sketch) AddBytes(b []byte) error {
	if k.s.valueType != typeBytes {
		if err := k.s.setType(typeBytes); err != nil {
			return err
		}
	}
	k.add(fingerprint(b))
	return nil
}

func (k *Sketch) add(hash uint64) {
	if !k.s.isSparse() {
		k.s.addHash(hash)
		return
	}
	k.s.values++
	k.pending = append(k.pending, k.s.form().encode(hash))
	if len(k.pending) >= maxPending {
		k.flush()
	}
}

func (k *Sketch) flush() {
	if len(k.pending) == 0 {
		return
	}
	slices.Sort(k.pending)
	f := k.s.form()
	k.s.sparse = union(f, k.s.sparse, union(f, k.pending, nil))
	k.pending = k.pending[:0]
	k.s.compact()
	if !k.s.isSparse() {
		k.pending = nil
	}
}

// Merge counts the values of o. Sketches that cannot be merged, see Merge, are
// fault.Invalid, and k is as it was.
func (k *Sketch) Merge(o *Sketch) error {
	k.flush()
	o.flush()
	if o.s.valueType != typeUnknown && k.s.valueType != typeUnknown && o.s.valueType != k.s.valueType {
		return fault.New(fault.Invalid, "a sketch of values of type %d cannot take values of type %d", k.s.valueType, o.s.valueType)
	}
	return k.s.merge(&o.s)
}

// Encode returns the state.
func (k *Sketch) Encode() []byte {
	k.flush()
	return k.s.encode()
}

// Estimate returns about how many distinct values were counted, as Estimate does.
func (k *Sketch) Estimate() int64 {
	k.flush()
	return k.s.estimate()
}

// Size returns about how many bytes of memory k takes.
func (k *Sketch) Size() int {
	return 128 + cap(k.s.dense) + 4*cap(k.s.sparse) + 4*cap(k.pending)
}
