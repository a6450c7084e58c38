package sstable

import (
	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/sstable"
)

// A filterWriter makes the Bloom filter of a file. It holds the file's row
// prefixes, and the column prefixes of all cells, which are the keys of column
// markers, if rows have many. A read of one column of such a row may not find
// it in most files that have the row.
//
// Pebble hands a FilterPolicy the row prefix of every entry; this one takes from
// the Writer what it needs.
type filterWriter struct {
	bloom.FilterPolicy
	min           int // columns of a row from which on they pay
	rows, all     pebble.FilterWriter
	nRows, nCells int
}

func newFilterWriter(o Options) *filterWriter {
	f := &filterWriter{FilterPolicy: bloom.FilterPolicy(o.BloomBitsPerKey), min: o.FilterColumns}
	f.rows, f.all = f.FilterPolicy.NewWriter(sstable.TableFilter), f.FilterPolicy.NewWriter(sstable.TableFilter)
	return f
}

// row adds a row prefix. A nil filterWriter adds nothing.
func (f *filterWriter) row(prefix []byte) {
	if f == nil {
		return
	}
	// What the first thousand rows say spares the others the work.
	if f.nRows++; f.nRows > 1000 && f.all != nil && !f.columnsPay() {
		f.all = nil
	}
	f.rows.AddKey(prefix)
	if f.all != nil {
		f.all.AddKey(prefix)
	}
}

// column adds a column prefix.
func (f *filterWriter) column(prefix []byte) {
	if f != nil && f.all != nil {
		f.nCells++
		f.all.AddKey(prefix)
	}
}

// columnsPay tells whether the filter has columns.
func (f *filterWriter) columnsPay() bool {
	return f != nil && f.all != nil && f.nCells >= f.min*f.nRows
}

// NewWriter implements pebble.FilterPolicy.
func (f *filterWriter) NewWriter(sstable.FilterType) pebble.FilterWriter { return f }

// AddKey implements pebble.FilterWriter.
func (f *filterWriter) AddKey([]byte) {}

// Finish implements pebble.FilterWriter.
func (f *filterWriter) Finish(dst []byte) []byte {
	if f.columnsPay() {
		return f.all.Finish(dst)
	}
	return f.rows.Finish(dst)
}
