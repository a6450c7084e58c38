package filter

import (
	"bytes"
	"cmp"
	"slices"
	"strings"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
)

// MaxRowBuffer is the most memory, in bytes, that a Pipeline holds back of one
// row: twice the largest row, since cells take more room in memory.
const MaxRowBuffer = 512 << 20

const (
	cellBytes  = 96 // of a row.Cell
	indexBytes = 4
	firstChunk = 4 << 10
	maxChunk   = 1 << 20
	// ownBytes is what a store holds before it asks for more, heldPart at a time.
	ownBytes = 256 << 10
	heldPart = 1 << 20
	// keepCells and maxChunk limit what a store keeps for the next row.
	keepCells = 16 << 10
)

// A store holds cells until the end of their row. However many stages hold
// back one cell, its bytes are stored once.
type store struct {
	cells []row.Cell
	chunk []byte // for the bytes of cells
	free  []byte // the unused end of chunk
	bytes int
	limit int
	err   error
	// holder is the Pipeline's. What it gave is held bytes, until releases are called.
	holder   Holder
	held     int
	releases []func()

	// current is the cell being passed on. It is cells[at]; at is -1 as long as
	// it is not stored. Cells that stages derive from it are not compared, as
	// stages reuse theirs.
	current *row.Cell
	at      int32
	// qualifier and value were copied last. Derived cells share them.
	qualifier, value copied
	labels           []string
}

// A Holder sets n bytes more aside for a row that needs total by now, until release is
// called.
type Holder interface {
	Hold(n, total int64) (release func(), err error)
}

type copied struct{ from, to []byte }

func (s *store) reset() {
	s.release()
	clear(s.cells)
	if cap(s.cells) > keepCells {
		s.cells = nil
	}
	s.cells = s.cells[:0]
	s.free = s.chunk
	s.bytes = 0
	s.err = nil
	s.qualifier, s.value = copied{}, copied{}
}

// release gives back what was held, and the memory for which it was. What the next row
// may use again is that of a small one.
func (s *store) release() {
	if s.held == 0 {
		return
	}
	s.cells, s.chunk, s.free = nil, nil, nil
	for _, release := range s.releases {
		release()
	}
	s.held, s.releases = 0, nil
}

// enter makes c, whose bytes are the feeder's, the current cell.
func (s *store) enter(c *row.Cell) {
	s.current, s.at = c, -1
	s.qualifier.from, s.value.from = nil, nil
}

// put stores c and returns its index. It fails when the limit is reached.
func (s *store) put(c *row.Cell) (at int32, ok bool) {
	if !s.charge(indexBytes) {
		return 0, false
	}
	if c == s.current && s.at >= 0 {
		return s.at, true
	}
	if !s.charge(cellBytes) {
		return 0, false
	}
	if len(c.Labels) > 0 && !slices.Equal(s.labels, c.Labels) {
		s.labels = slices.Clone(c.Labels)
	}
	stored := row.Cell{
		Family:    c.Family,
		Qualifier: s.copy(&s.qualifier, c.Qualifier),
		Timestamp: c.Timestamp,
		Value:     s.copy(&s.value, c.Value),
	}
	if len(c.Labels) > 0 {
		stored.Labels = s.labels
	}
	if s.err != nil {
		return 0, false
	}
	at = int32(len(s.cells))
	s.cells = append(s.cells, stored)
	if c == s.current {
		s.at = at
	}
	return at, true
}

// replay passes stored cells on. It may happen while another cell is current.
func (s *store) replay(indexes []int32, next stage) {
	current, at, qualifier, value := s.current, s.at, s.qualifier, s.value
	defer func() { s.current, s.at, s.qualifier, s.value = current, at, qualifier, value }()
	for _, i := range indexes {
		// The address is good even if the slice grows meanwhile: stored cells do
		// not change.
		c := &s.cells[i]
		s.current, s.at = c, i
		s.qualifier = copied{c.Qualifier, c.Qualifier}
		s.value = copied{c.Value, c.Value}
		if next.cell(c) == NextRow {
			return
		}
	}
}

func (s *store) copy(last *copied, b []byte) []byte {
	if len(b) == 0 {
		return nil
	}
	if len(last.from) == len(b) && &last.from[0] == &b[0] {
		return last.to
	}
	if !s.charge(len(b)) {
		return nil
	}
	*last = copied{b, s.clone(b)}
	return last.to
}

func (s *store) clone(b []byte) []byte {
	if len(b) > maxChunk/4 {
		return bytes.Clone(b)
	}
	if len(b) > len(s.free) {
		s.chunk = make([]byte, max(min(max(2*len(s.chunk), firstChunk), maxChunk), len(b)))
		s.free = s.chunk
	}
	n := copy(s.free, b)
	out := s.free[:n:n]
	s.free = s.free[n:]
	return out
}

// charge counts n bytes and tells whether they are within the limit, and there is memory.
func (s *store) charge(n int) bool {
	s.bytes += n
	if s.err != nil {
		return false
	}
	if s.bytes > s.limit {
		s.err = fault.New(fault.FailedPrecondition,
			"The row filter would hold back more than %d bytes of one row; narrow the input of its conditions", s.limit)
		return false
	}
	if short := s.bytes - ownBytes - s.held; short > 0 && s.holder != nil {
		part := max(short, heldPart)
		release, err := s.holder.Hold(int64(part), int64(s.held+part))
		if err != nil {
			s.err = err
			return false
		}
		s.held, s.releases = s.held+part, append(s.releases, release)
	}
	return true
}

// held are the indexes of stored cells that one stage holds back.
type held struct {
	store   *store
	indexes []int32
}

func (h *held) reset() {
	if cap(h.indexes) > keepCells {
		h.indexes = nil
	}
	h.indexes = h.indexes[:0]
}

func (h *held) add(c *row.Cell) Next {
	i, ok := h.store.put(c)
	if !ok {
		return NextRow
	}
	h.indexes = append(h.indexes, i)
	return NextCell
}

// sort brings the cells into order. Copies keep theirs.
func (h *held) sort() {
	cells := h.store.cells
	slices.SortStableFunc(h.indexes, func(i, j int32) int { return compare(&cells[i], &cells[j]) })
}

func compare(a, b *row.Cell) int {
	if c := strings.Compare(a.Family, b.Family); c != 0 {
		return c
	}
	if c := bytes.Compare(a.Qualifier, b.Qualifier); c != 0 {
		return c
	}
	return cmp.Compare(b.Timestamp, a.Timestamp)
}
