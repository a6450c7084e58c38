package exec

import (
	"errors"
	"io"

	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/types"
)

// A spool keeps rows to be read again, in memory as far as there is any, the rest
// in a file.
type spool struct {
	x     *execution
	share *share
	stats *algebra.Stats
	rows  rows
	file  *spill
	n     int64
	taken int64
}

func newSpool(x *execution, share *share, stats *algebra.Stats, ts []*types.Type) *spool {
	return &spool{x: x, share: share, stats: stats, rows: rows{types: ts}}
}

// append adds the rows of a batch.
func (s *spool) append(b *types.Batch) error {
	s.n += int64(b.Rows())
	if s.file == nil {
		size := batchBytes(b.Cols, b.Sel, b.Len)
		if s.share.grow(size) {
			s.taken += size
			s.rows.append(b.Cols, b.Sel, b.Len)
			s.stats.MemoryPeak = max(s.stats.MemoryPeak, s.share.peak)
			return nil
		}
		s.file = s.x.newSpill(s.share.name, s.stats, s.rows.types)
	}
	return s.file.append(b.Cols, b.Sel, b.Len)
}

// fill adds all rows of a source, and ends the adding.
func (s *spool) fill(from batchSource) error {
	for {
		b, err := from.next()
		if errors.Is(err, io.EOF) {
			return s.finish()
		}
		if err != nil {
			return err
		}
		if err := s.append(b); err != nil {
			return err
		}
	}
}

// finish ends the adding.
func (s *spool) finish() error {
	if s.file != nil {
		return s.file.finish()
	}
	return nil
}

func (s *spool) close() {
	s.rows.reset()
	if s.file != nil {
		s.file.close()
		s.file = nil
	}
	s.share.grow(-s.taken)
	s.taken, s.n = 0, 0
}

// reader returns a reader of all rows from the first.
func (s *spool) reader() *spoolReader { return &spoolReader{spool: s} }

// A spoolReader reads the rows of a spool in order.
type spoolReader struct {
	spool *spool
	at    int
	file  *spillReader
}

// next returns the next rows, all of which count, or io.EOF.
func (r *spoolReader) next() (*types.Batch, error) {
	if r.at < len(r.spool.rows.chunks) {
		r.at++
		return r.spool.rows.chunks[r.at-1], nil
	}
	if r.spool.file == nil {
		return nil, io.EOF
	}
	if r.file == nil {
		r.file = r.spool.file.reader()
	}
	return r.file.next()
}
