package sstable

import (
	"encoding/binary"
	"math"

	"github.com/cockroachdb/pebble/v2/sstable"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/fault"
)

// timesProperty is the block property that tells which timestamps the cells of
// a block have. It is part of the file format.
const timesProperty = "trestle.times"

// allTimes is the interval of what any reader must see.
var allTimes = sstable.BlockInterval{Lower: 0, Upper: math.MaxUint64}

// timeOrdinal maps timestamps to uint64 in order. The two largest timestamps
// share an ordinal, so that every timestamp has a half-open interval.
func timeOrdinal(ts int64) uint64 {
	return min(uint64(ts)^(1<<63), math.MaxUint64-1)
}

func timeInterval(ts int64) sstable.BlockInterval {
	o := timeOrdinal(ts)
	return sstable.BlockInterval{Lower: o, Upper: o + 1}
}

// rangeInterval returns the bounds of a filter that passes r and, of what r
// does not contain, little.
func rangeInterval(r cell.TimeRange) (lower, upper uint64) {
	if r.End == math.MaxInt64 {
		return timeOrdinal(r.Start), math.MaxUint64
	}
	return timeOrdinal(r.Start), timeOrdinal(r.End)
}

// timeMapper gives Pebble's collector the interval of the entry that a Writer
// is adding, which the Writer has parsed already.
type timeMapper struct{ w *Writer }

func (m timeMapper) MapPointKey(sstable.InternalKey, []byte) (sstable.BlockInterval, error) {
	return m.w.interval, nil
}

func (m timeMapper) MapRangeKeys(sstable.Span) (sstable.BlockInterval, error) {
	return sstable.BlockInterval{}, nil
}

// infoCollector is a block property collector that has nothing to say of
// blocks and writes the Writer's Info as the property of the file.
type infoCollector struct{ w *Writer }

var _ sstable.BlockPropertyCollector = infoCollector{}

func (c infoCollector) Name() string                                           { return infoProperty }
func (c infoCollector) AddPointKey(sstable.InternalKey, []byte) error          { return nil }
func (c infoCollector) AddRangeKeys(sstable.Span) error                        { return nil }
func (c infoCollector) FinishDataBlock(buf []byte) ([]byte, error)             { return buf, nil }
func (c infoCollector) AddPrevDataBlockToIndexBlock()                          {}
func (c infoCollector) FinishIndexBlock(buf []byte) ([]byte, error)            { return buf, nil }
func (c infoCollector) SupportsSuffixReplacement() bool                        { return false }
func (c infoCollector) AddCollectedWithSuffixReplacement(_, _, _ []byte) error { return nil }
func (c infoCollector) FinishTable(buf []byte) ([]byte, error) {
	return encodeInfo(buf, &c.w.info), nil
}

// blockProperty returns what the index says of a block in the property of that
// number; nil is the property's empty value, which is left out. Each is written as
// its number, its length and itself, in the order of numbers.
func blockProperty(props []byte, id int) ([]byte, error) {
	for len(props) > 0 {
		size, n := binary.Uvarint(props[1:])
		if n <= 0 || size > uint64(len(props)-1-n) {
			return nil, fault.New(fault.Corruption, "block properties %x are malformed", props)
		}
		end := 1 + n + int(size)
		if int(props[0]) == id {
			return props[1+n : end], nil
		}
		props = props[end:]
	}
	return nil, nil
}
