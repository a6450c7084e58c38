package merge

import (
	"bytes"
	"errors"

	"github.com/trestledb/trestle/engine/cell"
)

// Iterator merges sources into one cell.Iterator. Sources are few (the runs
// and memtables of a tablet), so that a binary heap of pointers is the whole
// mechanism.
type Iterator struct {
	sources []cell.Iterator
	heap    []head // heap[0] is the current entry
	err     error
}

type head struct {
	e  *cell.Entry
	it cell.Iterator
}

// Reset makes it merge sources, which it closes in Close.
func (m *Iterator) Reset(sources []cell.Iterator) {
	m.sources, m.heap, m.err = sources, m.heap[:0], nil
}

// New returns a merge of sources, which it closes in Close.
func New(sources []cell.Iterator) *Iterator {
	m := new(Iterator)
	m.Reset(sources)
	return m
}

func (m *Iterator) position(seek func(cell.Iterator) bool) bool {
	m.heap = m.heap[:0]
	for _, s := range m.sources {
		if seek(s) {
			m.heap = append(m.heap, head{s.Entry(), s})
		} else if err := s.Error(); err != nil {
			return m.fail(err)
		}
	}
	for i := len(m.heap)/2 - 1; i >= 0; i-- {
		m.down(i)
	}
	return len(m.heap) > 0
}

func (m *Iterator) fail(err error) bool {
	m.err = err
	m.heap = m.heap[:0]
	return false
}

func (m *Iterator) down(i int) {
	h := m.heap
	for {
		c := 2*i + 1
		if c >= len(h) {
			return
		}
		if c+1 < len(h) && cell.Compare(h[c+1].e, h[c].e) < 0 {
			c++
		}
		if cell.Compare(h[i].e, h[c].e) <= 0 {
			return
		}
		h[i], h[c] = h[c], h[i]
		i = c
	}
}

// First implements cell.Iterator.
func (m *Iterator) First() bool {
	return m.position(func(s cell.Iterator) bool { return s.First() })
}

// SeekGE implements cell.Iterator.
func (m *Iterator) SeekGE(key []byte) bool {
	return m.position(func(s cell.Iterator) bool { return s.SeekGE(key) })
}

// SeekRow implements cell.Iterator.
func (m *Iterator) SeekRow(row []byte) bool {
	return m.position(func(s cell.Iterator) bool { return s.SeekRow(row) })
}

// A ColumnSeeker is a source that may leave out the first cells of a row.
type ColumnSeeker interface {
	// SeekColumn is SeekRow for a caller that needs no cells before key, which is
	// in the row. Markers, which cover what comes after them, it does need: the
	// source leaves out cells before key only if it knows that there are none.
	SeekColumn(row, key []byte) bool
}

// SeekColumn implements ColumnSeeker.
func (m *Iterator) SeekColumn(row, key []byte) bool {
	if len(key) <= len(row) {
		return m.SeekRow(row)
	}
	return m.position(func(s cell.Iterator) bool {
		if c, ok := s.(ColumnSeeker); ok {
			return c.SeekColumn(row, key)
		}
		return s.SeekRow(row)
	})
}

// SeekLT implements cell.Iterator.
func (m *Iterator) SeekLT(key []byte) bool {
	m.heap = m.heap[:0]
	var best head
	for _, s := range m.sources {
		if s.SeekLT(key) {
			if best.e == nil || bytes.Compare(s.Entry().Key, best.e.Key) > 0 {
				best = head{s.Entry(), s}
			}
		} else if err := s.Error(); err != nil {
			return m.fail(err)
		}
	}
	if best.e == nil {
		return false
	}
	m.heap = append(m.heap, best)
	return true
}

// Next implements cell.Iterator.
func (m *Iterator) Next() bool {
	top := &m.heap[0]
	if top.it.Next() {
		top.e = top.it.Entry()
	} else if !m.ended() {
		return false
	}
	if len(m.heap) > 1 {
		m.down(0)
	}
	return len(m.heap) > 0
}

// Forward moves to the first entry at or behind key, unless the current one is. It leaves alone
// sources that are there already, or have ended: also those that SeekRow found to lack the row,
// which SeekGE would read.
func (m *Iterator) Forward(key []byte) bool {
	for len(m.heap) > 0 && bytes.Compare(m.heap[0].e.Key, key) < 0 {
		if top := &m.heap[0]; top.it.SeekGE(key) {
			top.e = top.it.Entry()
		} else if !m.ended() {
			return false
		}
		m.down(0)
	}
	return len(m.heap) > 0
}

// ended takes the source of the current entry out, which has no other. It is false if the source
// has failed.
func (m *Iterator) ended() bool {
	if err := m.heap[0].it.Error(); err != nil {
		return m.fail(err)
	}
	n := len(m.heap) - 1
	m.heap[0] = m.heap[n]
	m.heap = m.heap[:n]
	return true
}

// Entry implements cell.Iterator.
func (m *Iterator) Entry() *cell.Entry { return m.heap[0].e }

// Error implements cell.Iterator.
func (m *Iterator) Error() error { return m.err }

// Close closes the sources.
func (m *Iterator) Close() error {
	var errs []error
	for _, s := range m.sources {
		if err := s.Close(); err != nil {
			errs = append(errs, err)
		}
	}
	m.sources, m.heap = nil, m.heap[:0]
	return errors.Join(errs...)
}

// Valid tells whether there is a current entry.
func (m *Iterator) Valid() bool { return len(m.heap) > 0 }
