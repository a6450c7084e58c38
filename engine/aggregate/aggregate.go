package aggregate

import (
	"encoding/binary"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
)

// Add returns the state of a cell after one more input. state is nil if there
// is no cell yet; it is not changed, and the result may share its memory. A
// NullInput changes nothing, so that the result may be nil: no cell either.
// Sum wraps around. Sum, Min and Max take IntInput, or RawInput of 8 big-endian
// bytes; HLL takes any input, see below. Any other input, and a malformed
// state, is fault.Invalid.
//
// HLL counts an int, a timestamp, a date and a bool as 64-bit integers. Bytes,
// raw bytes and strings count as bytes, and a float as such, with 0 and -0 the
// same. A cell counts values of one of the three types: the first one's.
func Add(kind schema.Aggregate, state []byte, in row.Input) ([]byte, error) {
	if in.Kind == row.NullInput {
		return state, nil
	}
	switch kind {
	case schema.Sum, schema.Min, schema.Max:
		v, err := intInput(in)
		if err != nil {
			return nil, err
		}
		return combineInts(kind, state, v)
	case schema.HLL:
		return addHLL(state, in)
	}
	return nil, notAggregate(kind)
}

// Merge returns the state of a cell whose inputs are those of state and those
// of other. Either may be nil for no inputs, and an other of HLL may be empty
// for that too, as in ZetaSketch. Otherwise one that is not a state of kind is
// fault.Invalid. Neither is changed, and the result may share the memory of
// either.
//
// Sketches of different precision give one of the lower precision. Sketches of
// values of different types, or where one has the higher precision and the
// lower sparse precision, are fault.Invalid.
func Merge(kind schema.Aggregate, state, other []byte) ([]byte, error) {
	switch kind {
	case schema.Sum, schema.Min, schema.Max:
		if other == nil {
			return state, nil
		}
		v, err := Int(other)
		if err != nil {
			return nil, err
		}
		return combineInts(kind, state, v)
	case schema.HLL:
		return mergeHLL(state, other)
	}
	return nil, notAggregate(kind)
}

// MergeInput is Merge of the state that in holds, as the operand of MergeToCell
// does: RawInput or BytesInput, or IntInput for a state that is an integer. A
// NullInput changes nothing; the result is then state, which may be nil. Any
// other input is fault.Invalid.
func MergeInput(kind schema.Aggregate, state []byte, in row.Input) ([]byte, error) {
	switch {
	case in.Kind == row.NullInput:
		return state, nil
	case in.Kind == row.RawInput || in.Kind == row.BytesInput:
		other := in.Bytes
		if other == nil {
			other = []byte{} // present and empty, which is not the same as nil
		}
		return Merge(kind, state, other)
	case in.Kind == row.IntInput && kind != schema.HLL:
		return Merge(kind, state, binary.BigEndian.AppendUint64(nil, uint64(in.Int)))
	}
	return nil, fault.New(fault.Invalid, "the state to merge must be given as bytes")
}

// Int returns the integer that the state of a Sum, Min or Max is. Anything but
// 8 bytes is fault.Invalid.
func Int(state []byte) (int64, error) {
	if len(state) != 8 {
		return 0, fault.New(fault.Invalid, "the state of an integer aggregate has 8 bytes, not %d", len(state))
	}
	return int64(binary.BigEndian.Uint64(state)), nil
}

func combineInts(kind schema.Aggregate, state []byte, v int64) ([]byte, error) {
	if state != nil {
		old, err := Int(state)
		if err != nil {
			return nil, err
		}
		switch kind {
		case schema.Sum:
			v += old
		case schema.Min:
			v = min(v, old)
		case schema.Max:
			v = max(v, old)
		}
	}
	return binary.BigEndian.AppendUint64(nil, uint64(v)), nil
}

func intInput(in row.Input) (int64, error) {
	switch {
	case in.Kind == row.IntInput:
		return in.Int, nil
	case in.Kind == row.RawInput && len(in.Bytes) == 8:
		return int64(binary.BigEndian.Uint64(in.Bytes)), nil
	case in.Kind == row.RawInput:
		return 0, fault.New(fault.Invalid, "a raw 64-bit integer has 8 bytes, not %d", len(in.Bytes))
	}
	return 0, fault.New(fault.Invalid, "this family aggregates 64-bit integers; the input is of another type")
}

func notAggregate(kind schema.Aggregate) error {
	return fault.New(fault.Invalid, "cells of this family do not aggregate (aggregator %d)", kind)
}
